"""What a training step logs: kept back while it is recorded, logged anew at every replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor

from lucid_accel.graphs.aside import Taken

__all__ = ["StepLogs"]


class StepLogs:
    """Stands in for ``log`` of a module while its step is recorded or proven; ``log_dict`` calls that too.

    Args:
        module: The run's module.
    """

    def __init__(self, module: LightningModule) -> None:
        self._module = module

    @contextmanager
    def kept_back(self) -> Iterator[Taken]:
        """Log nothing while the context is open."""
        with self._standing_in(passing=False) as taken:
            yield taken

    @contextmanager
    def noted(self) -> Iterator[Taken]:
        """Log as ever, and note it."""
        with self._standing_in(passing=True) as taken:
            yield taken

    def hand_out(self, labels: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """Log the values of a replay, which are its own copies."""
        for (name, _, args, kwargs), value in zip(labels, tensors, strict=True):
            self._module.log(name, value, *args, **kwargs)

    @contextmanager
    def _standing_in(self, passing: bool) -> Iterator[Taken]:
        native, own, taken = self._module.log, vars(self._module), Taken()
        held = {"log": own["log"]} if "log" in own else {}

        def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
            if passing:
                native(name, value, *args, **kwargs)
            elif not isinstance(value, Tensor) or value.device.type != self._module.device.type:
                seen = f"tensor on {value.device}" if isinstance(value, Tensor) else type(value).__name__
                raise TypeError(
                    f"it logs {name!r} as a {seen}, which a recording would freeze: log a tensor on the "
                    "device, or log it in on_train_batch_end"
                )
            if isinstance(value, Tensor):
                taken.tensors.append(value.detach())
            # What is no tensor now, and was one when it was recorded, makes another label.
            taken.labels.append((name, isinstance(value, Tensor), args, kwargs))

        own["log"] = log
        try:
            yield taken
        finally:
            del own["log"]
            own.update(held)

"""Modules whose whole step is replayed, and what is noted of their fits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from lucid_accel.graphs.router import Router
from lucid_accel.replay.step import StepReplay
from lucid_accel.testing import Outcome, digest, first_difference, run
from lucid_core.optim.ema import AveragedNetwork
from tests.accel.conftest import Batches, batches
from tests.accel.muon import Muon

__all__ = ["CLIPPED", "Averaged", "Parts", "Trace", "compare", "even_batches", "half", "hooked", "parity"]

#: Clips what the tiny modules learn from.
CLIPPED = {"gradient_clip_val": 0.1}


class Parts(StepReplay):
    """The same, and it knows its four parts."""

    def drive(self, router: Router, part: object, undo: Any) -> Any:
        self.__dict__.setdefault("_parts", []).append(router)
        return super().drive(router, part, undo)

    def install(self, site: Any) -> Any:
        self._parts: list[Router] = []
        return super().install(site)

    def replays(self) -> list[int]:
        """How often clipping, the update and the average were replayed, as far as they are taken."""
        return [calls["replayed"] for calls in self.tally.beside.values()]


class Averaged(Muon):
    """Keeps an averaged copy of its layers, as the detector does, and validates with it."""

    average: Any = None

    def on_fit_start(self) -> None:
        self.average = AveragedNetwork(self.body, 0.9, 4.0)
        if (held := self.__dict__.pop("_held", None)) is not None:
            self.average.load_state_dict(held)

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        self.average.write_scalars()
        self.average.update()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.head(self.average.network(batch[0]).mean((2, 3))).square().mean())

    def val_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(batches(2), batch_size=None)  # type: ignore[arg-type]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["average"] = self.average.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._held = checkpoint["average"]


#: Hooks of a callback that say what a step does, and that see gradients.
_SEEN = ("on_after_backward", "on_before_optimizer_step", "on_before_zero_grad", "on_before_backward")


class Trace(Callback):
    """Notes every hook: where the run is, the rate, what was logged, and in the middle of a step all gradients.

    Calls of ``step`` and ``zero_grad`` of the optimizer are counted beside.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []
        self._counts = {"step": 0, "zero_grad": 0}
        for name in dir(Callback):
            if name.startswith("on_"):
                setattr(self, name, self._noting(name))

    def _noting(self, hook: str) -> Callable[..., None]:
        def note(trainer: Trainer, module: LightningModule, *args: Any, **_: Any) -> None:
            if hook == "on_train_start":
                self._count(trainer.optimizers[0])
            row: dict[str, Any] = {"hook": hook, "step": trainer.global_step, **self._counts}
            row["rates"] = [group["lr"] for item in trainer.optimizers for group in item.param_groups]
            if hook in _SEEN:
                row["gradients"] = [x.grad for x in module.parameters()]
                row["loss"] = [x.detach() for x in args if isinstance(x, Tensor)]
            if hook == "on_train_batch_end":
                row["loss"] = args[0]
            row["logged"] = dict(trainer.logged_metrics)
            self.rows.append(digest(row))

        return note

    def _count(self, optimizer: Any) -> None:
        optimizer.register_step_post_hook(lambda *_: self._counts.update(step=self._counts["step"] + 1))
        native = optimizer.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            self._counts["zero_grad"] += 1
            native(*args, **kwargs)

        optimizer.zero_grad = zero_grad


def compare(
    module: Callable[[], LightningModule],
    data: Callable[[], Any],
    replay: StepReplay,
    callbacks: Callable[[], list[Callback]] = list,
    **settings: Any,
) -> str | None:
    """Return the first place where the fit with ``replay`` differs from the native one. A setting may be its maker."""

    def outcome(accelerations: list[Callback]) -> Outcome:
        made = {name: value() if callable(value) else value for name, value in settings.items()}
        return run(module, data, [*callbacks(), *accelerations], **made)

    return first_difference(outcome([]), outcome([replay]))


def parity(module: Callable[[], LightningModule] = Muon, data: Callable[[], Any] = batches, **settings: Any) -> Parts:
    """Assert that a strict replay changes no byte, and return it."""
    replay = Parts(strict=True)
    assert (place := compare(module, data, replay, **settings)) is None, place
    assert replay.tally.proofs, dict(replay.tally.native)
    return replay


def hooked(hook: str, do: Callable[[Any], Any], when: Callable[[int], bool]) -> Callable[[], list[Callback]]:
    """Make a callback that does something to the module in some calls of a hook."""

    class Hooked(Callback):
        calls = 0

    def act(trainer: Trainer, module: LightningModule, *_: Any, **__: Any) -> None:
        if when(made.calls):
            do(module)
        made.calls += 1

    made: Any = None

    def make() -> list[Callback]:
        nonlocal made
        made = Hooked()
        setattr(made, hook, act)
        return [made]

    return make


def half(scale: float = 2.0**16) -> list[MixedPrecision]:
    """16-mixed on the CPU, where Lightning has none of its own, with a scale that doubles every five steps."""
    return [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5))]


def even_batches(count: int = 8) -> Batches:
    """Batches of one size."""
    return [(images[:3], labels[:3]) for images, labels in batches(count)]

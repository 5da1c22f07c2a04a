"""Deterministic mode without the filling of fresh memory."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback
from torch.utils import deterministic

__all__ = ["KeepMemoryUnfilled"]


class KeepMemoryUnfilled(Callback):
    """Switches ``fill_uninitialized_memory`` off for the time of a run.

    Deterministic mode would fill all memory it allocates, to expose reads of what nothing wrote: on a GPU, half of the
    kernels of a step. Results do not depend on it.
    """

    def __init__(self) -> None:
        self._before: bool | None = None

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Switch it off."""
        if self._before is None:
            self._before = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Put back what was."""
        if self._before is not None:
            deterministic.fill_uninitialized_memory = self._before  # type: ignore[attr-defined]
            self._before = None

    def on_exception(self, *args: Any, **kwargs: Any) -> None:
        """Put back what was: Lightning calls no teardown then."""
        self.teardown()

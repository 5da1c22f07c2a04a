"""Garbage collection between steps instead of within them."""

from __future__ import annotations

import gc
from typing import Any

from lightning.pytorch import Trainer

from lucid_accel import Acceleration
from lucid_accel.acceleration import State, Undo
from lucid_accel.site import Answer, Site, no, yes

__all__ = ["ScheduledCollection"]


class ScheduledCollection(Acceleration):
    """Keeps Python's garbage collector out of the steps and runs it between two of them, every so many batches.

    Wraps: nothing of the step.

    Must hold: the collector is on when training starts.

    Frozen: nothing.

    Ends: with the fit.

    Costs: the memory of reference cycles, until the next collection.

    Args:
        every: Batches from one collection to the next.
        strict: A no is an error.

    Raises:
        ValueError: ``every`` is less than 1.
    """

    def __init__(self, every: int = 500, strict: bool = False) -> None:
        super().__init__(strict=strict)
        if every < 1:
            raise ValueError(f"every is {every}; it must be at least 1")
        self.every = every

    def eligible(self, site: Site) -> Answer:
        """Ask whether there is a collector to keep out."""
        if not gc.isenabled():
            return no("it needs Python's garbage collector on", "it is off", "leave out gc.disable()")
        return yes()

    def install(self, site: Site) -> Undo:
        """Switch the collector off until the end of the fit."""
        gc.disable()
        return gc.enable

    def on_train_batch_start(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Collect when it is time, before the step begins."""
        super().on_train_batch_start(trainer, *args, **kwargs)
        if self.state is State.ARMED:
            self.replayed()
            if self.batches % self.every == 0:
                gc.collect()

"""Measures one fit from within: the time of a step, and in a profile the device's part of it."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.profiler import ProfilerActivity, profile

from lucid_accel.bench.device import busy

__all__ = ["Enough", "Probe"]

#: Batches before a profile: enough for recordings to be made, proven twice, and kept or not.
BEFORE = 250
#: Batches of a profile.
PROFILED = 5


class Enough(Exception):
    """Ends a fit of which only a profile is wanted."""


class Probe(Callback):
    """Takes the time from batch to batch, or profiles a few batches and ends the fit.

    The host runs ahead of the device, so one interval says little: a step's time is that of the second half of an
    epoch's batches, closed by a synchronisation, over their number. Recordings are made in the first half as a rule,
    and the median over the epochs leaves out one in which they are not. Waiting for data is part of it.

    Args:
        profiling: Profile, and raise :class:`Enough`.
    """

    def __init__(self, profiling: bool) -> None:
        self.profiling = profiling
        self._ends: list[float] = []
        self._steps: list[float] = []
        self._batches = 0
        self._open: profile | None = None
        self._opened = 0
        self._found: dict[str, float | int | None] = {"busy_ms": None, "kernels": None}

    def figures(self) -> dict[str, float | int | None]:
        """Return milliseconds of a step; of a profile those in which the device computes, and kernels, per batch."""
        step = statistics.median(self._steps) * 1e3 if self._steps else None
        return self._found if self.profiling else {"step_ms": step}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Open the profile, so that no validation falls into it."""
        if not self.profiling or self._open is not None:
            return
        of = trainer.num_training_batches
        epochs = trainer.max_epochs or -1
        # As late as the fit allows: a short one is native at first.
        before = min(BEFORE, max(of * (epochs - 1), of * epochs - PROFILED)) if epochs > 0 else BEFORE
        if self._batches >= before and (batch_idx + PROFILED <= of or batch_idx == 0):
            _wait(trainer)
            watched = ProfilerActivity.CUDA if _is_beside(trainer) else ProfilerActivity.CPU
            self._open, self._opened = profile(activities=[watched]), self._batches
            self._open.start()  # type: ignore[no-untyped-call]

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Take the time; close the profile."""
        self._batches += 1
        last = trainer.is_last_batch
        if last:
            _wait(trainer)
        self._ends.append(time.perf_counter())
        if self._open is not None and (last or self._batches - self._opened == PROFILED):
            _wait(trainer)
            self._open.stop()  # type: ignore[no-untyped-call]
            taken, kernels = busy(self._open, self._batches - self._opened)
            self._found = {"busy_ms": round(taken, 3), "kernels": kernels}
            raise Enough

    def on_validation_start(self, *args: Any) -> None:
        """A validation is no part of a step, in the middle of an epoch either."""
        self._end_of_row()

    def on_train_epoch_end(self, *args: Any) -> None:
        """Nor is what comes between epochs."""
        self._end_of_row()

    def _end_of_row(self) -> None:
        half = max(1, len(self._ends) // 2)
        if len(self._ends) > half:
            self._steps.append((self._ends[-1] - self._ends[half - 1]) / (len(self._ends) - half))
        self._ends.clear()


def _is_beside(trainer: Trainer) -> bool:
    """Whether the device works beside the host."""
    return trainer.strategy.root_device.type == "cuda"


def _wait(trainer: Trainer) -> None:
    if _is_beside(trainer):
        torch.cuda.synchronize()

"""The progress bar of a run."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any, TypeAlias

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor

__all__ = ["ProgressBar"]

Figures: TypeAlias = "dict[str, int | str | float | dict[str, float]]"


class ProgressBar(TQDMProgressBar):
    """A bar with losses, learning rate and epoch that reads the device no more often than the loggers do.

    Lightning reads every ``prog_bar=True`` value back from the device at each step. Here figures are taken from what
    was logged, once per ``log_every_n_steps`` and after validation, in one transfer for all of them.

    Args:
        figures: Patterns of the logged names to show, in this order; the part after the last slash is displayed.
        refresh_rate: Batches between two redraws of the bar; 0 switches it off.
    """

    def __init__(
        self, figures: Sequence[str] = ("train/loss", "train/o2o_*", "val/*map"), refresh_rate: int = 5
    ) -> None:
        super().__init__(refresh_rate=refresh_rate)
        self.figures = tuple(figures)
        self._shown: Figures = {}
        self._interval = 0

    def on_train_epoch_start(self, trainer: Trainer, *args: Any) -> None:
        """Name the epoch, counted from 1."""
        super().on_train_epoch_start(trainer, *args)
        of = f"/{trainer.max_epochs}" if (trainer.max_epochs or -1) > 0 else ""
        self.train_progress_bar.set_description(f"epoch {trainer.current_epoch + 1}{of}")

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Figures:
        """Return the figures to show, as last read from the device."""
        every: int = max(1, trainer.log_every_n_steps)  # type: ignore[attr-defined]
        interval = trainer.global_step // every
        if (interval != self._interval or not trainer.training) and not trainer.sanity_checking:
            self._interval = interval
            self._shown = self._read(trainer.logged_metrics)
            if trainer.optimizers:
                self._shown["lr"] = f"{trainer.optimizers[0].param_groups[0]['lr']:.3g}"
        return self._shown

    def _read(self, logged: dict[str, Tensor]) -> Figures:
        names = [name for pattern in self.figures for name in logged if fnmatch(name, pattern)]
        if not names:
            return {}
        device = logged[names[0]].device
        values = torch.stack([logged[name].detach().to(device, torch.float32) for name in names]).tolist()
        return {name.rpartition("/")[2]: f"{value:.3g}" for name, value in zip(names, values, strict=True)}

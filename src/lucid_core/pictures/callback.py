"""The pictures of a run, in its folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray

from lucid_core.data.loader import TrainLoader
from lucid_core.evaluation.evaluator import Evaluator
from lucid_core.pictures.batches import training_batch, validation
from lucid_core.pictures.curves import draw_curves, read_metrics
from lucid_core.pictures.grid import save

__all__ = ["Pictures"]


class Pictures(Callback):
    """Draws what goes into training and what comes out, into the run folder.

    ``train_batch_0.png``: the first training batch as the network sees it, with its labels.
    ``curves.png``: losses, AP and learning rate, from ``metrics.csv``.
    ``val_predictions.png``: validation images with their labels, beside them what the averaged weights detect.

    Nothing is read from the device for them: the batch is made once more on the host before the first step, and
    detections are those that AP was computed from. A run is the same in every byte with and without. Where there is
    no logger, there is no run folder and nothing is drawn; a picture that cannot be drawn ends pictures with one
    warning, and not the run.

    Args:
        every: Validations from one redraw to the next; 0 draws nothing.
        tiles: Pictures in a grid, at most; a validation image takes two.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(self, every: int = 1, tiles: int = 16) -> None:
        if every < 0:
            raise ValueError(f"every is {every}; it must be at least 0")
        if tiles < 2:
            raise ValueError(f"tiles is {tiles}; it must be at least 2")
        self.every = every
        self.tiles = tiles
        self._folder: Path | None = None
        self._validations = 0
        self._drawn_at = -1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the run folder, in all processes, since they have to agree on it."""
        draws = self.every and trainer.loggers and not trainer.fast_dev_run  # type: ignore[attr-defined]
        folder = trainer.log_dir if draws else None
        self._folder = Path(folder) if folder and trainer.is_global_zero else None
        self._validations, self._drawn_at = 0, -1

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the first training batch."""
        loader = trainer.train_dataloader
        names = pl_module.hparams.get("class_names")
        if isinstance(loader, TrainLoader) and names:
            epoch = trainer.current_epoch
            task, points = pl_module.hparams.get("task", "detect"), getattr(trainer.datamodule, "points", None)  # type: ignore[attr-defined]
            self._draw("train_batch_0.png", training_batch, loader, epoch, names, self.tiles, task, points)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw curves and detections anew, except in the sanity check."""
        if trainer.sanity_checking:
            return
        self._validations += 1
        if self.every and (self._validations - 1) % self.every == 0:
            self._draw_detections(pl_module, "val_predictions.png")
            if trainer.state.fn == "fit":
                self._draw_curves(trainer)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw detections."""
        self._draw_detections(pl_module, "test_predictions.png")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the curves to their end, also of a run that never validated."""
        if self._drawn_at != trainer.global_step:
            self._draw_curves(trainer)

    def _draw_detections(self, module: LightningModule, name: str) -> None:
        evaluator = getattr(module, "evaluator", None)
        if isinstance(evaluator, Evaluator):
            self._draw(name, validation, evaluator.first, self.tiles // 2)

    def _draw_curves(self, trainer: Trainer) -> None:
        self._drawn_at = trainer.global_step
        for logger in trainer.loggers:
            if isinstance(logger, CSVLogger):
                self._draw("curves.png", _curves, Path(logger.log_dir, "metrics.csv"))
                return

    def _draw(self, name: str, make: Callable[..., NDArray[np.uint8] | None], *args: Any) -> None:
        if self._folder is None:
            return
        try:
            picture = make(*args)
            if picture is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                save(picture, self._folder / name)
        except Exception as error:
            rank_zero_warn(f"no more pictures of this run, since {name} failed: {type(error).__name__}: {error}")
            self._folder = None


def _curves(metrics: Path) -> NDArray[np.uint8] | None:
    return draw_curves(read_metrics(metrics))

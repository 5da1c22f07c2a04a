"""What a run of the command line has unless the user says otherwise: trainer settings, run folder, callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback, Checkpoint, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.callbacks import ProgressBar as AnyProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from lucid_core.evaluation.evaluator import HEADLINES
from lucid_core.pictures.callback import Pictures
from lucid_core.progress import ProgressBar
from lucid_core.types import Task

__all__ = ["TRAINER_DEFAULTS", "callbacks_of", "deterministic_on", "run_loggers"]

#: What ``Trainer`` arguments are when neither a configuration nor the command line names them.
TRAINER_DEFAULTS: dict[str, Any] = {
    "max_epochs": 50,
    "gradient_clip_val": 10.0,
    "deterministic": True,
    # The epoch plan is sharded by the data module, whose samples do not depend on the number of processes.
    "use_distributed_sampler": False,
}


def run_loggers(root: str | None) -> list[Logger]:
    """Make loggers for TensorBoard and CSV, in one new folder ``runs/version_N``."""
    version = _new_version(Path(root or ".", "runs"))
    tensorboard = TensorBoardLogger(root or ".", name="runs", version=version)
    return [tensorboard, CSVLogger(root or ".", name="runs", version=tensorboard.version)]


def callbacks_of(asked: Namespace, given: Sequence[Callback], logs: bool, task: Task) -> list[Callback]:
    """Return the callbacks of a run: those the user gave, then ours of the kinds that were not given.

    Args:
        asked: The settings of the Trainer.
        given: The user's callbacks.
        logs: The run has a logger.
        task: What the run learns, whose AP says which checkpoint is the best one.
    """

    def has(kind: type[Callback]) -> bool:
        return any(isinstance(callback, kind) for callback in given)

    added: list[Callback] = []
    if asked.enable_progress_bar is not False and not has(AnyProgressBar):
        added.append(ProgressBar())
    if logs and not has(LearningRateMonitor):
        added.append(LearningRateMonitor(logging_interval="step"))
    if logs and not has(Pictures):
        added.append(Pictures())
    if asked.enable_checkpointing is not False and not has(Checkpoint):
        # Also to validate and test: Lightning warns where a checkpoint's callback is missing.
        best = f"val/{HEADLINES[task]}"
        added.append(ModelCheckpoint(monitor=best, mode="max", filename="best", enable_version_counter=False))
        # One of its own: save_last copies the best one, and leaves out every epoch that is not better.
        added.append(ModelCheckpoint(filename="last", save_on_train_epoch_end=True, enable_version_counter=False))
    return [*given, *added]


def deterministic_on(asked: bool | str | None, accelerator: object) -> bool | str | None:
    """Return the deterministic setting: on MPS some operations have no such form, so there it becomes a warning."""
    on_mps = torch.backends.mps.is_available() and accelerator in ("auto", "gpu", "mps")
    return "warn" if asked is True and on_mps else asked


def _new_version(runs: Path) -> int | None:
    """Take the next free run folder by making it, so that runs that start together get different ones."""
    # The other processes of a run are told the folder by the first one.
    if getattr(rank_zero_only, "rank", 0) != 0:
        return None
    taken = [int(path.name[8:]) for path in runs.glob("version_*") if path.name[8:].isdigit()]
    for version in count(max(taken, default=-1) + 1):
        try:
            (runs / f"version_{version}").mkdir(parents=True)
        except FileExistsError:
            continue
        return version
    return None

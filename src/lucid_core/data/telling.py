"""What a run says about the problems of its data."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lucid_core.data.records import DataSet

__all__ = ["SHOWN", "warn_of_problems"]

#: Problems of each kind that are shown; the rest is written to a file.
SHOWN = 3


def warn_of_problems(data: DataSet, root: str, split: str, trainer: Trainer | None, folder: str | None) -> None:
    """Warn of the first problems of each kind, and write all of them to a file of the run.

    Args:
        data: The split.
        root: What messages call the data set.
        split: What they call the split.
        trainer: Of the run.
        folder: Where its files go.
    """
    shown, whole = data.report(SHOWN), data.report(None)
    told = f"{root}, {split} split: {shown}"
    if shown != whole and trainer is not None and folder is not None:
        file = Path(folder, f"problems-{split}.txt")
        told += f"\nAll of them are in {file}"
        if trainer.is_global_zero:
            file.parent.mkdir(parents=True, exist_ok=True)
            # File names may hold bytes that are no text.
            file.write_text(f"{whole}\n", "utf-8", "backslashreplace")
    rank_zero_warn(told)

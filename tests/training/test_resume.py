"""A resumed run continues exactly: the whole checkpoint, byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from tests.training.conftest import digest


class Losses(Callback):
    """Collects the loss of every step by its global number."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *_: Any) -> None:
        self.seen.append((trainer.global_step, float(outputs["loss"])))


class StopAfter(Callback):
    """Ends the process's run in the middle of an epoch, as a crash would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise KeyError("stopped")


def saved(trainer: Trainer, path: Path) -> dict[str, Any]:
    trainer.save_checkpoint(path)
    result: dict[str, Any] = torch.load(path, weights_only=True)
    return result


@pytest.mark.parametrize("workers", [0, 2])
def test_two_epochs_and_two_more_equal_four(fit: Callable[..., Trainer], tmp_path: Path, workers: int) -> None:
    data = {"workers": workers, "close_mosaic": 1}
    whole, first, second = Losses(), Losses(), Losses()
    four = digest(saved(fit([whole], max_epochs=4, data=data), tmp_path / "four.ckpt"))

    # max_epochs stays that of the whole run: schedules depend on it.
    class Half(Callback):
        def on_train_epoch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.should_stop = trainer.current_epoch == 1

    keep = ModelCheckpoint(tmp_path, "half", save_top_k=-1, every_n_epochs=2)
    fit([first, Half(), keep], max_epochs=4, enable_checkpointing=True, data=data)
    half = next(tmp_path.glob("half*.ckpt"))
    again = digest(saved(fit([second], ckpt_path=half, max_epochs=4, data=data), tmp_path / "again.ckpt"))

    assert first.seen + second.seen == whole.seen
    assert len(whole.seen) == 12
    assert [place for place in four if four[place] != again[place]] == []
    assert four.keys() == again.keys()


@pytest.mark.parametrize(("workers", "accumulate"), [(0, 1), (2, 1), (0, 3)])
def test_a_stop_in_the_middle_of_an_epoch(
    fit: Callable[..., Trainer], tmp_path: Path, workers: int, accumulate: int
) -> None:
    settings: dict[str, Any] = {"data": {"workers": workers, "batch_size": 2}, "accumulate_grad_batches": accumulate}
    whole, first, second = Losses(), Losses(), Losses()
    complete = digest(saved(fit([whole], **settings), tmp_path / "complete.ckpt"))
    stop = 7 if accumulate == 1 else 3
    keep = ModelCheckpoint(tmp_path, "step-{step}", save_top_k=-1, every_n_train_steps=stop)
    with pytest.raises(KeyError, match="stopped"):
        fit([first, keep, StopAfter(stop)], enable_checkpointing=True, **settings)
    middle = next(tmp_path.glob("step*.ckpt"))
    again = digest(saved(fit([second], ckpt_path=middle, **settings), tmp_path / "again.ckpt"))
    assert first.seen + second.seen == whole.seen
    assert [place for place in complete if complete[place] != again[place]] == []


def test_a_checkpoint_of_a_validation_within_an_epoch(fit: Callable[..., Trainer], tmp_path: Path) -> None:
    settings: dict[str, Any] = {"data": {"batch_size": 2}, "val_check_interval": 2, "enable_checkpointing": True}
    whole, second = Losses(), Losses()
    keep = ModelCheckpoint(tmp_path, "step-{step}", save_top_k=-1)
    complete = digest(saved(fit([whole, keep], **settings), tmp_path / "complete.ckpt"))
    assert (tmp_path / "step-step=7.ckpt").exists()
    again = fit([second], ckpt_path=tmp_path / "step-step=7.ckpt", **settings)
    assert whole.seen[7:] == second.seen
    resumed = digest(saved(again, tmp_path / "again.ckpt"))
    assert [place for place in complete if complete[place] != resumed[place]] == []


def test_the_comparison_sees_a_lost_average(fit: Callable[..., Trainer], tmp_path: Path) -> None:
    """Control: a checkpoint without the averaged weights does not continue to the same bytes."""
    whole = digest(saved(fit(max_epochs=2), tmp_path / "whole.ckpt"))
    keep = ModelCheckpoint(tmp_path, "first", save_top_k=-1, every_n_train_steps=3)
    fit([keep], max_epochs=2, enable_checkpointing=True)
    path = sorted(tmp_path.glob("first*.ckpt"))[0]
    broken = torch.load(path, weights_only=True)
    del broken["ema"]
    torch.save(broken, path)
    again = digest(saved(fit(ckpt_path=path, max_epochs=2), tmp_path / "again.ckpt"))
    different = [place for place in whole if whole[place] != again[place]]
    assert different
    assert all(place.startswith("ema") for place in different)


def test_other_settings_on_resume_are_told(fit: Callable[..., Trainer], tmp_path: Path) -> None:
    saved(fit(max_epochs=1), tmp_path / "one.ckpt")
    told = r"lr 0\.01, weight_decay 0\.0005 of the checkpoint stay in force: model\.lr=0\.5, model\.weight_decay=0 has"
    with pytest.warns(UserWarning, match=told):
        trainer = fit(ckpt_path=tmp_path / "one.ckpt", max_epochs=2, model={"lr": 0.5, "weight_decay": 0.0})
    assert trainer.optimizers[0].param_groups[0]["initial_lr"] == 0.01

"""The bar reads the device when the loggers do, and at no other time."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lucid_core.progress import Figures, ProgressBar

from .standin import Data, Model


class Watched(ProgressBar):
    reads = 0
    asked = 0
    last: Figures

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Figures:
        self.asked += 1
        self.last = super().get_metrics(trainer, pl_module)
        return self.last

    def _read(self, logged: dict[str, Tensor]) -> Figures:
        self.reads += 1
        return super()._read(logged)


def fit(bar: ProgressBar, **options: Any) -> Trainer:
    trainer = Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[bar],
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        **options,
    )
    trainer.fit(Model(["a"]), Data())
    return trainer


@pytest.mark.parametrize("every", [2, 4, 100])
def test_reads_follow_the_loggers(tmp_path: Any, every: int) -> None:
    bar = Watched(refresh_rate=1)
    fit(bar, log_every_n_steps=every, default_root_dir=tmp_path)
    after_validation = 1
    assert bar.asked >= 8
    assert bar.reads == 8 // every + after_validation


def test_it_shows_losses_rate_and_map_and_nothing_of_the_other_branch(tmp_path: Any) -> None:
    bar = Watched(refresh_rate=1)
    fit(bar, log_every_n_steps=2, default_root_dir=tmp_path)
    assert list(bar.last) == ["loss", "o2o_box", "map", "lr"]
    assert bar.last["lr"] == "0.01"


def test_it_names_the_epoch(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    fit(ProgressBar(refresh_rate=1), log_every_n_steps=2, default_root_dir=tmp_path)
    out = capsys.readouterr()
    assert "epoch 1/1" in out.out + out.err

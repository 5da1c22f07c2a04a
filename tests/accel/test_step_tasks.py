"""The whole step of every task, recorded: bytes as natively."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from lucid_accel import StepReplay
from lucid_accel.testing import assert_parity
from lucid_core.data.module import DataModule
from lucid_core.module import Detector
from lucid_core.types import Batch, Task


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


@pytest.mark.parametrize("task", get_args(Task))
def test_the_whole_step_of_a_task_changes_no_byte(
    task: Task, tape: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    data = DataModule(task=task, image_size=64, batch_size=2, workers=0, val_workers=0)
    data.prepare_data()
    loader = iter(data.train_dataloader())
    batches: list[Batch] = [next(loader) for _ in range(9)]

    def detector() -> Detector:
        return Detector(list(data.class_names), task, data.num_points, optimizer="sgd", warmup_epochs=0.5)

    replay = StepReplay(strict=True)
    assert_parity(detector, lambda: batches, [replay], max_epochs=1, gradient_clip_val=1.0)
    # Fuller batches are recorded again.
    assert replay.tally.replayed >= 3

"""Every task through the whole of training: command lines as typed, on generated data."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import get_args

import pytest
import torch

from lucid_core.cli import main
from lucid_core.evaluation.evaluator import HEADLINES
from lucid_core.module import Detector
from lucid_core.objective.build import build_objective
from lucid_core.types import Task

SHORT = (
    "--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--trainer.accelerator=cpu",
    "--trainer.max_epochs=1", "--trainer.log_every_n_steps=1", "--data.workers=0", "--data.val_workers=0",
    "--data.image_size=64", "--data.batch_size=2", "--model.optimizer=sgd",
)  # fmt: skip

#: What a run logs of each task beside what all have.
TERMS: dict[str, set[str]] = {
    "detect": {"o2m_box", "o2m_l1"},
    "segment": {"o2m_box", "o2m_l1", "mask", "semantic"},
    "obb": {"o2m_rbox", "o2m_rl1", "o2m_angle"},
    "keypoints": {"o2m_box", "o2m_l1", "keypoint", "oks"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize("task", get_args(Task))
def test_a_task_is_trained_and_measured_again_from_its_checkpoint(
    task: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    root = f"--trainer.default_root_dir={task}"
    named = [] if task == "detect" else ["--config", f"task-{task}"]
    assert main(["fit", "--config", "demo", *named, root, *SHORT]) == 0
    run = folder / task / "runs" / "version_0"
    with (run / "metrics.csv").open() as file:
        logged = set(next(csv.reader(file)))
    assert {f"train/{name}" for name in TERMS[task]} <= logged
    # Classes of cells are predicted in training alone.
    assert {f"val/{name}" for name in TERMS[task] - {"semantic"}} <= logged
    assert "val/semantic" not in logged
    assert f"val/{HEADLINES[task]}" in logged  # type: ignore[index]
    checkpoint = run / "checkpoints" / "last.ckpt"
    saved = torch.load(checkpoint, weights_only=True)
    assert saved["hyper_parameters"]["task"] == task
    trained = sum(len(group["params"]) for group in saved["optimizer_states"][0]["param_groups"])
    # Whatever is trained has a gradient in every step, and so a momentum.
    assert trained == len(saved["optimizer_states"][0]["state"])
    assert main(["validate", f"--ckpt_path={checkpoint}", root, *SHORT[1:3]]) == 0
    assert main(["fit", f"--ckpt_path={checkpoint}", root, *SHORT, "--trainer.max_epochs=2"]) == 0


def test_gains_are_of_terms_that_the_task_has() -> None:
    assert build_objective("segment", {"mask": 1.5}).gains.mask == 1.5  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="'mask', no term of the task detect; terms are box, cls, l1"):
        Detector(["a"], gains={"mask": 1.0})
    with pytest.raises(ValueError, match="'cls' must be finite"):
        Detector(["a"], "obb", gains={"cls": -1.0})


def test_an_objective_that_learns_is_trained() -> None:
    detector = Detector(["a"], "keypoints", points=3)
    assert any(name.startswith("objective.flow") for name, _ in detector.named_parameters())

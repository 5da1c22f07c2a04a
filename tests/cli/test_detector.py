"""The real thing, as typed: train the demo for a moment, measure it, go on with it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from lucid_core.cli import main
from lucid_core.defaults import run_loggers
from lucid_core.evaluation.evaluator import Evaluator

SHORT = ("--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--trainer.accelerator=cpu")


def test_last_is_the_last_epoch_however_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AP falls from epoch to epoch, so the first one stays the best."""
    monkeypatch.chdir(tmp_path)
    falling = iter([0.9, 0.8, 0.7, 0.6])
    monkeypatch.setattr(Evaluator, "compute", lambda self: {"map": next(falling)})
    argv = ["fit", "--trainer.max_epochs=3", "--data.workers=0", "--data.val_workers=0", "--data.image_size=32"]
    assert main([*argv, "--trainer.num_sanity_val_steps=0", *SHORT]) == 0
    folder = Path("runs/version_0/checkpoints")
    assert sorted(path.name for path in folder.iterdir()) == ["best.ckpt", "last.ckpt"]
    steps = {path.stem: torch.load(path, weights_only=True)["global_step"] for path in folder.iterdir()}
    assert steps == {"best": 2, "last": 6}


def test_a_run_that_ends_before_it_validates_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")
    argv = ["fit", "--trainer.max_steps=1", "--data.workers=0", "--data.val_workers=0", "--data.image_size=32"]
    assert main([*argv, "--trainer.accelerator=cpu"]) == 0
    assert "800 images to train on, 200 to validate, 5 classes, at 32 px" in caplog.text
    assert "map_50" not in caplog.text


def test_runs_that_start_together_have_folders_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "runs" / "version_7").mkdir(parents=True)
    folders = [run_loggers(str(tmp_path))[0].log_dir for _ in range(2)]
    assert [Path(str(folder)).name for folder in folders] == ["version_8", "version_9"]


@pytest.mark.slow
def test_a_run_that_is_told_to_end_says_so(tmp_path: Path) -> None:
    """SIGTERM, as a scheduler sends it: no success, no traceback."""
    command = [sys.executable, "-m", "lucid_core", "fit", "--trainer.accelerator=cpu", "--data.image_size=32"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(
        [*command, "--data.workers=1", "--trainer.enable_progress_bar=false"],
        cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        metrics = tmp_path / "runs/version_0/metrics.csv"
        deadline = time.monotonic() + 120
        while not metrics.exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        run.terminate()
        output = run.communicate(timeout=60)[0]
    finally:
        run.kill()
    assert run.returncode == 143, output
    assert "Traceback" not in output


@pytest.mark.slow
def test_fit_validate_test_and_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level("INFO")

    def table(*argv: str) -> str:
        caplog.clear()
        assert main([*argv, "--data.workers=0", "--data.val_workers=0", "--data.image_size=64", *SHORT]) == 0
        return caplog.text

    trained = table("fit", "--trainer.max_epochs=1")
    assert all(word in trained for word in ("class", "circle", "map_50"))
    checkpoints = Path("runs/version_0/checkpoints")
    assert "map_50" in table("validate", "--ckpt_path", str(checkpoints / "best.ckpt"))
    assert "map_50" in table("test", "--ckpt_path", str(checkpoints / "best.ckpt"), "--trainer.limit_test_batches=1")
    assert "map_50" in table("fit", "--ckpt_path", str(checkpoints / "last.ckpt"), "--trainer.max_epochs=2")

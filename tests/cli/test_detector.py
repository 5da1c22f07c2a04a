"""The real thing, as typed: train the demo for a moment, measure it, go on with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lucid_core.cli import main

SHORT = ("--trainer.limit_train_batches=2", "--trainer.limit_val_batches=1", "--trainer.accelerator=cpu")


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

"""What a run leaves behind, and how another one starts from it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint, TQDMProgressBar

from lucid_core.pictures.callback import Pictures
from lucid_core.progress import ProgressBar

from .conftest import QUIET, Command


def kinds(callbacks: list[object], kind: type) -> int:
    return sum(isinstance(callback, kind) for callback in callbacks)


def test_a_run_folder_holds_configuration_logs_and_checkpoints(lucid: Command) -> None:
    cli = lucid("fit", *QUIET)
    (run,) = Path("runs").iterdir()
    assert run.name == "version_0"
    files = {"config.yaml", "metrics.csv", "checkpoints", "hparams.yaml", "curves.png"}
    assert {path.name for path in run.iterdir()} >= files
    assert len(list(run.glob("events.out.tfevents.*"))) == 1
    assert {path.name for path in (run / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert cli.model.hparams["class_names"] == ["cat", "dog"]
    lucid("fit", *QUIET)
    assert {path.name for path in Path("runs").iterdir()} == {"version_0", "version_1"}


def test_the_best_checkpoint_gives_way_to_a_better_one(lucid: Command) -> None:
    lucid("fit", *QUIET, "--trainer.max_epochs=4")
    folder = Path("runs/version_0/checkpoints")
    assert {path.name for path in folder.iterdir()} == {"best.ckpt", "last.ckpt"}
    best, last = (torch.load(folder / f"{name}.ckpt", weights_only=True) for name in ("best", "last"))
    assert best["global_step"] == last["global_step"] == 32


def test_the_run_folder_can_lie_elsewhere(lucid: Command, tmp_path: Path) -> None:
    lucid("fit --trainer.default_root_dir out", *QUIET)
    assert (tmp_path / "out/runs/version_0/checkpoints/last.ckpt").is_file()
    assert not Path("runs").exists()


def test_what_the_user_names_replaces_ours(lucid: Command) -> None:
    line = (
        "fit --trainer.callbacks+=ModelCheckpoint --trainer.callbacks.filename=mine "
        "--trainer.callbacks+=LearningRateMonitor --trainer.callbacks+=TQDMProgressBar "
        "--trainer.callbacks+=Pictures --trainer.callbacks.every=0 "
        "--trainer.logger=CSVLogger --trainer.logger.save_dir=logs"
    )
    callbacks: list[object] = list(lucid(line, *QUIET).trainer.callbacks)
    assert kinds(callbacks, ModelCheckpoint) == kinds(callbacks, LearningRateMonitor) == 1
    assert kinds(callbacks, TQDMProgressBar) == kinds(callbacks, Pictures) == 1
    assert not list(Path().rglob("*.png"))
    assert kinds(callbacks, ProgressBar) == 0
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "switches",
    [
        "--trainer.logger=false --trainer.enable_checkpointing=false --trainer.enable_progress_bar=false",
        "--trainer.fast_dev_run=1",
        "--trainer.barebones=true",
    ],
)
def test_what_the_user_switches_off_stays_off(lucid: Command, switches: str) -> None:
    callbacks: list[object] = list(lucid(f"fit {switches}", *QUIET[1:]).trainer.callbacks)
    assert not list(Path().glob("runs/*/checkpoints"))
    if "fast_dev_run" not in switches:
        assert kinds(callbacks, ProgressBar) == kinds(callbacks, LearningRateMonitor) == kinds(callbacks, Pictures) == 0


def test_a_checkpoint_brings_its_hyperparameters_and_options_win(lucid: Command) -> None:
    lucid("fit --model.variant s --model.lr 0.5", *QUIET)
    best = "runs/version_0/checkpoints/best.ckpt"
    for command in ("validate", "test"):
        assert lucid(f"{command} --ckpt_path {best}", *QUIET).model.hparams["variant"] == "s"
    moved = Path(best).rename("moved.ckpt")
    cli = lucid(f"validate --ckpt_path {moved} --config {{}} --model.lr=0.25", *QUIET)
    assert (cli.model.hparams["variant"], cli.model.hparams["lr"]) == ("s", 0.25)
    cli = lucid(f"validate --ckpt_path=earlier.ckpt --ckpt_path={moved}", *QUIET)
    assert (cli.model.hparams["variant"], cli.model.hparams["lr"]) == ("s", 0.5)


def test_a_configuration_may_name_the_checkpoint(lucid: Command, tmp_path: Path) -> None:
    lucid("fit", *QUIET)
    (tmp_path / "mine.yaml").write_text("ckpt_path: runs/version_0/checkpoints/best.ckpt")
    cli = lucid("validate --config mine.yaml", *QUIET)
    assert cli.trainer.ckpt_path == "runs/version_0/checkpoints/best.ckpt"


def test_the_last_checkpoint_of_a_fixed_folder_is_found_by_its_word(lucid: Command) -> None:
    line = (
        "fit --config {} --ckpt_path last --trainer.callbacks+=ModelCheckpoint --trainer.callbacks.dirpath=kept "
        "--trainer.callbacks.save_last=true"
    )
    with pytest.warns(UserWarning, match="no last checkpoint available"):
        assert lucid(line, *QUIET).trainer.global_step == 8
    assert lucid(line, *QUIET, "--trainer.max_epochs=2").trainer.global_step == 16


def test_a_run_resumes_from_its_last_checkpoint_alone(lucid: Command) -> None:
    lucid("fit --data.workers 0 --model.lr 0.5", *QUIET, "--trainer.max_epochs=2", "--trainer.limit_train_batches=3")
    last = Path("runs/version_0/checkpoints/last.ckpt")
    cli = lucid(f"fit --ckpt_path {last} --trainer.max_epochs=4")
    assert cli.trainer.global_step == 12
    assert cli.model.hparams["lr"] == 0.5


def test_deterministic_becomes_a_warning_on_mps(lucid: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid_core.defaults import deterministic_on

    assert deterministic_on(True, "cpu") is True
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert deterministic_on(True, "auto") == "warn"
    assert deterministic_on(True, "cpu") is True
    assert deterministic_on(False, "auto") is False

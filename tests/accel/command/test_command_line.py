"""Accelerations on the command line of ``lucid``: by bare name, by path, with options, beside other callbacks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lucid_accel.testing import cpu_engine, digest, first_difference
from lucid_core.cli import main

from .conftest import REPOSITORY, Run, callbacks, warned
from .test_catalogue import AUTO, OURS

QUIET = "--trainer.enable_model_summary=false --trainer.max_epochs=1 --trainer.accelerator=cpu"
NO = "is off, training goes on without it: it needs an NVIDIA GPU, but this run computes on cpu. To get a yes: "


def printed(lucid: Run, capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    with pytest.raises(SystemExit) as stopped:
        lucid(f"{line} --print_config")
    out = capsys.readouterr()
    assert stopped.value.code == 0, out.err
    return dict(yaml.safe_load(out.out))


def refused(lucid: Run, capsys: pytest.CaptureFixture[str], line: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        lucid(line)
    err = capsys.readouterr().err
    assert stopped.value.code == 2
    assert err.count("\n") == 1, err
    return err


@pytest.mark.slow
@pytest.mark.parametrize("word", ["LossReplay", "UpdateReplay"])
def test_one_word_on_a_machine_without_a_gpu_warns_once_and_changes_no_byte(
    site: Path, installed: Path, word: str
) -> None:
    short = "--trainer.max_epochs=1 --trainer.limit_train_batches=3 --trainer.limit_val_batches=1 --data.image_size=32"
    argv = ["fit", *short.split(), "--trainer.accelerator=cpu", "--data.workers=0", "--data.val_workers=0"]
    checkpoint = Path("runs/version_0/checkpoints/last.ckpt")
    assert main(argv) == 0
    native = digest(torch.load(checkpoint, weights_only=True))
    # The paths that the checkpoint names have to be the same too.
    shutil.rmtree("runs")

    path = os.pathsep.join([str(REPOSITORY / "src"), str(site)])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lucid_core", *argv, f"--trainer.callbacks+={word}"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "Replay" in line] == [
        f"lucid: warning: {word} {NO}train on one"
    ]
    assert first_difference(native, digest(torch.load(checkpoint, weights_only=True))) is None


@pytest.mark.parametrize("word", OURS)
@pytest.mark.usefixtures("lucid")
def test_any_of_our_words_without_a_gpu_is_one_warning_and_the_run_is_done(word: str) -> None:
    with warned() as texts:
        assert main(["fit", "--config={}", *QUIET.split(), f"--trainer.callbacks+={word}"]) == 0
    assert texts == [f"{word} {NO}train on one"]


@pytest.mark.slow
def test_the_word_for_all_of_them_says_one_line_without_a_gpu_and_changes_no_byte(site: Path, installed: Path) -> None:
    short = "--trainer.max_epochs=1 --trainer.limit_train_batches=2 --trainer.limit_val_batches=1 --data.image_size=32"
    argv = ["fit", *short.split(), "--trainer.accelerator=cpu", "--data.workers=0", "--data.val_workers=0"]
    outcomes = []
    for words in ([], ["--trainer.callbacks+=AutoAccelerate"]):
        path = os.pathsep.join([str(REPOSITORY / "src"), str(site)])
        variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "lucid_core", *argv, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=variables)
        assert done.returncode == 0, done.stderr
        outcomes.append(digest(torch.load("runs/version_0/checkpoints/last.ckpt", weights_only=True)))
        shutil.rmtree("runs")
    said = [line for line in (done.stderr + done.stdout).splitlines() if "Accelerate" in line or "Replay" in line]
    assert [line.partition("AutoAccelerate ")[2] for line in said] == [
        "arms nothing: it needs an NVIDIA GPU, but this run computes on cpu. To get a yes: train on one"
    ]
    assert first_difference(*outcomes) is None


def test_the_word_for_all_of_them_has_no_options(lucid: Run, capsys: pytest.CaptureFixture[str]) -> None:
    config = printed(lucid, capsys, "fit --config {} --trainer.callbacks+=AutoAccelerate")
    assert [item["class_path"] for item in config["trainer"]["callbacks"]] == ["lucid_accel.AutoAccelerate"]


def test_two_that_exclude_each_other_are_both_off_without_a_gpu(lucid: Run) -> None:
    words = "--trainer.callbacks+=OrthogonalizationReplay --trainer.callbacks+=UpdateReplay"
    with warned() as texts:
        lucid(f"fit --config {{}} {QUIET} {words}")
    assert sorted(texts) == [f"{name} {NO}train on one" for name in ("OrthogonalizationReplay", "UpdateReplay")]


@pytest.mark.parametrize("order", [1, -1])
def test_two_that_exclude_each_other_are_one_line_that_names_both(
    installed: Path, capsys: pytest.CaptureFixture[str], order: int
) -> None:
    parts = {"UpdateReplay": "update.prepare", "OrthogonalizationReplay": "update.prepare.orthogonalize"}
    words = [f"--trainer.callbacks+={name}" for name in list(parts)[::order]]
    with cpu_engine():
        # The classes of the demo: they have an update.
        status = main(["fit", *QUIET.split(), "--data.workers=0", "--data.val_workers=0", *words])
    (held, _), (wanting, _) = list(parts.items())[::order]
    assert status == 1
    assert [line for line in capsys.readouterr().err.splitlines() if "Replay" in line] == [
        f"lucid: error: {wanting} wants {parts[wanting]}, and {held} holds {parts[held]}: one part of the step has one "
        "owner. Name only one of the two. (LUCID_DEBUG=1 shows where)"
    ]


def test_two_words_at_once_give_one_warning_each(lucid: Run) -> None:
    with warned() as texts:
        lucid(f"fit --config {{}} {QUIET} --trainer.callbacks+=LossReplay --trainer.callbacks+=NetworkReplay")
    assert sorted(text.partition(":")[0] for text in texts) == [
        "LossReplay is off, training goes on without it",
        "NetworkReplay is off, training goes on without it",
    ]


def test_a_class_path_in_a_file_is_appended_to_the_callbacks_of_another(lucid: Run, installed: Path) -> None:
    (installed / "a.yaml").write_text("trainer: {callbacks: [LearningRateMonitor]}")
    entry = "{class_path: lucid_accel.LossReplay, init_args: {proof: 'off'}}"
    (installed / "b.yaml").write_text(f"trainer: {{callbacks+: [{entry}]}}")
    with warned() as texts:
        cli = lucid(f"fit --config a.yaml --config b.yaml {QUIET}")
    kept: list[Any] = list(cli.trainer.callbacks)
    assert [type(item).__name__ for item in kept][:2] == ["LearningRateMonitor", "LossReplay"]
    assert kept[1].proof == "off"
    assert len(texts) == 1
    assert texts[0].startswith(f"LossReplay {NO}")


def test_a_printed_configuration_gives_the_same_again(
    lucid: Run, installed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--trainer.callbacks+=LossReplay --trainer.callbacks.on_failure=raise --trainer.callbacks.proof=off"
    first = printed(lucid, capsys, f"fit --config {{}} {words} --trainer.callbacks+=NetworkReplay")
    assert first["trainer"]["callbacks"][0]["class_path"] == "lucid_accel.LossReplay"
    options = first["trainer"]["callbacks"][0]["init_args"]
    assert options == {"proof": "off", "on_failure": "raise", "strict": False, "keep": "auto"}
    (installed / "saved.yaml").write_text(yaml.safe_dump(first))
    assert printed(lucid, capsys, "fit --config saved.yaml") == first


@pytest.mark.parametrize("word", OURS)
def test_any_of_them_is_kept_without_measuring_where_that_is_said(
    lucid: Run, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    config = printed(lucid, capsys, f"fit --config {{}} --trainer.callbacks+={word} --trainer.callbacks.keep=always")
    assert config["trainer"]["callbacks"][0]["init_args"]["keep"] == "always"


@pytest.mark.parametrize("word", OURS)
def test_help_shows_the_options_with_their_docs(lucid: Run, capsys: pytest.CaptureFixture[str], word: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        lucid(f"fit --trainer.callbacks.help={word}")
    text = " ".join(capsys.readouterr().out.split())
    assert stopped.value.code == 0
    for option in ("proof", "on_failure", "strict", "keep"):
        assert f"--trainer.callbacks.{option}" in text
    assert "What a failure to record does" in text
    assert OURS[word].rstrip(".") in text


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("+=LosReplay", "no callback is called 'LosReplay'; did you mean 'LossReplay'?"),
        ("+=Xyzzy", f"those of installed plugins: {', '.join(sorted([*AUTO, *OURS]))}\n"),
        ("+=lucid_accel.LosReplay", "lucid_accel has no class 'LosReplay'; did you mean 'LossReplay'?"),
        ("+=LossReplay --trainer.callbacks.prof=off", "LossReplay has no option 'prof'; did you mean 'proof'?"),
        ("+=LossReplay --trainer.callbacks.x=1", "has no option 'x'; there are proof, on_failure, strict, keep"),
        ("+=LossReplay --trainer.callbacks.keep=alway", "must be auto or always, got 'alway'; did you mean 'always'?"),
        ("+=LossReplay --trainer.callbacks.on_failure=rise", "must be retire or raise, got 'rise'; did you mean"),
    ],
)
def test_what_does_not_exist_is_answered_in_one_line(
    lucid: Run, capsys: pytest.CaptureFixture[str], words: str, answer: str
) -> None:
    assert answer in refused(lucid, capsys, f"fit --config {{}} --trainer.callbacks{words}")


PACKAGED = {
    "auto": ["AutoAccelerate"],
    "every": ["NetworkReplay", "LossReplay", "GradientNormReplay", "UpdateReplay"],
    "loss": ["LossReplay"],
    "network": ["NetworkReplay"],
    "optimizer": ["GradientNormReplay", "UpdateReplay"],
    "replay": ["NetworkReplay", "LossReplay"],
    "step": ["StepReplay"],
}


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_configuration_appends(
    lucid: Run, installed: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (installed / "mine.yaml").write_text("trainer: {callbacks: [ModelSummary]}")
    for given in (f"accel/{name}", f"accel/{name}.yaml", f"{REPOSITORY}/configs/accel/{name}.yaml"):
        config = printed(lucid, capsys, f"fit --config mine.yaml --config {given}")
        assert callbacks(config) == ["ModelSummary", *PACKAGED[name]]


def test_every_packaged_configuration_is_tried_and_lies_at_the_root_too() -> None:
    packaged = REPOSITORY / "src/lucid_accel/configs"
    assert {path.stem for path in packaged.glob("*.yaml")} == set(PACKAGED)
    assert (REPOSITORY / "configs/accel").resolve() == packaged


def test_a_mistyped_one_is_answered_with_the_nearest(lucid: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean 'accel/loss'?" in refused(lucid, capsys, "fit --config accel/los")


def test_kept_out_it_is_neither_known_by_name_nor_by_its_configurations(
    lucid: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCID_DISABLE_PLUGINS", "accel")
    assert "'accel/loss'; packaged ones are bf16, demo" in refused(lucid, capsys, "fit --config accel/loss")

"""``lucid-accel doctor``: the machine, and one run without training it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lucid_accel import doctor
from lucid_accel.__main__ import main
from lucid_accel.graphs import tape
from lucid_accel.testing import cpu_engine
from tests.cli.standin import Model

from .conftest import Run
from .test_catalogue import OURS

CPU = ("--trainer.accelerator=cpu",)
NO_GPU = "it needs an NVIDIA GPU, but this run computes on cpu. To get a yes: train on one"


def test_the_machine_is_described_and_its_recording_has_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for word in ("python 3.", "lucid-core 0.", "lucid-accel 0.", f"torch {torch.__version__}", "lightning 2."):
        assert word in text
    for word in ("GPU: ", "C compiler: ", "Triton: ", "recorded parity: equal, "):
        assert f"\n{word}" in text
    assert torch.cuda.is_available() or "a tape of operator calls, as there is no GPU" in text


@pytest.mark.gpu
def test_on_a_gpu_the_recording_is_a_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert torch.cuda.get_device_name() in text
    assert "steps replayed by CUDA graphs\n" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tape is what records without a GPU")
def test_a_recording_with_other_bytes_is_told_and_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tape._Tape.replay

    def corrupt(self: Any) -> None:
        real(self)
        last = next(item for item in tape._tensors(self._calls[-1][3]))
        last.detach().reshape(-1)[0] += 1e-3

    monkeypatch.setattr(tape._Tape, "replay", corrupt)
    assert main(["doctor"]) == 1
    assert "recorded parity: FAILED: " in capsys.readouterr().out


def test_a_recording_that_retires_fails_though_its_bytes_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hooked(doctor._Probe):
        def on_train_batch_start(self, batch: Tensor, batch_idx: int) -> None:
            if batch_idx == 9:
                self.network.register_forward_hook(lambda *_: None)

    monkeypatch.setattr(doctor, "_Probe", Hooked)
    equal, told = doctor.parity()
    assert not equal
    assert told.startswith("FAILED: AccelerationError: NetworkReplay")
    assert "is retired at batch 9 (hooks)" in told


def test_a_compiler_that_cc_names_is_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert doctor._compiler() == "C compiler: none called 'no-such-compiler', which CC names"


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every step fail."""

    def step(self: Model, batch: Tensor, batch_idx: int) -> Tensor:
        raise AssertionError("a step was made")

    monkeypatch.setattr(Model, "training_step", step)
    monkeypatch.setattr(Model, "validation_step", step)


@pytest.fixture
def asked(
    lucid: Run, untrained: None, installed: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., dict[str, str]]:
    """Ask about a run of the stand-ins; gives the answers by name, and the rest under an empty one."""

    def ask(line: str = "", status: int = 0) -> dict[str, str]:
        (installed / "mine.yaml").write_text("{}")
        assert main(["doctor", "mine.yaml", *CPU, *line.split()]) == status
        out = capsys.readouterr().out
        answers = {"": out}
        for row in out.splitlines():
            if row.startswith(("yes  ", "no   ", "?    ")):
                name, _, text = row[5:].partition(": ")
                answers[name] = f"{row[:5].strip()}: {text}"
        return answers

    return ask


Ask = Callable[..., dict[str, str]]


def test_without_a_gpu_each_one_says_no_with_what_was_seen_and_what_helps(asked: Ask) -> None:
    answers = asked()
    assert {name: answer for name, answer in answers.items() if name} == dict.fromkeys(OURS, f"no: {NO_GPU}")
    assert answers[""].startswith("Model on cpu, precision 32-true, SingleDeviceStrategy in 1 process, SGD\n")


def test_where_the_run_lets_the_best_be_armed_each_says_whether_it_would_be(asked: Ask) -> None:
    auto = "--trainer.callbacks+=AutoAccelerate"
    assert {name: answer for name, answer in asked(auto).items() if name} == dict.fromkeys(OURS, f"no: {NO_GPU}")
    with cpu_engine():
        answers = asked(f"{auto} --trainer.gradient_clip_val=1")
        assert answers["StepReplay"].startswith("yes: AutoAccelerate arms it, without the update, which needs MuSGD, ")
        assert answers["GradientNormReplay"] == "yes: AutoAccelerate leaves it out"
        words = "--trainer.callbacks+=NetworkReplay --trainer.callbacks.module=line"
        answers = asked(f"{words} {auto} --trainer.gradient_clip_val=1")
    assert answers["NetworkReplay"] == "yes: in this run"
    assert answers["GradientNormReplay"] == "yes: AutoAccelerate arms it"
    assert answers["StepReplay"].startswith("no: it needs its part of the step, but StepReplay wants step")


def test_one_that_the_run_names_is_asked_with_its_options_and_others_with_their_defaults(asked: Ask) -> None:
    with cpu_engine():
        words = "--trainer.callbacks+=NetworkReplay --trainer.callbacks.module=line"
        answers = asked(f"{words} --trainer.gradient_clip_val=null")
    assert answers["NetworkReplay"] == "yes: in this run"
    assert answers["LossReplay"].startswith("no: it needs the seam step.objective.detection, but Model has none")
    assert answers["GradientNormReplay"].startswith("no: it needs clipping by norm, but clipping is off")
    for name in ("OrthogonalizationReplay", "UpdateReplay"):
        assert answers[name].startswith("no: it needs the optimizer MuSGD, but this run has SGD. To get a yes: ")


def test_clipping_needs_a_limit_and_no_more(asked: Ask) -> None:
    with cpu_engine():
        answers = asked("--trainer.callbacks+=GradientNormReplay")
    assert answers["GradientNormReplay"] == "yes: in this run"


def test_one_that_the_run_does_not_name_says_how_to_add_it(asked: Ask, stranger: Callable[..., None]) -> None:
    stranger("eager", EAGER, lucid_core__plugins="eager")
    answers = asked()
    assert answers["AlwaysReplay"] == "yes: add --trainer.callbacks+=AlwaysReplay"
    assert answers["RudeReplay"].startswith("no: it needs to answer, but its question failed with KeyError: 'x'")
    assert answers["PickyReplay"].startswith("?: it cannot be made with default options")


EAGER = """
from lucid_accel import Acceleration
from lucid_accel.site import yes
from lucid_core.plugins import hookimpl

class AlwaysReplay(Acceleration):
    def eligible(self, site): return yes()
    def install(self, site): raise AssertionError("installed")

class RudeReplay(AlwaysReplay):
    def eligible(self, site): return {}["x"]

class PickyReplay(AlwaysReplay):
    def __init__(self, k: int): super().__init__()

@hookimpl
def lucid_components(): return [AlwaysReplay, RudeReplay, PickyReplay]
"""


def test_it_is_asked_as_when_training_starts(asked: Ask) -> None:
    """Anomaly mode is on from then on only."""
    with cpu_engine():
        words = "--trainer.callbacks+=NetworkReplay --trainer.callbacks.module=line"
        answers = asked(f"{words} --trainer.detect_anomaly=true")
    assert answers["NetworkReplay"].startswith("no: it needs anomaly mode off, but detect_anomaly is on")


def test_two_of_the_run_that_want_the_same_part_are_told_apart(asked: Ask) -> None:
    with cpu_engine():
        word = "--trainer.callbacks+=NetworkReplay --trainer.callbacks.module=line"
        answers = asked(f"{word} {word} --trainer.callbacks.strict=true")
    assert "NetworkReplay wants step.network, and NetworkReplay holds step.network" in answers[""]
    assert answers[""].count("yes  NetworkReplay: in this run") == 1


def test_nothing_is_written(asked: Ask, installed: Path) -> None:
    before = sorted(installed.rglob("*"))
    asked(
        "--trainer.callbacks+=ModelCheckpoint --trainer.callbacks.dirpath=ckpt --trainer.callbacks+=TQDMProgressBar "
        "--trainer.callbacks+=LearningRateMonitor --trainer.logger=CSVLogger --trainer.logger.save_dir=logs "
        "--trainer.profiler=simple --trainer.default_root_dir=out"
    )
    assert sorted(set(installed.rglob("*")) - {installed / "mine.yaml"}) == before


@pytest.mark.parametrize(
    "words", ["--trainer.barebones=true", "--trainer.fast_dev_run=true", "--trainer.min_epochs=3", "--data.workers=1"]
)
def test_a_run_of_another_kind_is_asked_too(asked: Ask, words: str) -> None:
    assert asked(words)["LossReplay"] == f"no: {NO_GPU}"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--trainer.limit_train_batches=0", "it has nothing to train"),
        ("--trainer.devices=2 --trainer.strategy=ddp", "it would start several processes"),
    ],
)
def test_a_run_that_does_not_come_to_training_is_asked_at_set_up(asked: Ask, words: str, why: str) -> None:
    answers = asked(words)
    assert f"asked at set-up only, not when training starts: {why}\n" in answers[""]
    assert answers["LossReplay"] == f"no: {NO_GPU}"


@pytest.mark.usefixtures("lucid")
def test_a_broken_run_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--config={}", "--data.points=none", *CPU]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("lucid: error: ")
    assert last.endswith("points.json holds no images; name another file")


@pytest.mark.usefixtures("lucid")
@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        (["nowhere"], "no file or packaged configuration is called 'nowhere'"),
        (["--trainer.callbacks+=LosReplay"], "did you mean 'LossReplay'?"),
        (["--config={}", "--model.lrr=1"], "did you mean '--model.lr'?"),
        (["--config={}", "--trainer.devices=x"], "trainer.devices must be auto or -1, a number, or numbers"),
        (["--config={}", "--trainer.callbacks+=Picky", "--trainer.callbacks.every=0"], "Picky: every is 0; it must be"),
    ],
)
def test_a_run_that_is_not_understood_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], answer: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", *argv])
    assert stopped.value.code == 2
    assert answer in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_the_demo_could_use_them_all_but_one_instead_of_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    with cpu_engine():
        assert main(["doctor", "demo", "accel/every", "--data.workers=0", "--data.val_workers=0", *CPU]) == 0
    out = capsys.readouterr().out
    assert "Detector on cpu, precision 32-true, SingleDeviceStrategy in 1 process, MuSGD\n" in out
    for name in ("GradientNormReplay", "LossReplay", "NetworkReplay", "UpdateReplay"):
        assert f"yes  {name}: in this run\n" in out
    assert "no   OrthogonalizationReplay: it needs its part of the step, but OrthogonalizationReplay wants" in out
    assert "and UpdateReplay holds update.prepare: one part of the step has one owner. Name only one of the two." in out
    assert not Path("runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_those_that_the_run_does_not_name_are_asked_each_for_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with cpu_engine():
        assert main(["doctor", "demo", "--data.workers=0", "--data.val_workers=0", *CPU]) == 0
    out = capsys.readouterr().out
    for name in OURS:
        assert f"yes  {name}: add --trainer.callbacks+={name}\n" in out

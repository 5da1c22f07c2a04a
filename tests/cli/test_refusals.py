"""What is not understood is answered in one line with the nearest thing that exists."""

from __future__ import annotations

from collections.abc import Callable
from email.message import Message
from pathlib import Path

import pytest

import lucid_core.cli
from lucid_core import advice
from lucid_core.cli import main

from . import standin
from .conftest import QUIET, Command

Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("fit --modle.lr 1", "no option is called '--modle.lr'; did you mean '--model.lr'?"),
        ("fit --model.lrr=1", "no option is called '--model.lrr'; did you mean '--model.lr'?"),
        ("fit --trainer.max_epoch 3", "did you mean '--trainer.max_epochs'?"),
        ("fit --trainer.callback+=Timer", "did you mean '--trainer.callbacks"),
        ("fit extra", "unexpected argument 'extra'"),
        ("fit --model.lr", "argument --model.lr: expected one argument"),
        ("fit --model.lr abc", "model.lr must be float, got 'abc'"),
        ("fit --model.momentum abc", "model.momentum must be float or null, got 'abc'"),
        ("fit --data.workers many", "data.workers must be int or auto, got 'many'"),
        ("fit --data.workers 1.5", "data.workers must be int or auto, got '1.5'"),
        ("fit --trainer.max_epochs abc", "trainer.max_epochs must be int or null, got 'abc'"),
        ("fit --model.variant N", "model.variant must be n or s or m, got 'N'; did you mean 'n'?"),
        ("fit --model.class_names [a]", "model.class_names cannot be set: it comes from data.class_names"),
        ("fit --trainer.callbacks+=Timr", "no callback is called 'Timr'; did you mean 'Timer'?"),
        ("fit --trainer.callbacks+=Xyzzy", "no callback is called 'Xyzzy'. Bare names work"),
        ("fit --trainer.callbacks+=Recorder --trainer.callbacks.volume=1", "no option 'volume'; there are gain, mode"),
        ("fit --trainer.callbacks.help=EarlyStoping", "did you mean 'EarlyStopping'?"),
        ("fit --trainer.callbacks+=lightning.pytorch.callbacks.Tiner", "did you mean 'Timer'?"),
        (
            "fit --trainer.callbacks+=no_such_package.Replay",
            "No module named 'no_such_package' (install the package that brings 'no_such_package')",
        ),
        ("fit --trainer.callbacks+=torch.nn.Linear", "does not correspond to a subclass of Callback"),
        (
            "fit --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitr=x",
            "EarlyStopping has no option 'monitr'; did you mean 'monitor'?",
        ),
        (
            "fit --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=x --trainer.callbacks.patience=x",
            "EarlyStopping.patience must be int, got 'x'",
        ),
        ("fit --trainer.callbacks+=EarlyStopping", "EarlyStopping needs monitor"),
        (
            "fit --trainer.callbacks+= Recorder",
            "trainer.callbacks has no value: on the command line it stands right after",
        ),
        (
            "fit --trainer.callbacks+=Picky --trainer.callbacks.every=0",
            "error: Picky: every is 0; it must be at least 1\n",
        ),
        (
            "fit --trainer.callbacks=Picky --trainer.callbacks.every=0",
            "error: Picky: every is 0; it must be at least 1\n",
        ),
        (
            "fit --trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=x --trainer.callbacks.mode=up",
            "EarlyStopping: `mode` can be min, max, got up",
        ),
        ("fit --trainer.devices=x", "trainer.devices must be auto or -1, a number, or numbers such as 0,1, got 'x'"),
        ("fit --trainer.devices=[0,x]", "numbers such as 0,1, got '0,x'"),
        ("fit --trainer.devices=-1 --trainer.accelerator=cpu", "must be auto or a number on a CPU, got '-1'"),
        ("fit --trainer.devices=0,1 --trainer.accelerator=cpu", "must be auto or a number on a CPU, got '0,1'"),
        ("fit --trainer.logger=CSVLoger", "no logger is called 'CSVLoger'; did you mean 'CSVLogger'?"),
        ("fit --trainer.strategy dpp", "no strategy is called 'dpp'; did you mean 'ddp'?"),
        ("fit --trainer.accelerator cup", "no accelerator is called 'cup'; did you mean 'cpu'?"),
        ("fit --config detct", "no file or packaged configuration is called 'detct'; did you mean 'detect'?"),
        ("fit --config nowhere/mine.yaml", "no file or packaged configuration is called 'nowhere/mine.yaml'; packaged"),
        ("fit --ckpt_path gone.ckpt", "no checkpoint is called 'gone.ckpt'"),
        ("validate --ckpt_path=gone/best.ckpt", "no checkpoint is called 'gone/best.ckpt'"),
        ("validate", "validate needs a checkpoint to measure, such as --ckpt_path runs/"),
        ("test --config {}", "test needs a checkpoint to measure"),
        ("validate --ckpt_path last", "cannot know which checkpoint is the last one: name its file"),
        ("fit --ckpt_path best", "cannot know which checkpoint is the best one: name its file"),
    ],
)
def test_a_command_line_is_refused_in_one_line(refused: Refused, line: str, answer: str) -> None:
    assert answer in refused(line)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("model: {varriant: s}", "no setting is called 'model.varriant'; did you mean 'model.variant'?"),
        ("modle: {variant: s}", "no setting is called 'modle.variant'; did you mean 'model.variant'?"),
        ("model: {lr: abc}", "model.lr must be float, got 'abc'"),
        ("trainer: {callbacks: [Xyzzy]}", "no callback is called 'Xyzzy'. Bare names work"),
        ("trainer: {callbacks: [{class_path: gone.Replay}]}", "No module named 'gone'"),
        (
            "trainer: {callbacks: [{class_path: Recorder, bogus: 1}]}",
            "trainer.callbacks: 'bogus' stands beside class_path Recorder; write options under init_args",
        ),
        ("trainer: {callbacks: {class_path: Recorder, gain: 1}}", "'gain' stands beside class_path Recorder"),
        ("trainer: {logger: {class_path: CSVLogger, bogus: 1}}", "'bogus' stands beside class_path CSVLogger"),
        ("trainer: {callbacks: [{init_args: {gain: 1}}]}", "Callback has no option 'gain', nor any other\n"),
        ("trainer: {callbacks: [{class_path: Picky, init_args: {every: 0}}]}", "Picky: every is 0; it must be"),
        ("hello", "configuration mine.yaml must hold settings, such as 'trainer:', got 'hello'"),
        ("- a", "configuration mine.yaml must hold settings"),
        ("model: {variant: s\nx", "configuration mine.yaml cannot be read"),
    ],
)
def test_a_configuration_is_refused_in_one_line(refused: Refused, tmp_path: Path, text: str, answer: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    assert answer in refused("fit --config mine.yaml")


@pytest.fixture
def extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this distribution has an extra which is a package of its own, and one which is not."""
    ours = Message()
    ours["Provides-Extra"] = "lucid-absent"
    ours["Provides-Extra"] = "test"
    ours["Requires-Dist"] = 'lucid-absent==1.0; extra == "lucid-absent"'
    ours["Requires-Dist"] = 'pytest>=8; extra == "test"'
    monkeypatch.setattr(advice, "metadata", lambda name: ours)


INSTALL = """(not installed: lucid-absent; pip install "lucid-core[lucid-absent]" brings it)"""


@pytest.mark.usefixtures("extra")
@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        ("AbsentReplay", "no callback is called 'AbsentReplay'"),
        ("{class_path: AbsentReplay}", "no callback is called 'AbsentReplay'"),
        ("lucid_absent.AbsentReplay", "No module named 'lucid_absent'"),
        ("{class_path: lucid_absent.AbsentReplay, init_args: {k: 3}}", "No module named 'lucid_absent'"),
    ],
)
def test_a_class_of_an_extra_that_is_not_installed_says_what_to_install(
    refused: Refused, tmp_path: Path, entry: str, answer: str
) -> None:
    (tmp_path / "mine.yaml").write_text(f"trainer: {{callbacks: [{entry}]}}")
    line = refused("fit --config mine.yaml")
    assert answer in line
    assert line.endswith(f"{INSTALL}\n")


@pytest.mark.usefixtures("extra")
def test_so_does_a_configuration_of_one(refused: Refused) -> None:
    assert refused("fit --config absent/fast").endswith(f"{INSTALL}\n")


@pytest.mark.usefixtures("extra")
def test_a_module_that_is_missing_elsewhere_does_not_name_the_extra(refused: Refused) -> None:
    assert "lucid-absent" not in refused("fit --trainer.callbacks+=no_such_package.Replay")


@pytest.mark.parametrize(("command", "says_so"), [("validate", True), ("test", True), ("fit", False)])
def test_a_run_whose_callbacks_are_gone_can_be_measured_with_another_configuration(
    lucid: Command, refused: Refused, command: str, says_so: bool
) -> None:
    lucid("fit --trainer.callbacks+=Recorder", *QUIET)
    config = Path("runs/version_0/config.yaml")
    config.write_text(config.read_text().replace("tests.cli.standin.Recorder", "gone_package.Recorder"))
    line = refused(f"{command} --ckpt_path runs/version_0/checkpoints/best.ckpt")
    assert "(install the package that brings 'gone_package')" in line
    assert ("; or name a configuration that does without it: --config FILE\n" in line) is says_so
    lucid(f"{command} --ckpt_path runs/version_0/checkpoints/best.ckpt --config {{}}", *QUIET)


def test_a_wrong_setting_is_named_in_full_with_print_config_too(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("model: {varriant: s}")
    assert "'model.varriant'; did you mean 'model.variant'?" in refused("fit --config mine.yaml --print_config")


@pytest.fixture
def main_on_standins(monkeypatch: pytest.MonkeyPatch, packaged: Path) -> None:
    real = lucid_core.cli.run
    monkeypatch.setattr(lucid_core.cli, "run", lambda argv, *_: real(argv, standin.Model, standin.Data))


@pytest.mark.usefixtures("main_on_standins")
@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("fit --data.points none", "lucid: error: points.json holds no images; name another file\n"),
        ("fit --data.points late", "lucid: error: points/7.png is cut short; replace the file\n"),
        ("fit --data.points late --data.workers 1", "lucid: error: points/7.png is cut short; replace the file\n"),
    ],
)
def test_a_run_that_fails_says_why_in_one_line(capsys: pytest.CaptureFixture[str], line: str, answer: str) -> None:
    assert main(line.split()) == 1
    last = capsys.readouterr().err.splitlines(keepends=True)[-1]
    assert last.startswith("lucid: error: ")
    assert answer in last


@pytest.mark.usefixtures("main_on_standins")
def test_the_traceback_is_there_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCID_DEBUG", "1")
    with pytest.raises(ValueError, match="no images"):
        main(["fit", "--data.points", "none"])
    with pytest.raises(ValueError, match="every is 0"):
        main(["fit", "--trainer.callbacks+=Picky", "--trainer.callbacks.every=0"])


def test_a_checkpoint_beside_the_mistyped_one_is_named(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "best.ckpt").touch()
    assert "no checkpoint is called 'bset.ckpt'; did you mean 'best.ckpt'?" in refused("fit --ckpt_path bset.ckpt")
    (tmp_path / "mine.yaml").write_text("ckpt_path: bets.ckpt")
    assert "did you mean 'best.ckpt'?" in refused("fit --config mine.yaml")


def test_a_file_that_is_no_checkpoint_is_named(lucid: Command, tmp_path: Path) -> None:
    (tmp_path / "best.ckpt").write_bytes(b"hello")
    with pytest.raises(ValueError, match=r"best\.ckpt is no checkpoint"):
        lucid("validate --ckpt_path best.ckpt")

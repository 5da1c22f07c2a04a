"""``lucid-accel bench``: whole fits in turn, what is compared, what is written, what is advised, and how it fails.

Every fit has a process of its own; most are forked from this one, which has torch already, and train the stand-ins.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# What each fit would import anew.
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401
import pytest
import torch.utils.tensorboard  # noqa: F401
from lightning.pytorch import Callback, Trainer

from lucid_accel.__main__ import main
from lucid_accel.bench import fit, process, rounds
from lucid_accel.bench.figures import interval, summary
from lucid_accel.bench.probe import Probe
from lucid_accel.bench.words import advice, duration, idle, retired
from lucid_accel.testing import cpu_engine
from lucid_core.data.shapes import write_shapes
from tests.cli.standin import Data, Model

from .conftest import REPOSITORY, Run

Stranger = Callable[..., None]
CPU = ("--trainer.accelerator=cpu", "--trainer.max_epochs=1", "--trainer.enable_progress_bar=false")
LINE = ("--trainer.callbacks+=NetworkReplay", "--trainer.callbacks.module=line")

STRANGERS = '''
from lightning.pytorch import Callback
from lucid_accel import Acceleration
from lucid_accel.site import yes
from lucid_core.plugins import hookimpl

class Quiet(Acceleration):
    """Does nothing."""
    def eligible(self, site): return yes()
    def install(self, site): return lambda: None

class Demanding(Quiet):
    """Needs an argument."""
    def __init__(self, k: int): super().__init__()

class Dies(Callback):
    def on_train_start(self, trainer, pl_module):
        if any(isinstance(item, Quiet) for item in trainer.callbacks):
            raise OSError("Dies: gone")

@hookimpl
def lucid_components(): return [Quiet, Demanding]
'''

#: Apart from the others: AutoAccelerate would arm the first one.
CHANGERS = '''
import torch
from lucid_core.plugins import hookimpl
from strangers import Quiet

class Changes(Quiet):
    """Changes a byte."""
    def on_train_batch_end(self, trainer, pl_module, *args):
        super().on_train_batch_end(trainer, pl_module, *args)
        with torch.no_grad():
            pl_module.line.bias.add_(1e-6)

class Loose(Changes):
    """Says so."""
    numerics = "tolerance"

@hookimpl
def lucid_components(): return [Changes, Loose]
'''


@pytest.fixture
def forked(lucid: Run, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Fork the process of each fit, and keep the folders of fits apart; gives the arms of the fits, in order."""
    arms: list[list[str]] = []

    def launch(command: Sequence[str], root: Path) -> int:
        arms.append(json.loads(command[3])["arm"])
        with (root / "stdout").open("wb") as out, (root / "stderr").open("wb") as err:
            child = os.fork()
            if child == 0:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                for handler in logging.getLogger("lightning.pytorch").handlers:
                    vars(handler)["stream"] = sys.stderr
                status = 70
                try:
                    status = fit.main(command[3:])
                except SystemExit as stopped:
                    status = int(stopped.code or 0)
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    stranger("strangers", STRANGERS, lucid_core__plugins="strangers")
    monkeypatch.setattr(process, "launch", launch)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return arms


@pytest.fixture
def changers(stranger: Stranger) -> None:
    """Install those that change bytes."""
    stranger("changers", CHANGERS, lucid_core__plugins="changers")


def bench(*argv: str) -> int:
    Path("mine.yaml").write_text("{}")
    return main(["bench", "mine.yaml", *CPU, *argv])


def record() -> dict[str, Any]:
    return dict(json.loads(Path("r.json").read_text()))


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_detector_on_real_files_in_fresh_processes(site: Path, installed: Path) -> None:
    write_shapes(installed / "tiny", train=8, val=2, size=64)
    before = sorted(installed.rglob("*"))
    path = os.pathsep.join([str(REPOSITORY / "src"), str(site)])
    command = [sys.executable, "-m", "lucid_accel", "bench", "--data.root", "tiny", "--pairs=1", "--record", "r.json"]
    command += ["--plot=p.png", "--data.image_size", "64", "--data.batch_size", "4", *CPU]
    command += ["--data.workers=0", "--data.val_workers=0", "--arms", "NetworkReplay+LossReplay"]
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split(" s")[0].rpartition(" ")[0] for line in lines[:2]] == [
        "round 1 of 1: native",
        "round 1 of 1: NetworkReplay+LossReplay",
    ]
    assert "parity green: 2 fits, each with " in done.stdout
    assert lines[-2:] == [
        "NetworkReplay, LossReplay did nothing: off: it needs an NVIDIA GPU, but this run computes on cpu. To get a "
        "yes: train on one",
        "Nothing to add here: no acceleration did anything in this run.",
    ]
    assert sorted(set(installed.rglob("*")) - set(before)) == [installed / "p.png", installed / "r.json"]
    assert Path("p.png").read_bytes()[:4] == b"\x89PNG"

    told = record()
    (row,) = told["rows"]
    native, replayed = row["arms"]["native"], row["arms"]["NetworkReplay+LossReplay"]
    assert int(row["parity"].split()[5]) > 2000
    assert native["step_ms"] > 0
    assert native["ap"] == replayed["ap"]
    assert replayed["seconds_saved"]["interval_95"] is None
    assert [item["name"] for item in replayed["report_of_the_last_fit"]["accelerations"]] == [
        "NetworkReplay",
        "LossReplay",
    ]
    assert told["settings"]["command"] == command[4:]
    assert told["configuration"]["data"]["image_size"] == 64
    assert "default_root_dir" not in told["configuration"]["trainer"]
    assert told["versions"]["lucid-accel"] == "0.1.0"


def test_arms_take_turns_and_their_figures_are_those_of_their_fits(
    forked: list[list[str]], capsys: pytest.CaptureFixture[str], installed: Path
) -> None:
    assert bench("--arms", "Quiet", "NetworkReplay+Quiet", "--pairs", "2", "--record=r.json") == 0
    arms: list[list[str]] = [[], ["Quiet"], ["NetworkReplay", "Quiet"]]
    assert forked == [*arms, arms[1], arms[2], arms[0]]
    out = capsys.readouterr().out
    assert [" left" in line for line in out.splitlines()[:6]] == [False] * 2 + [True] * 3 + [False]
    told = record()
    row = told["rows"][0]
    assert row["parity"].startswith("green: 6 fits, each with ")
    for found in row["arms"].values():
        assert len(found["seconds"]["all"]) == 2
        assert found["seconds"]["min"] <= found["seconds"]["median"] <= found["seconds"]["max"]
    native, quiet = (row["arms"][arm]["seconds"]["all"] for arm in ("native", "Quiet"))
    saved = row["arms"]["Quiet"]["seconds_saved"]
    assert saved["min"] == pytest.approx(min(n - q for n, q in zip(native, quiet, strict=True)), abs=2e-3)
    low, high = saved["interval_95"]
    assert low < saved["median"] < high
    assert told["settings"]["rounds"] == 2
    assert not any((installed / "temporary").iterdir())


@pytest.mark.usefixtures("changers")
def test_other_bytes_are_said_loudly_and_nothing_is_timed(
    forked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--arms", "Changes", "--record=r.json", "--plot=p.png") == 1
    captured = capsys.readouterr()
    assert "PARITY IS red: Changes in round 1 has other bytes than the native fit, first at " in captured.err
    # Natives were compared before Changes was blamed.
    assert forked == [[], ["Changes"], []]
    (row,) = record()["rows"]
    assert row["parity"].startswith("red: Changes in round 1")
    assert row["arms"] == {}
    assert not Path("p.png").exists()
    assert "Add " not in captured.out


def test_bytes_of_a_later_round_are_compared_too(forked: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    real = rounds.run
    seen: list[Any] = []

    def third_is_other(*args: Any, **kwargs: Any) -> process.Fit:
        done = real(*args, **kwargs)
        seen.append(done)
        if len(seen) == 3:
            done.outcome["row 0 of the log/train/loss"] = "'0'"
        return done

    monkeypatch.setattr(rounds, "run", third_is_other)
    assert bench("--arms", "Quiet", "--pairs=2") == 1
    assert forked == [[], ["Quiet"], ["Quiet"], []]


UNSTEADY = """
import os
import torch
from lightning.pytorch import Callback

class Unsteady(Callback):
    def on_train_start(self, trainer, pl_module):
        with torch.no_grad():
            pl_module.line.bias.fill_(os.getpid())
"""


def test_where_native_fits_differ_no_acceleration_is_blamed(
    forked: list[list[str]], stranger: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger("unsteady", UNSTEADY)
    assert bench("--trainer.callbacks+=unsteady.Unsteady", "--arms=Quiet") == 1
    err = capsys.readouterr().err
    assert "PARITY IS unprovable: two native fits differ, first at best.ckpt/state_dict/line." in err
    assert "red" not in err


@pytest.mark.usefixtures("changers")
def test_one_that_promises_no_native_bytes_is_not_compared(
    forked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--arms", "Loose", "Quiet", "--pairs=1", "--record=r.json") == 0
    assert record()["rows"][0]["parity"].startswith("green: 2 fits, each with ")
    assert "; Loose promises no native bytes and was not compared" in capsys.readouterr().out


def test_a_run_that_names_accelerations_is_compared_with_itself_without_them(
    forked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options are kept: without ``module`` NetworkReplay finds nothing in the stand-in."""
    with cpu_engine():
        assert bench(*LINE, "--pairs=2", "--record=r.json") == 0
    assert forked == [[], ["NetworkReplay"], ["NetworkReplay"], []]
    arms = record()["rows"][0]["arms"]
    (told,) = arms["NetworkReplay"]["report_of_the_last_fit"]["accelerations"]
    assert told["replayed"] > 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(("Nothing pays in a fit like this one", "Keep NetworkReplay: it saves"))


def test_a_run_that_names_none_is_compared_with_the_best_that_it_allows(
    forked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of strangers, whose ``Quiet`` takes anything, are among them."""
    assert bench("--pairs=1", "--record=r.json") == 0
    assert forked == [[], ["AutoAccelerate"]]
    said = record()["rows"][0]["arms"]["AutoAccelerate"]["said"]
    # Other tests may have silenced Lightning in this process, of which each fit here is a fork.
    assert all(line.startswith("AutoAccelerate arms ") for line in said)
    assert capsys.readouterr().out.splitlines()[-1] == "Nothing to add here: no acceleration did anything in this run."


def test_the_native_fit_of_a_run_that_names_the_best_has_none(forked: list[list[str]]) -> None:
    with cpu_engine():
        assert bench("--trainer.callbacks+=AutoAccelerate", "--pairs=1", "--record=r.json") == 0
    arms = record()["rows"][0]["arms"]
    assert forked == [[], ["AutoAccelerate"]]
    assert arms["AutoAccelerate"]["report_of_the_last_fit"]["accelerations"]
    assert "report_of_the_last_fit" not in arms["native"]


def test_only_record_and_plot_are_written_whatever_the_run_would_write(
    forked: list[list[str]], installed: Path
) -> None:
    (installed / "mine.yaml").write_text("{}")
    before = sorted(installed.rglob("*"))
    words = ["--trainer.callbacks+=ModelCheckpoint", "--trainer.callbacks.dirpath=ckpt", "--trainer.logger=CSVLogger"]
    words += ["--trainer.logger.save_dir=logs", "--trainer.default_root_dir=out", "--trainer.profiler=SimpleProfiler"]
    words += ["--trainer.profiler.dirpath=times", "--trainer.profiler.filename=times"]
    assert bench(*words, "--arms=Quiet", "--pairs=1", "--record=r.json", "--plot=p.png") == 0
    assert sorted(set(installed.rglob("*")) - set(before)) == [installed / "p.png", installed / "r.json"]
    assert int(record()["rows"][0]["parity"].split()[5]) > 10


@pytest.mark.usefixtures("changers")
@pytest.mark.parametrize("words", ["--trainer.enable_checkpointing=false", "--trainer.fast_dev_run=2"])
def test_a_run_that_keeps_no_checkpoint_is_compared_too(
    forked: list[list[str]], capsys: pytest.CaptureFixture[str], words: str
) -> None:
    assert bench(words, "--arms=Changes", "--pairs=1") == 1
    assert "first at end.ckpt/state_dict/line.bias" in capsys.readouterr().err


def test_a_run_without_validation_has_no_ap(forked: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--trainer.limit_val_batches=0", "--arms=Quiet", "--pairs=1", "--record=r.json") == 0
    assert "AP: none, as this run logs no val/map" in capsys.readouterr().out
    assert record()["rows"][0]["arms"]["native"]["ap"] is None


def test_the_log_is_compared_and_ap_is_the_last_one_in_it(forked: list[list[str]], installed: Path) -> None:
    (installed / "mine.yaml").write_text("{}")
    options = ["--config=mine.yaml", *CPU, "--trainer.max_epochs=2", "--trainer.log_every_n_steps=1"]
    found = process.run(options, ["Quiet"])
    logged = [value for place, value in found.outcome.items() if place.endswith(" of the log/val/map")]
    assert len(set(logged)) == 2
    assert repr(str(found.ap)) == logged[-1]
    assert len([place for place in found.outcome if place.endswith(" of the log/train/loss")]) == 16
    assert not [place for place in found.outcome if "accel/" in place]
    assert {place.partition("/")[0] for place in found.outcome} >= {"last.ckpt", "best.ckpt"}


@pytest.mark.parametrize(
    ("words", "arm", "last"),
    [
        ("--data.points=none", "native", "lucid: error: points.json holds no images; name another file"),
        ("--data.points=late", "native", "lucid: error: points/7.png is cut short; replace the file"),
        ("--trainer.callbacks+=strangers.Dies", "Quiet", "Dies: gone"),
    ],
)
def test_a_fit_that_fails_is_named_with_its_last_lines(
    forked: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    installed: Path,
    words: str,
    arm: str,
    last: str,
) -> None:
    assert bench(words, "--arms=Quiet") == 1
    err = capsys.readouterr().err
    assert err.startswith(f"lucid-accel: error: the {arm} fit of round 1 ended with status ")
    assert last in err.splitlines()[-1]
    assert len(err.splitlines()) <= process.SHOWN + 1
    assert not any((installed / "temporary").iterdir())


@pytest.mark.parametrize(
    ("argv", "answer"),
    [
        ([], "lucid-accel: error: bench needs a run, as lucid fit takes it"),
        (["--config={}", "--pairs=0"], "--pairs is 0; a comparison needs at least 1 round"),
        (["--config={}", "--pairs=x"], "argument --pairs: invalid int value: 'x'"),
        (["--config={}", "--arms", "native"], "--arms takes accelerations, those of one arm joined by +, got 'native'"),
        (["--config={}", "--arms", "A++B"], "--arms takes accelerations, those of one arm joined by +, got 'A++B'"),
        (["--config={}", "--record=no/r.json"], "no/r.json cannot be written: it is a folder, or its folder does not"),
        (["--config={}", "--plot=."], ". cannot be written: it is a folder"),
        (["--config={}", "--plot=p.docx"], "p.docx cannot be written: pictures are "),
        (["nowhere"], "lucid: error: no file or packaged configuration is called 'nowhere'"),
        (["--config={}", "--model.lrr=1"], "did you mean '--model.lr'?"),
        (["--config={}", "--arms", "Quiet", "LosReplay"], "no acceleration is called 'LosReplay'; did you mean Loss"),
        (["--config={}", "--arms", "Demanding"], "Demanding cannot be made with default options, so name it in the r"),
    ],
)
@pytest.mark.usefixtures("forked")
def test_what_is_not_understood_is_refused_in_one_line_before_anything_is_trained(
    capsys: pytest.CaptureFixture[str], argv: list[str], answer: str
) -> None:
    try:
        status = main(["bench", *argv])
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    captured = capsys.readouterr()
    assert status == 2
    assert answer in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_options_that_ask_for_no_fit_are_answered(forked: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--print_config") == 0
    assert "max_epochs: 1" in capsys.readouterr().out
    assert len(forked) == 1


def test_an_interrupt_is_one_line_and_complete_rounds_stay_recorded(
    forked: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], installed: Path
) -> None:
    real = process.launch

    def interrupted(command: Sequence[str], root: Path) -> int:
        if len(forked) == 3:
            signal.raise_signal(signal.SIGINT)
        return real(command, root)

    monkeypatch.setattr(process, "launch", interrupted)
    assert bench("--arms=Quiet", "--record=r.json") == 130
    assert capsys.readouterr().err == (
        "\nlucid-accel: interrupted in the native fit of round 2; the record r.json holds 1 round\n"
    )
    assert record()["settings"]["rounds"] == 1
    assert not any((installed / "temporary").iterdir())


def test_told_to_end_it_ends_what_it_started(
    forked: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "launch", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert bench("--arms=Quiet") == 143
    assert capsys.readouterr().err == "\nlucid-accel: told to end in the native fit of round 1\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_command_does_not_outlive_the_wait_for_it(tmp_path: Path) -> None:
    code = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(60)"
    command = [sys.executable, "-c", code.replace("'pid'", repr(str(tmp_path / "pid")))]

    def interrupt() -> None:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        process.launch(command, tmp_path)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_step_is_the_second_half_of_an_epoch_without_validation() -> None:
    class Sleep(Callback):
        def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
            time.sleep(0.3 if trainer.global_step % 4 < 2 else 0.01)

        def on_validation_epoch_start(self, *args: Any) -> None:
            time.sleep(0.3)

    probe, quiet = Probe(False), dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    trainer = Trainer(accelerator="cpu", max_epochs=2, val_check_interval=0.5, callbacks=[Sleep(), probe], **quiet)
    trainer.fit(Model(["a"]), Data())
    assert 10 <= (probe.figures()["step_ms"] or 0) < 60
    assert len(probe._steps) == 4


@pytest.mark.parametrize(("epochs", "of", "batches"), [(1, 8, 5), (40, 8, 5), (40, 7, 5), (2, 3, 3)])
def test_a_profile_is_of_few_batches_late_in_the_fit_and_ends_it(
    forked: list[list[str]], stranger: Stranger, installed: Path, epochs: int, of: int, batches: int
) -> None:
    """Without a GPU it sees nothing of one."""
    (installed / "mine.yaml").write_text("{}")
    stranger("counted", COUNTED)
    options = ["--config=mine.yaml", *CPU, f"--trainer.max_epochs={epochs}", "--trainer.callbacks+=counted.Counted"]
    options += [f"--trainer.limit_train_batches={of}"]
    found = process.run(options, [], profile=True)
    assert (found.measured["busy_ms"], found.measured["kernels"]) == (0.0, 0)
    assert "step_ms" not in found.measured
    before, opened, ended = map(int, (installed / "seen").read_text().split())
    assert ended - opened == batches
    assert opened == before


COUNTED = """
from lightning.pytorch import Callback
from lucid_accel.bench.probe import BEFORE, Probe

class Counted(Callback):
    def on_exception(self, trainer, pl_module, exception):
        (probe,) = (item for item in trainer.callbacks if isinstance(item, Probe))
        n = trainer.num_training_batches
        last = n * (trainer.max_epochs - 1)
        before = min(BEFORE, max(last, last + n - 5))
        # The next one from which a whole profile fits into the epoch.
        while before % n and before % n + 5 > n:
            before += 1
        open("seen", "w").write(f"{before} {probe._opened} {probe._batches}")
"""


def test_figures_are_sums_of_their_values() -> None:
    assert summary([3.0, 1.0, 2.0, 9.0]) == {"median": 2.5, "min": 1.0, "max": 9.0}
    # Student's t of two degrees of freedom is 4.30, and the standard error of 1, 2, 3 is 1 / sqrt(3).
    assert interval([1.0, 2.0, 3.0]) == [-0.483, 4.483]
    assert interval([1.0]) is None


def row(**saved: tuple[float, float, float]) -> dict[str, Any]:
    """Figures of arms of which median and interval of the saved seconds are known."""
    arms: dict[str, Any] = {"native": {"step_ms": 100.0}}
    for arm, (low, median, high) in saved.items():
        report = {"accelerations": [{"name": arm, "replayed": 9, "setup_seconds": 4.0}]}
        arms[arm] = {
            "seconds_saved": {"median": median, "interval_95": [low, high]},
            "percent_saved": 10 * median,
            "step_ms": 20.0,
            "report_of_the_last_fit": report,
        }
    return {"arms": arms}


@pytest.mark.parametrize(
    ("figures", "named", "words"),
    [
        (row(A=(1, 2, 3)), [], "Add --trainer.callbacks+=A: it saves 2.0 s of a fit (1.0 to 3.0), 20 %."),
        (row(A=(1, 2, 3), B=(2, 4, 6)), [], "Add --trainer.callbacks+=B: it saves 4.0 s"),
        (row(A=(1, 2, 3), B=(-2, 4, 6)), [], "Add --trainer.callbacks+=A: it saves 2.0 s"),
        (row(A=(1, 2, 3)), ["A"], "Keep A: it saves 2.0 s"),
        (row(A=(1, 2, 3)), ["C"], "Add --trainer.callbacks+=A and leave out C: it saves 2.0 s"),
        (row(A=(-1, 2, 5)), [], "Nothing pays in a fit like this one: no time saved is above chance. A step with A "),
        (row(A=(-1, 2, 5)), [], "takes 20.0 ms instead of 100.0, so a fit of many more than 50 steps may gain; "),
        (row(A=(-1, 2, 5)), ["A"], "above chance; leave out A. A step"),
    ],
)
def test_the_advice_follows_from_the_figures(figures: dict[str, Any], named: list[str], words: str) -> None:
    assert words in advice(figures, named)


def test_what_did_nothing_and_what_stopped_is_told_from_reports_and_from_the_screen() -> None:
    rows = [
        {"name": "A", "replayed": 0, "verdict": "off: no", "native": {}, "state": "ineligible"},
        {"name": "B", "replayed": 0, "verdict": "", "native": {"warmup": 4}, "state": "armed"},
        {
            "name": "C",
            "replayed": 7,
            "verdict": "retired at batch 9 (hooks): one came",
            "native": {},
            "state": "retired",
        },
        {"name": "D", "replayed": 7, "verdict": "", "native": {}, "state": "recorded"},
    ]
    arms = {
        "native": {},
        "A+B+C+D": {"report_of_the_last_fit": {"accelerations": rows}},
        "E": {"report_of_the_last_fit": None, "said": ["E arms nothing: no GPU"]},
        "F": {"report_of_the_last_fit": None, "said": []},
    }
    nothing = {"A": "off: no", "B": "4 warmup", "E": "it arms nothing: no GPU", "F": "it reported nothing"}
    assert idle({"arms": arms}) == nothing
    assert retired({"arms": arms}) == {"C": "retired at batch 9 (hooks): one came"}


def test_one_round_advises_nothing(forked: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    with cpu_engine():
        assert bench(*LINE, "--pairs=1") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("One round cannot tell a gain from chance: ask for more")


@pytest.mark.parametrize(("seconds", "words"), [(4.4, "4 s"), (130, "2 min"), (7300, "2 h 2 min")])
def test_what_is_left_is_said_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_on_a_gpu_steps_are_profiled_and_memory_is_known(
    installed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, site: Path
) -> None:
    path = [str(REPOSITORY / "src"), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    write_shapes(installed / "tiny", train=64, val=4, size=64)
    options = ["--data.root=tiny", "--data.image_size=64", "--data.batch_size=4", "--trainer.max_epochs=3"]
    arms = ["--arms", "NetworkReplay+LossReplay", "--pairs=1", "--record=r.json"]
    assert main(["bench", "bf16", *options, *arms]) == 0, capsys.readouterr().err
    for found in record()["rows"][0]["arms"].values():
        assert 0 < found["busy_ms"] < found["step_ms"]
        assert found["kernels"] > 500
        assert 0 < found["allocated_mib"] <= found["reserved_mib"]
    assert "GPU busy" in capsys.readouterr().out

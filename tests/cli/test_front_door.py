"""What needs no torch is answered at once; the rest costs little more than Lightning's own import."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from lucid_core import __version__
from lucid_core.__main__ import COMMANDS, HELP

SOURCE = Path(__file__).parents[2] / "src"
CHECKED = """
import sys
from lucid_core.__main__ import main
status = main()
assert not {"torch", "lightning", "numpy", "jsonargparse"} & set(sys.modules), "a heavy import"
sys.exit(status)
"""


def python(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, env=environment)


@pytest.mark.parametrize(
    ("argv", "status", "text"),
    [
        ([], 0, "usage: lucid <command>"),
        (["--help"], 0, "validate"),
        (["-h"], 0, "lucid fit"),
        (["--version"], 0, f"lucid-core {__version__}\n"),
        (["plugins"], 0, ""),
        (["fitt"], 2, "lucid: error: no command is called 'fitt'; did you mean fit?"),
        (["frobnicate"], 2, "Commands are fit, validate, test, "),
        (["--confg", "x"], 2, "no command is called '--confg'"),
    ],
)
def test_the_front_door_imports_nothing_heavy(argv: list[str], status: int, text: str) -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = python(CHECKED, *argv)
        seconds.append(time.perf_counter() - start)
    assert done.returncode == status, done.stderr
    assert text in (done.stdout if status == 0 else done.stderr)
    assert min(seconds) < 0.5


@pytest.mark.slow
def test_help_of_fit_costs_at_most_a_second_more_than_lightning() -> None:
    code = """
import sys, time
import lightning.pytorch.cli
start = time.process_time()
from lucid_core.__main__ import main
try:
    main()
except SystemExit as stopped:
    assert stopped.code == 0
print("seconds", time.process_time() - start, file=sys.stderr)
"""
    done = python(code, "fit", "--help")
    assert "--trainer.max_epochs" in done.stdout, done.stderr
    assert float(done.stderr.rpartition("seconds")[2]) < 1.0


def test_names_that_a_terminal_cannot_show_are_escaped() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    line = [sys.executable, "-m", "lucid_core", "données"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "donn\\xe9es" in done.stderr


@pytest.fixture
def closed() -> Iterator[int]:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def into(stdout: int, *argv: str, **variables: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **variables}
    line = [sys.executable, "-m", "lucid_core", *argv]
    done = subprocess.run(line, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
    return done.returncode, done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], ["plugins"], ["data", "--help"], ["data", "tiles", "--help"], ["predict", "-h"]]
)
def test_a_reader_that_leaves_early_sees_no_traceback(closed: int, argv: list[str], unbuffered: str) -> None:
    assert into(closed, *argv, PYTHONUNBUFFERED=unbuffered) == (0, "")


@pytest.mark.slow
def test_a_reader_of_the_help_of_fit_may_leave(closed: int) -> None:
    assert into(closed, "fit", "--help") == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_tiles_are_complete_though_nobody_reads_what_became_of_them(
    closed: int, tmp_path: Path, unbuffered: str
) -> None:
    for folder in ("images", "labelTxt"):
        (tmp_path / "dota/train" / folder).mkdir(parents=True)
    Image.new("RGB", (100, 80)).save(tmp_path / "dota/train/images/a.png")
    (tmp_path / "dota/train/labelTxt/a.txt").write_text("9 9 40 9 40 20 9 20 ship 0\n")
    argv = ["data", "tiles", str(tmp_path / "dota"), str(tmp_path / "out"), "--layout", "dota"]
    assert into(closed, *argv, PYTHONUNBUFFERED=unbuffered) == (0, "")
    assert len(list((tmp_path / "out/train").iterdir())) == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_stays_is_told_all(unbuffered: str, tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w+") as out:
        assert into(out.fileno(), "--help", PYTHONUNBUFFERED=unbuffered) == (0, "")
        out.seek(0)
        assert out.read() == HELP.format(commands="\n".join(f"  {name:<9} {text}" for name, text in COMMANDS.items()))

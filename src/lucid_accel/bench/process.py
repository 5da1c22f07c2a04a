"""Runs one fit of a comparison in a fresh process, and reads what it left."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lucid_accel import report
from lucid_accel.bench.fit import RESULT, Order
from lucid_accel.testing import Outcome, digest

__all__ = ["Done", "Failure", "Fit", "launch", "outcome_of", "run"]

#: What of a checkpoint has to agree: everything but file names and versions.
PARTS = ("state_dict", "ema", "optimizer_states", "lr_schedulers", "loops", "global_step", "epoch", "MixedPrecision")
#: Lines that are shown of a run that failed.
SHOWN = 12
#: Seconds that a process which was told to end gets for it.
PATIENCE = 10


class Failure(RuntimeError):
    """A fit ended with an error.

    Args:
        status: Its exit status; of a signal, the negative number.
        said: Its last lines.
    """

    def __init__(self, status: int, said: str) -> None:
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        super().__init__(how)
        self.status, self.said = status, said


class Done(Exception):
    """The options asked for something else than a fit, such as ``--print_config``: this is what was printed."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What one fit came to.

    Attributes:
        seconds: From the start of its process to its end.
        outcome: Every tensor of its checkpoints and every logged value, by place.
        measured: What it measured itself.
        ap: ``val/map`` as last logged; ``None`` where there is none.
        report: The report of its accelerations, if there were any.
        said: Lines that its accelerations said on the screen.
    """

    seconds: float
    outcome: Outcome
    measured: dict[str, Any]
    ap: float | None
    report: dict[str, Any] | None
    said: list[str]

    @property
    def accelerations(self) -> list[dict[str, Any]]:
        """What the report says of each acceleration."""
        return list((self.report or {}).get("accelerations", ()))


def run(options: Sequence[str], arm: Sequence[str], others: Sequence[str] = (), profile: bool = False) -> Fit:
    """Run ``lucid fit`` with the accelerations of one arm; its folder is removed afterwards.

    Args:
        options: Options of ``lucid fit``.
        arm: Names of accelerations.
        others: Names of accelerations of later fits, refused now where no such one can be made.
        profile: Profile a few steps, and end there.

    Raises:
        Failure: It ended with an error.
        Done: It was no fit.
    """
    with tempfile.TemporaryDirectory(prefix="lucid-bench-", ignore_cleanup_errors=True) as root:
        folder = Path(root, "run")
        folder.mkdir()
        start = time.perf_counter()
        status = launch(Order([*arm], [*others], str(folder), profile).command(options), Path(root))
        seconds = time.perf_counter() - start
        if status:
            raise Failure(status, _last_lines(Path(root)))
        if not (folder / RESULT).is_file():
            raise Done(Path(root, "stdout").read_text(errors="replace"))
        rows = _log(folder)
        outcome = outcome_of(folder)
        for number, row in enumerate(rows):
            outcome |= digest(row, f"row {number} of the log")
        told = next(folder.rglob(report.FILE), None)
        return Fit(
            seconds,
            outcome,
            json.loads((folder / RESULT).read_text()),
            next((float(row["val/map"]) for row in reversed(rows) if "val/map" in row), None),
            None if told is None else json.loads(told.read_text()),
            [line for line in _lines(Path(root, "stderr")) if line.partition(" ")[0] in arm],
        )


def launch(command: Sequence[str], root: Path) -> int:
    """Run a command to its end, its output in files below ``root``; return its exit status.

    Whatever ends the wait, such as a keyboard interrupt, ends the command too.
    """
    with (root / "stdout").open("wb") as out, (root / "stderr").open("wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(PATIENCE)
                finally:
                    process.kill()
                    process.wait()


def outcome_of(folder: Path) -> Outcome:
    """Return the digest of what has to agree of every checkpoint below ``folder``."""
    found: Outcome = {}
    for path in sorted(folder.rglob("*.ckpt")):
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)
        found |= digest({part: checkpoint[part] for part in PARTS if part in checkpoint}, path.name)
    return found


def _log(folder: Path) -> list[dict[str, str]]:
    """The logged values, row by row, but for those of accelerations."""
    file = next(folder.rglob("metrics.csv"), None)
    if file is None:
        return []
    with file.open(newline="") as lines:
        rows = [{k: v for k, v in row.items() if v and not k.startswith("accel/")} for row in csv.DictReader(lines)]
    return [row for row in rows if set(row) - {"step", "epoch"}]


def _last_lines(root: Path) -> str:
    """The last of what a run said, without its progress bars; standard output only where nothing else was said."""
    for name in ("stderr", "stdout"):
        if said := [line for line in _lines(root / name) if "it/s]" not in line and "?it" not in line]:
            return "\n".join(said[-SHOWN:])
    return ""


def _lines(file: Path) -> list[str]:
    """What was printed; a bar that is drawn again is a line."""
    return [line.rstrip() for line in file.read_text(errors="replace").splitlines() if line.strip()]

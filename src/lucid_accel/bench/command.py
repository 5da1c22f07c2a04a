"""``lucid-accel bench CONFIG``: whole fits of one run, native and accelerated in alternation."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from lucid_accel.bench.environment import environment
from lucid_accel.bench.plot import draw
from lucid_accel.bench.process import Done, Failure
from lucid_accel.bench.rounds import NATIVE, Comparison, Unequal, members
from lucid_accel.bench.words import advice, duration, idle, retired, table

__all__ = ["main"]

#: What a plot may be.
PICTURES = (".png", ".svg", ".pdf")


def main(argv: Sequence[str]) -> int:
    """Compare, and print what came of it.

    Args:
        argv: Names or files of configurations, then options of this command and of ``lucid fit`` in any order.

    Returns:
        0 when arms were compared and had the native bytes, 1 when bytes differ or a fit failed, 130 after Ctrl-C, 143
        when told to end.

    Raises:
        SystemExit: With 2 where the command line was not understood.
    """
    names = list(takewhile(lambda item: not item.startswith("-"), argv))
    parser = _Parser(prog="lucid-accel bench", allow_abbrev=False, add_help=False)
    parser.add_argument("--arms", nargs="+", default=[])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--plot", type=Path)
    args, options = parser.parse_known_args(argv[len(names) :])
    _check(parser, args.arms, args.pairs, (args.record, args.plot))
    if args.plot is not None and args.plot.suffix not in PICTURES:
        parser.error(f"{args.plot} cannot be written: pictures are {', '.join(PICTURES)}")

    options = [part for name in names for part in ("--config", name)] + options
    comparison = Comparison(options, args.arms)
    bench = Bench(comparison, args.pairs, args.record, args.plot, list(argv))
    try:
        with _told_to_end():
            return bench.run()
    except KeyboardInterrupt:
        return bench.ended("interrupted", 130)
    except _Ended:
        return bench.ended("told to end", 143)


class Bench:
    """One comparison, from its first fit to the last word.

    Args:
        comparison: What is compared.
        pairs: Rounds.
        record: Where to write the record, if anywhere; it is written anew after every round.
        plot: Where to write the plot, if anywhere.
        typed: The command line.
    """

    def __init__(
        self, comparison: Comparison, pairs: int, record: Path | None, plot: Path | None, typed: list[str]
    ) -> None:
        self.comparison, self.pairs, self.record, self.plot, self.typed = comparison, pairs, record, plot, typed
        self._doing = ""

    def run(self) -> int:
        """Return the exit status."""
        try:
            self._rounds()
            self._profiles()
        except Done as done:
            print(done, end="")
            return 0
        except Unequal as difference:
            return self._refuse(difference)
        except Failure as failure:
            return self._fail(failure)
        except OSError as error:
            print(f"lucid-accel: error: {error}", file=sys.stderr)
            return 1
        row = self.comparison.row()
        self._write(row)
        print(f"\n{table(row)}")
        unable = idle(row)
        for why in dict.fromkeys(unable.values()):
            print(f"{', '.join(name for name in unable if unable[name] == why)} did nothing: {why}")
        for name, verdict in retired(row).items():
            print(f"{name} {verdict}")
        if row["arms"][NATIVE]["ap"] is None:
            print("AP: none, as this run logs no val/map")
        print(advice(row, self.comparison.first.measured["named"]))
        return 0

    def ended(self, how: str, status: int) -> int:
        """Say that the comparison was ended from outside; return ``status``."""
        done = self.comparison.rounds
        kept = f"; the record {self.record} holds {done} round{'s' * (done > 1)}" if self.record and done else ""
        print(f"\nlucid-accel: {how} in the {self._doing or 'beginning'}{kept}", file=sys.stderr)
        return status

    def _rounds(self) -> None:
        comparison = self.comparison
        for turn in range(self.pairs):
            for arm in comparison.order():
                self._doing = f"{arm} fit of round {turn + 1}"
                taken = comparison.fit(arm).seconds
                print(f"round {turn + 1} of {self.pairs}: {arm} {taken:.1f} s{self._left()}", flush=True)
            self._doing = f"end of round {turn + 1}"
            self._write(comparison.row())

    def _left(self) -> str:
        """How long it will still take, as soon as every arm has been seen."""
        fits = self.comparison.fits
        if not self.comparison.rounds:
            return ""
        means = {arm: statistics.fmean(fit.seconds for fit in fits[arm]) for arm in fits}
        left = sum(mean * (self.pairs - len(fits[arm])) for arm, mean in means.items())
        return f", about {duration(left)} left" if left else ""

    def _profiles(self) -> None:
        """See how much of a step is the device's, where there is one to ask."""
        for arm in self.comparison.fits if self.comparison.on_gpu else ():
            self._doing = f"profiled run of {arm}"
            print(self._doing, flush=True)
            try:
                self.comparison.profile(arm)
            except Failure as failure:
                print(f"{arm}: GPU busy is not known, as the profiled run {failure}", flush=True)
        self._doing = ""

    def _write(self, row: dict[str, Any]) -> None:
        first = self.comparison.first.measured
        if self.record is not None:
            told = first["configuration"]
            told["trainer"].pop("default_root_dir", None)
            made = {
                "what": "bench",
                **environment(first["card"]),
                "device": first["device"],
                "settings": {"command": self.typed, "pairs": self.pairs, "rounds": self.comparison.rounds},
                "configuration": told,
                "rows": [row],
            }
            self.record.write_text(json.dumps(made, indent=1) + "\n")
        if self.plot is not None and row["arms"]:
            draw(row, self.plot)

    def _refuse(self, difference: Unequal) -> int:
        print(f"\nPARITY IS {difference}", file=sys.stderr)
        print("Nothing more is timed; what was timed says nothing.", file=sys.stderr)
        self._write({"parity": str(difference), "arms": {}})
        return 1

    def _fail(self, failure: Failure) -> int:
        if failure.status == 2 and not self.comparison.fits[NATIVE]:
            # What was typed was not understood, and the one line that says so is the last one.
            print(failure.said.rpartition("\n")[2], file=sys.stderr)
            return 2
        print(f"lucid-accel: error: the {self._doing} {failure}; its last lines:", file=sys.stderr)
        print(textwrap.indent(failure.said or "(none)", "  "), file=sys.stderr)
        return 1


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line and exit with status 2."""
        self.exit(2, f"lucid-accel: error: {message}\n")


class _Ended(Exception):
    """The process was told to end."""


@contextmanager
def _told_to_end() -> Iterator[None]:
    """Let SIGTERM raise, so that the fit that is running ends too and its folder is removed."""

    def end(*_: object) -> None:
        raise _Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(parser: _Parser, arms: Sequence[str], pairs: int, files: Sequence[Path | None]) -> None:
    """Refuse before the first fit what would fail after it."""
    if pairs < 1:
        parser.error(f"--pairs is {pairs}; a comparison needs at least 1 round")
    for arm in arms:
        if arm == NATIVE or not all(name.isidentifier() for name in members(arm)):
            parser.error(f"--arms takes accelerations, those of one arm joined by +, got {arm!r}; native is always one")
    for file in filter(None, files):
        if file.is_dir() or not file.absolute().parent.is_dir():
            parser.error(f"{file} cannot be written: it is a folder, or its folder does not exist")

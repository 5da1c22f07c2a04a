"""Rounds of whole fits, one of each arm in every round, whose bytes have to agree."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lucid_accel.bench.figures import interval, summary
from lucid_accel.bench.process import Fit, run
from lucid_accel.testing import first_difference

__all__ = ["DEFAULT", "NATIVE", "Comparison", "Unequal", "members"]

NATIVE = "native"
#: The arm where neither the command nor the run names an acceleration.
DEFAULT = "AutoAccelerate"


class Unequal(Exception):
    """Bytes differ, and this is where: nothing is timed any more."""


class Comparison:
    """Lets arms take turns.

    Args:
        options: Options of ``lucid fit``.
        arms: Each is an acceleration, or several joined by ``+``. Without any it is what the run names, all together,
            and :data:`DEFAULT` where it names nothing.

    Attributes:
        fits: The fits so far, by arm; the native ones first.
        profiles: What a short profiled run of each arm measured.
    """

    def __init__(self, options: Sequence[str], arms: Sequence[str] = ()) -> None:
        self.options = list(options)
        self.fits: dict[str, list[Fit]] = {arm: [] for arm in (NATIVE, *arms)}
        self.profiles: dict[str, dict[str, Any]] = {}

    @property
    def arms(self) -> list[str]:
        """The accelerated arms."""
        return [arm for arm in self.fits if arm != NATIVE]

    @property
    def rounds(self) -> int:
        """Complete rounds."""
        return min(map(len, self.fits.values())) if self.arms else 0

    @property
    def first(self) -> Fit:
        """The native fit that all others are compared with."""
        return self.fits[NATIVE][0]

    @property
    def on_gpu(self) -> bool:
        """Whether the run has a device that works beside the host."""
        return str(self.first.measured["device"]).startswith("cuda")

    def order(self) -> Iterator[str]:
        """Give the arms of the next round in the order of their fits, which turns from round to round.

        The arm of a run that was given none is known after the first fit.
        """
        turn = self.rounds
        if turn == 0:
            yield NATIVE
            if not self.arms:
                self.fits["+".join(self.first.measured["named"]) or DEFAULT] = []
        arms = [NATIVE, *self.arms]
        for place in range(turn == 0, len(arms)):
            yield arms[(place + turn) % len(arms)]

    def fit(self, arm: str) -> Fit:
        """Run one fit of an arm, and compare it.

        Raises:
            Failure: It ended with an error.
            Done: The options ask for no fit.
            Unequal: It has other bytes than the first native one.
        """
        fit = self.launch(arm)
        self.add(arm, fit)
        return fit

    def launch(self, arm: str) -> Fit:
        """Run one fit of an arm, and do not count it yet; several may run side by side.

        Raises:
            Failure: It ended with an error.
            Done: The options ask for no fit.
        """
        return run(self.options, members(arm), [name for other in self.arms or (DEFAULT,) for name in members(other)])

    def add(self, arm: str, fit: Fit) -> None:
        """Count a fit of an arm, and compare it; the first one is native.

        Raises:
            Unequal: It has other bytes than the first native one.
        """
        self.fits[arm].append(fit)
        if not self._is_loose(arm) and (place := first_difference(self.first.outcome, fit.outcome)) is not None:
            self._blame(arm, place)

    def profile(self, arm: str) -> None:
        """Run an arm for a few steps more, and see for how long the device is at work in one."""
        measured = run(self.options, members(arm), profile=True).measured
        self.profiles[arm] = {name: measured[name] for name in ("busy_ms", "kernels")}

    def row(self) -> dict[str, Any]:
        """Return parity, and the figures of complete rounds by arm."""
        n = self.rounds
        seconds = {arm: [fit.seconds for fit in fits[:n]] for arm, fits in self.fits.items()}
        figures: dict[str, Any] = {}
        for arm, taken in seconds.items():
            last = self.fits[arm][n - 1]
            found = figures[arm] = {
                "seconds": {**summary(taken), "all": [round(x, 3) for x in taken]},
                "step_ms": _median(fit.measured["step_ms"] for fit in self.fits[arm][:n]),
                **self.profiles.get(arm, {"busy_ms": None, "kernels": None}),
                "allocated_mib": last.measured["allocated_mib"],
                "reserved_mib": last.measured["reserved_mib"],
                "ap": last.ap,
            }
            if arm != NATIVE:
                saved = [native - x for native, x in zip(seconds[NATIVE], taken, strict=True)]
                found |= {
                    "seconds_saved": {**summary(saved), "interval_95": interval(saved)},
                    "percent_saved": round(100 * statistics.median(saved) / statistics.median(seconds[NATIVE]), 2),
                    "report_of_the_last_fit": last.report,
                    "said": last.said,
                }
        return {"parity": self.parity(), "arms": figures}

    def parity(self) -> str:
        """Say what was compared, and found equal."""
        loose = [arm for arm in self.arms if self._is_loose(arm)]
        fits = sum(len(fits) for arm, fits in self.fits.items() if arm not in loose)
        said = f"green: {fits} fits, each with {len(self.first.outcome)} equal places"
        return said + "".join(f"; {arm} promises no native bytes and was not compared" for arm in loose)

    def _is_loose(self, arm: str) -> bool:
        return any(item["numerics"] != "bitwise" for fit in self.fits[arm] for item in fit.accelerations)

    def _blame(self, arm: str, place: str) -> None:
        """Tell what an acceleration changed from what two native fits do not agree on."""
        if arm != NATIVE and len(self.fits[NATIVE]) < 2:
            again = run(self.options, ())
            if (elsewhere := first_difference(self.first.outcome, again.outcome)) is not None:
                arm, place = NATIVE, elsewhere
        if arm == NATIVE:
            raise Unequal(
                f"unprovable: two native fits differ, first at {place}, so that no acceleration can be judged. Make "
                "the run deterministic (--trainer.deterministic=true), and leave out what logs times"
            )
        raise Unequal(
            f"red: {arm} in round {len(self.fits[arm])} has other bytes than the native fit, first at {place}"
        )


def members(arm: str) -> list[str]:
    """Return the accelerations that an arm names."""
    return [] if arm == NATIVE else arm.split("+")


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), 3) if known else None

"""How long steps took, natively and replayed, without waiting for the device."""

from __future__ import annotations

import statistics
import time
from collections import deque

__all__ = ["FitClock"]

_KEPT = 1000


class FitClock:
    """Takes the time from the end of one training batch to the end of the next.

    Launching runs ahead of the device, so one interval means little and the median over many is a step's time. The
    first native step, which loads kernels, and pauses such as validations are outliers to it.
    """

    def __init__(self) -> None:
        self._begun = time.perf_counter()
        self._last: float | None = None
        self._native: deque[float] = deque(maxlen=_KEPT)
        self._replayed: deque[float] = deque(maxlen=_KEPT)
        self._replays = 0

    def step(self, replayed: bool, setup: bool = False) -> None:
        """A training batch ended, in which something was replayed or nothing was.

        Args:
            replayed: Something was.
            setup: Something was recorded or proven too, so that the time tells of no kind of step.
        """
        now = time.perf_counter()
        if self._last is not None and not setup:
            (self._replayed if replayed else self._native).append(now - self._last)
        self._last = now
        self._replays += replayed

    def seconds(self) -> float:
        """Return the time since the clock was made."""
        return time.perf_counter() - self._begun

    def steps(self) -> tuple[float | None, float | None]:
        """Return the median seconds of a native and of a replayed step; ``None`` for a kind seen fewer than twice."""
        native, replayed = (
            statistics.median(kind) if len(kind) > 1 else None for kind in (self._native, self._replayed)
        )
        return native, replayed

    def native_seconds(self, setup: float) -> float | None:
        """Estimate what the whole fit would have taken natively; ``None`` where one kind of step is not known.

        Args:
            setup: Seconds spent on recording and proving, which a native fit would not have.
        """
        native, replayed = self.steps()
        if native is None or replayed is None:
            return None
        return self.seconds() - setup + self._replays * (native - replayed)

"""Native and replayed steps of one fit, timed in turn."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["WINDOW", "Windows"]

#: Optimizer steps of a window, unless epochs are shorter.
WINDOW = 4


class Windows:
    """Times windows of native and of replayed steps, in the order native, replayed, replayed, native, and so on.

    That order leaves a drift out of the sum. Each window begins after one step of its kind that is not timed: launching
    runs ahead of the device, and the first native step reserves memory that replays do not need. A window in which
    something else happened is thrown away, and begins again.

    Args:
        synchronize: Waits for the device. Called where a window begins and ends, and nowhere else.
        length: Optimizer steps of a window.
        now: The clock, in seconds.

    Attributes:
        steps: Optimizer steps since measuring began.
        misses: Windows thrown away since the last good one.
    """

    def __init__(
        self, synchronize: Callable[[], None], length: int = WINDOW, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self._synchronize = synchronize
        self._length = length
        self._now = now
        self._begun: float | None = None
        self._timed = 0
        self._seconds: list[tuple[bool, float]] = []
        self.steps = 0
        self.misses = 0

    @property
    def native(self) -> bool:
        """Whether steps are to be native now."""
        return (len(self._seconds) + 1) // 2 % 2 == 0

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Seconds of an optimizer step, native and replayed, of each complete pair."""
        # Of two neighbours, sorted, the native one is last.
        found = [sorted(pair) for pair in zip(self._seconds[::2], self._seconds[1::2], strict=False)]
        return [(native, replayed) for (_, replayed), (_, native) in found]

    def step(self, stepped: int, clean: bool) -> None:
        """A training batch ended.

        Args:
            stepped: Optimizer steps made in it. Where there was none, gradients are kept for more: no window may begin
                or end then, as the two kinds keep them in different places.
            clean: It was a step and nothing else.
        """
        self.steps += stepped
        if self._begun is not None:
            self._timed += stepped
            if clean and self._timed < self._length:
                return
            if clean:
                self._synchronize()
                self._seconds.append((self.native, (self._now() - self._begun) / self._timed))
                self._begun, self.misses = None, 0
                return
            self._begun = None
            self.misses += 1
        if stepped:
            self._synchronize()
            self._begun, self._timed = self._now(), 0

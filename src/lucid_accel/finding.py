"""Whether an acceleration pays, by the times of native and of replayed steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Finding", "interval", "judge", "unmeasured"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What was measured of one acceleration, and what follows. Times are of one optimizer step.

    Attributes:
        kept: It is kept.
        why: The numbers in words, or why there are none.
        native_ms: Median of the native windows, milliseconds.
        replayed_ms: Median of the replayed windows.
        saved_ms: Median of what the replayed window of each pair saved.
        interval_ms: 95 % interval of that median.
        pairs: Pairs of windows.
        steps_left: Optimizer steps to come; ``None`` where nobody knows.
        to_pay_seconds: What it still costs: the later proof.
        saves_seconds: What it is expected to save in the steps to come, before that; ``None`` where nobody knows.
        held_bytes: What its recordings hold on the device.
        free_bytes: What is left beside all recordings; ``None`` where nobody counts.
    """

    kept: bool
    why: str
    native_ms: float | None = None
    replayed_ms: float | None = None
    saved_ms: float | None = None
    interval_ms: tuple[float, float] | None = None
    pairs: int = 0
    steps_left: int | None = None
    to_pay_seconds: float | None = None
    saves_seconds: float | None = None
    held_bytes: int = 0
    free_bytes: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a report."""
        rounded = {name: round(x, 4) if isinstance(x, float) else x for name, x in asdict(self).items()}
        ends = self.interval_ms
        return {**rounded, "interval_ms": None if ends is None else [round(end, 4) for end in ends]}


def unmeasured(why: str) -> Finding:
    """It is kept, and nothing was measured."""
    return Finding(True, f"kept, not measured: {why}")


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the narrowest pair of ``values``, alike far from both ends, that has the median between it in 95 %.

    No shape is assumed: each value is above the median of what it is drawn from as often as a coin shows heads. Of six
    values the outermost suffice; fewer have no more than these.
    """
    ordered, n, missed, k = sorted(values), len(values), 0.0, 0
    while (missed := missed + math.comb(n, k) / 2**n) <= 0.025:
        k += 1
    cut = max(k - 1, 0)
    return ordered[cut], ordered[n - 1 - cut]


def judge(pairs: Sequence[tuple[float, float]], left: float, to_pay: float) -> tuple[Finding, bool]:
    """Decide by seconds of a native and of a replayed step, as many times as they were measured.

    It is kept where it was shown to save time, the whole interval above nothing, and where what it is expected to save,
    the median, in the steps to come is more than what is to be paid.

    Args:
        pairs: Seconds of a step in the native and in the replayed window of each pair.
        left: Steps to come; may be infinite.
        to_pay: Seconds that it still costs.

    Returns:
        What was found, and whether it is clear: every number within the interval would have led to it.
    """

    def pays(saved: float) -> bool:
        return saved > 0 and saved * left > to_pay

    saved = [native - replayed for native, replayed in pairs]
    median, (low, high) = statistics.median(saved), interval(saved)
    native, replayed = (statistics.median(kind) for kind in zip(*pairs, strict=True))
    kept, known = low > 0 and pays(median), math.isfinite(left)
    least, most = 1e3 * low, 1e3 * high
    words = (
        f"{'kept' if kept else 'does not pay'}: a step took {1e3 * replayed:.2f} ms, natively {1e3 * native:.2f} ms; "
        f"it saves {1e3 * median:.2f} ms (95 %: {least:.2f} to {most:.2f}), "
        + (f"{median * left:.1f} s in {left:.0f} steps, for {to_pay:.1f} s" if known else "with no end in sight")
    )
    finding = Finding(
        kept,
        words,
        native_ms=1e3 * native,
        replayed_ms=1e3 * replayed,
        saved_ms=1e3 * median,
        interval_ms=(least, most),
        pairs=len(pairs),
        steps_left=int(left) if known else None,
        to_pay_seconds=to_pay,
        saves_seconds=median * left if known else None,
    )
    return finding, pays(low) or not pays(high)

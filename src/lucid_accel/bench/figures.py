"""How times are summed up."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

__all__ = ["interval", "summary"]

#: Student's t for 95 % in the middle, by degrees of freedom.
_T95 = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median and range."""
    return {name: round(f(values), 3) for name, f in (("median", statistics.median), ("min", min), ("max", max))}


def interval(values: Sequence[float]) -> list[float] | None:
    """Return the 95 % confidence interval of the mean; ``None`` of a single value, which has none."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return None
    half = _T95[min(n - 1, len(_T95) - 1)] * statistics.stdev(values) / math.sqrt(n)
    return [round(mean - half, 3), round(mean + half, 3)]

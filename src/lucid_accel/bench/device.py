"""What a profile says of the device's work."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import profile

__all__ = ["busy", "device_events"]


def device_events(profiler: profile) -> list[Any]:
    """Return what ran on the device while ``profiler`` was on: kernels, copies and fills."""
    cuda = torch.autograd.DeviceType.CUDA  # type: ignore[attr-defined]
    events: list[Any] = profiler.events() or []  # type: ignore[no-untyped-call]
    return [x for x in events if x.device_type == cuda and not x.is_user_annotation]


def busy(profiler: profile, steps: int) -> tuple[float, int]:
    """Return per step the milliseconds in which the device computes, and the number of its kernels.

    The time is that of the union of all intervals: two kernels at once count once.
    """
    events = device_events(profiler)
    total, end = 0.0, float("-inf")
    for start, stop in sorted((x.time_range.start, x.time_range.end) for x in events):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e3 / steps, sum(not x.name.startswith("Mem") for x in events) // steps

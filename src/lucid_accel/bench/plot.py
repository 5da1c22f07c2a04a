"""Draws a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["draw"]


def draw(row: dict[str, Any], path: Path) -> None:
    """Draw the time of every fit, and of a step, by arm.

    Args:
        row: The figures of a comparison.
        path: The picture to write; its suffix says in which format.
    """
    # Here, because it takes half a second. Figures made so touch nothing that a user of pyplot has set.
    from matplotlib.figure import Figure

    arms = row["arms"]
    names = [arm.replace("+", "\n+ ") for arm in arms]
    stepped = [found["step_ms"] for found in arms.values()]
    figure = Figure(figsize=(4 + 1.6 * len(arms), 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if all(stepped) else 1, squeeze=False)[0]

    for place, found in enumerate(arms.values()):
        times = found["seconds"]["all"]
        axes[0].bar(place, found["seconds"]["median"], color=f"C{place}", alpha=0.35, width=0.6)
        # Side by side in their order, so that a drift shows.
        spread = [place + 0.4 * ((turn + 0.5) / len(times) - 0.5) for turn in range(len(times))]
        axes[0].plot(spread, times, ".", color=f"C{place}")
    axes[0].set_title("whole fit: median, and every round")
    axes[0].set_ylabel("seconds")
    if all(stepped):
        for place, found in enumerate(arms.values()):
            axes[1].bar(place, found["step_ms"], color=f"C{place}", alpha=0.35, width=0.6)
            if found["busy_ms"] is not None:
                axes[1].hlines(found["busy_ms"], place - 0.3, place + 0.3, color=f"C{place}", linewidth=2)
        busy = any(found["busy_ms"] is not None for found in arms.values())
        axes[1].set_title("one step" + (": line, GPU busy" if busy else ""))
        axes[1].set_ylabel("milliseconds")
    for axis in axes:
        axis.set_xticks(range(len(names)), names)
        axis.set_ylim(bottom=0)
        axis.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=120)

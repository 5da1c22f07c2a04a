"""Draws comparisons: of whole fits, and of steps over the size of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["draw", "draw_steps"]


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
    _save(figure, path)


def draw_steps(rows: Sequence[dict[str, Any]], title: str, path: Path) -> None:
    """Draw the time of a step, and the device's part of it, over the size of a batch.

    Where the device's part becomes the native step, no recording gains anything more: the lines meet.

    Args:
        rows: Of ``benchmarks/accelerated_steps.py``, one for each batch size.
        title: A line above.
        path: The picture to write.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axis = figure.subplots()
    rows = sorted(rows, key=lambda row: row["batch"])
    batches = [row["batch"] for row in rows]
    for number, arm in enumerate(rows[0]["arms"]):
        found = [row["arms"][arm] for row in rows]
        step = [entry["step_ms"] for entry in found]
        low, high = ([entry[end] for entry in step] for end in ("min", "max"))
        axis.plot(batches, [entry["median"] for entry in step], "o-", color=f"C{number}", label=f"{arm}: step")
        axis.fill_between(batches, low, high, color=f"C{number}", alpha=0.15, linewidth=0)
        busy = [entry["busy_ms"] for entry in found]
        axis.plot(batches, busy, ".--", color=f"C{number}", linewidth=1, label=f"{arm}: GPU busy")
    axis.set_xscale("log", base=2)
    axis.set_xticks(batches, [str(batch) for batch in batches])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("pictures in a batch")
    axis.set_ylabel("milliseconds: median, and range of the windows")
    axis.set_title(title)
    axis.grid(alpha=0.3)
    axis.legend()
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    # Without the version of matplotlib, which a PNG would hold, equal figures have equal bytes.
    figure.savefig(path, dpi=120, metadata={"Software": None} if path.suffix == ".png" else None)

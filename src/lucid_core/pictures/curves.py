"""Curves of what a run logged."""

from __future__ import annotations

import csv
import math
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid_core.types import MaskTerms, PointTerms

__all__ = ["PANELS", "Series", "draw_curves", "read_metrics"]

#: By logged name: optimizer steps, epochs and values.
Series = dict[str, list[tuple[int, int, float]]]

#: Titles, and patterns of the logged names in each panel.
PANELS = {
    "loss": ("train/loss", "val/loss"),
    "terms of the one-to-one branch, and of the task": (
        *("train/o2o_*", "val/o2o_*"),
        *(f"{part}/{term}" for part in ("train", "val") for term in (*MaskTerms._fields, *PointTerms._fields)),
    ),
    "AP": ("val/map", "val/map_50", "val/segm_map", "val/oks_map", "val/merged_map", "val/*/map"),
    "learning rate": ("lr*",),
}
#: Curves of fewer points show them; of more, every second or third one is drawn.
FEW, MOST = 40, 2000
#: Losses that differ by more than this factor are drawn on a logarithmic scale: averaged weights can begin far off.
WIDE = 100


def read_metrics(file: Path) -> Series:
    """Read what the CSV logger wrote; empty where there is no such file.

    Args:
        file: Such as ``runs/version_0/metrics.csv``.

    Returns:
        The finite values by name; others are nan.
    """
    series: Series = {}
    if not file.is_file():
        return series
    with file.open(newline="") as lines:
        for row in csv.DictReader(lines):
            step, epoch = int(row.pop("step", None) or 0), int(row.pop("epoch", None) or 0)
            for name, text in row.items():
                if text:
                    value = float(text)
                    series.setdefault(name, []).append((step, epoch, value if math.isfinite(value) else math.nan))
    return series


def draw_curves(series: Series) -> NDArray[np.uint8] | None:
    """Draw losses, AP and learning rate over the optimizer steps.

    Args:
        series: What was logged.

    Returns:
        The picture, ``(H, W, 3)`` uint8 RGB; None where there is nothing to draw.
    """
    # Here, because it takes half a second. Figures made so touch nothing that a user of pyplot has set.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = {
        title: [name for pattern in patterns for name in series if fnmatch(name, pattern)]
        for title, patterns in PANELS.items()
    }
    panels = {title: names for title, names in panels.items() if names}
    if not panels:
        return None
    figure = Figure(figsize=(10, 7))
    canvas: Any = FigureCanvasAgg(figure)
    axes = list(figure.subplots(2, 2, squeeze=False).flat)
    # A layout that matplotlib finds by itself would double the time.
    figure.subplots_adjust(left=0.07, right=0.99, bottom=0.07, top=0.96, wspace=0.18, hspace=0.28)
    for axis, (title, names) in zip(axes, panels.items(), strict=False):
        _draw_panel(axis, names, series)
        values = [value for name in names for _, _, value in series[name] if value > 0]
        if title not in ("AP", "learning rate") and values and max(values) > WIDE * min(values):
            axis.set_yscale("log")
        axis.set_title(_with_best(title, series) if title == "AP" else title)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    canvas.draw()
    return np.array(canvas.buffer_rgba())[..., :3]


def _draw_panel(axis: Any, names: list[str], series: Series) -> None:
    terms = list(dict.fromkeys(name.partition("/")[2] for name in names))
    for name in names:
        part, _, term = name.partition("/")
        drawn = series[name][:: 1 + len(series[name]) // MOST]
        steps, _, values = zip(*drawn, strict=True)
        # One colour for a term, with points where it is measured rarely, so that training and validation compare.
        style = "-" if part == "train" or len(terms) == len(names) else "--"
        marker = "." if len(steps) < FEW else ""
        axis.plot(steps, values, style, marker=marker, color=f"C{terms.index(term)}", label=name, linewidth=1)
    axis.set_xlabel("optimizer step")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small", loc="lower right" if "map" in names[0] else "upper right")


def _with_best(title: str, series: Series) -> str:
    # Masks and key points before boxes: they are the task where there are any.
    name = next((name for name in ("val/segm_map", "val/oks_map", "val/map") if name in series), "")
    measured = [entry for entry in series.get(name, []) if not math.isnan(entry[2])]
    if not measured:
        return title
    step, epoch, best = max(measured, key=lambda entry: entry[2])
    return f"{title}; best {name} {best:.3f} at step {step}, epoch {epoch + 1}"

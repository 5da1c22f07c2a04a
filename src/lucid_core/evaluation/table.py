"""Metrics as text for the terminal."""

from __future__ import annotations

import math
import unicodedata
from itertools import zip_longest

from lucid_core.evaluation.metrics import Measured

__all__ = ["class_table", "summary"]

_FIGURES = ("images", "objects", "AP", "AP50", "AR")
_COLUMN = 9


def class_table(metrics: Measured, width: int = 80) -> str:
    """Lay out one line per class.

    Args:
        metrics: What to show.
        width: Columns of the terminal; names that do not fit are cut.

    Returns:
        Lines without a trailing newline. A class without objects shows n/a.
    """
    room = max(8, width - _COLUMN * len(_FIGURES))
    longest = max((_cells(row.name) for row in metrics.classes), default=0)
    name_width = min(room, max(longest, len("class")))
    lines = [_line("class", _FIGURES, name_width)]
    for row in metrics.classes:
        figures = (str(row.images), str(row.objects), _figure(row.ap), _figure(row.ap_50), _figure(row.ar))
        lines.append(_line(row.name, figures, name_width))
    objects = str(sum(row.objects for row in metrics.classes))
    totals = (str(metrics.images), objects, *map(_figure, metrics.totals))
    return "\n".join([*lines, _line("all", totals, name_width)])


def summary(metrics: Measured) -> str:
    """Lay out the numbers, precision left and recall right."""
    cells = [f"{name:<10} {_figure(value):>5}" for name, value in metrics.scalars().items()]
    recall = next(place for place, cell in enumerate(cells) if cell.startswith("mar"))
    pairs = zip_longest(cells[:recall], cells[recall:], fillvalue="")
    return "\n".join(f"{left:<16}    {right}".rstrip() for left, right in pairs)


def _line(name: str, figures: tuple[str, ...], name_width: int) -> str:
    while _cells(name) > name_width:
        name = name[:-1]
    return name + " " * (name_width - _cells(name)) + "".join(figure.rjust(_COLUMN) for figure in figures)


def _figure(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{value:.3f}"


def _cells(text: str) -> int:
    """Columns of a terminal: East Asian wide characters take two."""
    return sum(1 + (unicodedata.east_asian_width(character) in "WF") for character in text)

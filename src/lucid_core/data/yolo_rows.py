"""One row of a YOLO label file, read as the task says or refused."""

from __future__ import annotations

import math

import numpy as np

from lucid_core.data.geometry import area
from lucid_core.data.points import show_points
from lucid_core.data.problems import Fault, Kind
from lucid_core.data.quads import oriented
from lucid_core.data.records import TOLERANCE
from lucid_core.data.scan import Size
from lucid_core.data.text_labels import LabelRow
from lucid_core.data.types import Float32, Task

__all__ = ["YoloRows", "label_of"]


class YoloRows:
    """Reads rows of the one kind that a task has; nothing is guessed from the number of fields but for ``detect``.

    Args:
        task: What is learnt.
        classes: Number of classes.
        points: ``(K, numbers)`` that follow a box; ``None`` where the data set has no key points.
    """

    def __init__(self, task: Task, classes: int, points: tuple[int, int] | None) -> None:
        self.task = task
        self.classes = classes
        self.points = points

    def read(self, fields: list[str], size: Size) -> LabelRow:
        """Read one row.

        Args:
            fields: What stands between its blanks.
            size: Of the picture.

        Raises:
            Fault: The object cannot be used.
        """
        if len(fields) == 1 and "," in fields[0]:
            raise Fault(Kind.MALFORMED, f"{fields[0]!r} is separated by commas; separate the numbers by blanks")
        count = len(fields)
        if self.task == "obb":
            return self._corners(fields, size)
        if self.task == "keypoints":
            return self._posed(fields, size)
        if self.task == "segment" and count == 5:
            raise Fault(Kind.NO_MASK, "is a box without a polygon; outline the object, or train the task detect")
        is_box = count == 5 or (self.points is not None and count > 5)
        if not is_box and (count < 7 or count % 2 == 0):
            seen = f"has {count} fields; a box has 5, a polygon has 7 or more, an odd number"
            raise Fault(Kind.MALFORMED, seen)
        label = label_of(fields[0], self.classes)
        if is_box:
            return self._box(label, fields[1:5], size)
        ring = np.array([_share(field) for field in fields[1:]]).reshape(-1, 2)
        shares = (*ring.min(axis=0).tolist(), *ring.max(axis=0).tolist())
        pixels = ring * size
        covered = area(pixels)
        if self.task == "segment" and not covered > 0:
            raise Fault(Kind.NO_AREA, "the polygon has no area, or crosses itself so that its parts cancel")
        row = _within(label, shares, size, ((pixels).astype(np.float32),))
        return row._replace(area=covered) if self.task == "segment" else row

    def _box(self, label: int, fields: list[str], size: Size) -> LabelRow:
        cx, cy, w, h = (_share(field) for field in fields)
        return _within(label, (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), size, ())

    def _corners(self, fields: list[str], size: Size) -> LabelRow:
        if len(fields) != 9 or not _is_number(fields[8]):
            dota = len(fields) >= 9 and all(map(_is_number, fields[:8])) and not _is_number(fields[8])
            like = "looks like DOTA text (corners, class name, difficulty)" if dota else f"has {len(fields)} fields"
            wanted = "an oriented box here is 9 numbers: class x1 y1 x2 y2 x3 y3 x4 y4, shares of the picture"
            raise Fault(Kind.DIALECT, f"{like}; {wanted}")
        label = label_of(fields[0], self.classes)
        # A corner may lie outside though most of the object is inside.
        quad = np.array([_share(field, reach=1.0) for field in fields[1:]]).reshape(4, 2) * size
        found = oriented(quad, *size)
        return LabelRow(label, found.box, found.area, (), found.notes, found)

    def _posed(self, fields: list[str], size: Size) -> LabelRow:
        assert self.points is not None
        count, numbers = self.points
        label = label_of(fields[0], self.classes)
        points = np.zeros((count, 3))
        if len(fields) == 5:
            seen = "is a box without key points; they are absent, its box is kept"
            row = self._box(label, fields[1:5], size)
            return row._replace(notes=(*row.notes, (Kind.KEY_POINTS, seen)), points=points)
        if len(fields) != 5 + count * numbers:
            wanted = f"class, box and {count} key points of {numbers} numbers are {5 + count * numbers}"
            raise Fault(Kind.DIALECT, f"has {len(fields)} fields; {wanted}")
        row = self._box(label, fields[1:5], size)
        values = np.array([_number(field) for field in fields[5:]]).reshape(count, numbers)
        points[:, :2] = np.clip(values[:, :2], 0, 1) * size
        points[:, 2] = values[:, 2] if numbers == 3 else 2 * values.any(axis=1)
        bad = ~np.isfinite(values).all(1) | ~np.isin(points[:, 2], (0, 1, 2))
        inside = (values[:, :2] >= -TOLERANCE) & (values[:, :2] <= 1 + TOLERANCE)
        bad |= ~inside.all(1) & (points[:, 2] != 0)
        points[bad | (points[:, 2] == 0)] = 0
        if bad.any():
            stated = show_points(bad, [fields[at : at + numbers] for at in range(5, len(fields), numbers)])
            seen = f"key points {np.flatnonzero(bad).tolist()} are not shares of the picture and visibility 0, 1 or 2"
            seen = f"{seen}: {stated}"
            row = row._replace(notes=(*row.notes, (Kind.KEY_POINTS, f"{seen}; they are absent")))
        return row._replace(points=points)


def _within(label: int, shares: tuple[float, float, float, float], size: Size, rings: tuple[Float32, ...]) -> LabelRow:
    clipped = not all(-TOLERANCE <= share <= 1 + TOLERANCE for share in shares)
    x1, x2 = (min(max(shares[i], 0.0), 1.0) * size[0] for i in (0, 2))
    y1, y2 = (min(max(shares[i], 0.0), 1.0) * size[1] for i in (1, 3))
    if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
        raise Fault(Kind.NO_AREA, "the box has no area")
    notes = ((Kind.CLIPPED, "the box reaches outside the picture; clipped at the border"),) if clipped else ()
    return LabelRow(label, (x1, y1, x2, y2), (x2 - x1) * (y2 - y1), rings, notes)


def label_of(field: str, classes: int) -> int:
    """Read the index of a class.

    Raises:
        Fault: It is no whole number in ``[0, classes)``.
    """
    try:
        value = float(field)
    except ValueError:
        raise Fault(Kind.MALFORMED, f"class {field!r} is not a number; write its index in 'names'") from None
    if not value.is_integer() or not 0 <= value < classes:
        raise Fault(Kind.UNKNOWN_CLASS, f"class {field} is not a whole number from 0 to {classes - 1}")
    return int(value)


def _share(field: str, reach: float = 0.0) -> float:
    """Read a share of the picture: in [0, 1], or as far outside as ``reach``; rounding is clamped."""
    try:
        value = float(field)
    except ValueError:
        raise Fault(Kind.MALFORMED, f"{field!r} is not a number") from None
    if not math.isfinite(value):
        raise Fault(Kind.NOT_FINITE, f"{field} is not a finite number")
    if not -TOLERANCE - reach <= value <= 1 + TOLERANCE + reach:
        pixels = "; divide pixels by the size of the picture" if value > 2 else ""
        raise Fault(Kind.OUT_OF_RANGE, f"{field} is not a share of the picture in [0, 1]{pixels}")
    return min(max(value, -reach), 1.0 + reach)


def _number(field: str) -> float:
    try:
        return float(field)
    except ValueError:
        return math.nan


def _is_number(field: str) -> bool:
    return not math.isnan(_number(field)) or field.lower() == "nan"

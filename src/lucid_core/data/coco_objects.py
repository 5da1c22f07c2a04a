"""One annotation of a COCO json: its class, box and what the task adds, read or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.coco_values import Box, Row, as_number, as_number_id, clamp_box, short
from lucid_core.data.geometry import area, cut, envelope
from lucid_core.data.points import show_points
from lucid_core.data.problems import Fault, Kind
from lucid_core.data.quads import Oriented, from_rbox, oriented
from lucid_core.data.records import TOLERANCE
from lucid_core.data.rle import outline, pixels, read_rle
from lucid_core.data.scan import Size
from lucid_core.data.types import DETECT, Float32, Segment, Wanted

__all__ = ["CocoObject", "ObjectReader", "angle_in_degrees"]

#: Takes a problem's kind, its message and the annotation that has it.
Tell = Callable[[Kind, str, str], None]
#: A full turn, also one that was rounded up: no angle in radians is larger.
MOST_RADIANS = 2 * math.pi * 1.001


@dataclass(slots=True)
class CocoObject:
    """One annotation, checked.

    What its task has no use for is empty: ``segment`` is what evaluation compares masks with, and ``oriented`` is the
    oriented box, which ``difficult`` goes with.
    """

    box: Box
    label: int
    area: float
    crowd: bool
    rings: tuple[Float32, ...]
    points: NDArray[np.float64] | None
    segment: Segment = field(default=())
    oriented: Oriented | None = None
    difficult: bool = False


class ObjectReader:
    """Reads annotations, and tells what is wrong with parts of them that the object can do without.

    Args:
        labels: The label of each category id.
        count: Key points of each object; ``None`` reads none.
        tell: Takes the problems.
        wanted: What the task needs of an object.
        degrees: What shows that the angles of the file are in degrees, see :func:`angle_in_degrees`.
    """

    def __init__(
        self, labels: dict[int, int], count: int | None, tell: Tell, wanted: Wanted = DETECT, degrees: str = ""
    ) -> None:
        self.labels = labels
        self.task = wanted.task
        self.count = count
        self._degrees = degrees
        #: Annotations whose segmentation is an empty list, as tools write it that know boxes only.
        self.unfilled: list[str] = []
        self._tell = tell
        self._notes: list[tuple[Kind, str]] = []

    def read(self, name: str, picture: str, row: Row, width: int, height: int, is_tile: bool = False) -> CocoObject:
        """Read one annotation.

        Args:
            name: What messages call it.
            picture: Name of the file that it is of.
            row: The annotation as the json has it.
            width: Pixels of the picture.
            height: Pixels of the picture.
            is_tile: It was cut from a larger one, so that oriented boxes across its border are no fault.

        Raises:
            Fault: The object cannot be used.
        """
        self._notes.clear()
        category = as_number_id(row.get("category_id"))
        if category not in self.labels:
            raise Fault(Kind.UNKNOWN_CLASS, f"category_id {row.get('category_id')!r} is not in categories")
        crowd = as_number(row.get("iscrowd")) == 1 or as_number(row.get("ignore")) == 1
        if self.task == "obb":
            found = self._oriented(row, width, height, self.labels[category], crowd)
            # A stated oriented box may reach over the border where the object in it does not.
            self._notes += [
                (kind, f"{name} of {picture}: {note}")
                for kind, note in (found.oriented.notes if found.oriented and not crowd else ())
                if kind is not Kind.CLIPPED or not (is_tile or row.get("rbox"))
            ]
            self._tell_notes(name)
            return found
        stated = self._rings(name, row.get("segmentation"))
        segment: Segment = ()
        if self.task == "segment":
            segment, stated = self._mask(row.get("segmentation"), stated, width, height, crowd)
        box = self._box(name, row.get("bbox"), stated)
        x1, y1, x2, y2 = clamp_box(box, width, height)
        # In float32, as they are kept: a box can be too thin to have two sides there.
        if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
            seen = f"bbox {row.get('bbox')} has no area inside the {width} x {height} image"
            raise Fault(Kind.NO_AREA, seen)
        rings = tuple(part for part in (cut(ring, (0, 0, width, height)) for ring in stated) if len(part))
        if stated and not any(_meets(ring, (x1, y1, x2, y2)) for ring in rings):
            self._refuse_rings(name, row.get("bbox"), stated, f"{width} x {height} image")
            rings = ()
        if not crowd and _reaches_outside(box, stated, width, height):
            seen = f"bbox {row.get('bbox')} or its polygons reach outside the {width} x {height} image"
            self._notes.append((Kind.CLIPPED, f"{name} of {picture}: {seen}; clipped at the border"))
        if self.task == "segment" and not crowd:
            self._compare(name, row.get("bbox"), (x1, y1, x2, y2), stated, rings, (width, height))
        size = as_number(row.get("area"))
        if not (math.isfinite(size) and size > 0):
            size = (box[2] - box[0]) * (box[3] - box[1])
            if self.task == "segment":
                size = pixels(segment) if isinstance(segment, dict) else sum(map(area, rings))
        points = self._points(name, row, width, height)
        found = CocoObject(box, self.labels[category], size, crowd, rings, points, segment)
        self._tell_notes(name)
        if row.get("segmentation") == []:
            self.unfilled.append(name)
        return found

    def _tell_notes(self, name: str) -> None:
        # Not before it is sure that the object is kept: one that is left out is told once, for that.
        for kind, note in self._notes:
            self._tell(kind, note, name)

    def _mask(
        self, stated: Any, rings: tuple[Float32, ...], width: int, height: int, crowd: bool
    ) -> tuple[Segment, tuple[Float32, ...]]:
        """Return what evaluation needs of a segmentation, and rings to train on; crowd regions are not trained."""
        if isinstance(stated, dict):
            packed, mask = read_rle(stated, width, height)
            if not mask.any():
                raise Fault(Kind.NO_MASK, "segmentation is a mask without a pixel")
            return packed, () if crowd else outline(mask)
        if not rings:
            seen = f"segmentation {short(stated)} holds no polygon" if stated else "has no segmentation"
            raise Fault(Kind.NO_MASK, f"{seen}; give it one, or train the task detect")
        return rings, rings

    def _refuse_rings(self, name: str, bbox: Any, rings: tuple[Float32, ...], image: str) -> None:
        """Say why polygons are no outline of their object; without one, only a task of masks cannot use it."""
        fault = Fault(Kind.NO_MASK, f"no part of the polygons is within bbox {bbox} inside the {image}")
        if not any(area(ring) > 0 for ring in rings):
            fault = Fault(Kind.NO_AREA, "the polygon has no area, or crosses itself so that its parts cancel")
        if self.task == "segment":
            raise fault
        self._notes.append((Kind.POLYGON, f"{name}: {fault}; its box is kept"))

    def _compare(
        self, name: str, bbox: Any, box: Box, stated: tuple[Float32, ...], rings: tuple[Float32, ...], size: Size
    ) -> None:
        """Remark where a box and its mask are of different extents."""
        # Tools cut the polygon at the border before they take its box, or the box after.
        x1, y1, x2, y2 = envelope(np.concatenate(stated)).tolist()
        outers = clamp_box((x1, y1, x2, y2), *size), tuple(envelope(np.concatenate(rings)).tolist())
        if all(_differ(box, outer) for outer in outers):
            seen = "reaches over " + " ".join(f"{value:g}" for value in outers[1])
            corners = " ".join(f"{value:g}" for value in box)
            text = f"{name}: bbox {bbox}, from corner to corner {corners}, is not that of its mask, which {seen}"
            self._notes.append((Kind.EXTENT, f"{text}; both are kept"))

    def _oriented(self, row: Row, width: int, height: int, label: int, crowd: bool) -> CocoObject:
        quad = oriented(_corners(row, self._degrees), width, height)
        hard = as_number(row.get("difficult")) > 0
        x, y = quad.quad[:, 0], quad.quad[:, 1]
        box = float(x.min()), float(y.min()), float(x.max()), float(y.max())
        return CocoObject(box, label, quad.area, crowd, (), None, (), quad, hard)

    def _box(self, name: str, stated: Any, rings: tuple[Float32, ...]) -> Box:
        if stated is None and rings:
            self._notes.append((Kind.NO_BOX, f"{name} has no bbox; the envelope of its polygons is taken"))
            corners = np.concatenate(rings)
            return tuple(map(float, (*corners.min(axis=0), *corners.max(axis=0))))  # type: ignore[return-value]
        if not isinstance(stated, list) or len(stated) != 4:
            raise Fault(Kind.MALFORMED, f"bbox {short(stated)} is not x, y, width, height")
        x, y, w, h = map(as_number, stated)
        if not all(map(math.isfinite, (x, y, x + w, y + h, w * h))):
            raise Fault(Kind.NOT_FINITE, f"bbox {short(stated)} is not four finite numbers")
        if w <= 0 or h <= 0:
            raise Fault(Kind.NO_AREA, f"bbox {stated} has no positive width and height")
        return x, y, x + w, y + h

    def _rings(self, name: str, stated: Any) -> tuple[Float32, ...]:
        if stated is None or stated == [] or isinstance(stated, dict):
            return ()
        if not isinstance(stated, list):
            seen = f"segmentation {short(stated)} holds no polygon"
            self._notes.append((Kind.POLYGON, f"{name}: {seen}; its box is kept"))
            return ()
        rings = []
        for ring in stated:
            try:
                flat = np.array(ring, dtype=np.float32)
                if flat.ndim != 1 or flat.size < 6 or flat.size % 2 or not np.isfinite(flat).all():
                    raise ValueError
            except (TypeError, ValueError):
                seen = f"polygon {short(ring)} is not a list of three or more finite x, y pairs"
                kept = "its other parts are" if self.task == "segment" else "its box is"
                self._notes.append((Kind.POLYGON, f"{name}: {seen}; it is left out, {kept} kept"))
                continue
            rings.append(flat.reshape(-1, 2))
        return tuple(rings)

    def _points(self, name: str, row: Row, width: int, height: int) -> NDArray[np.float64] | None:
        stated = row.get("keypoints")
        if self.count is None or not stated:
            return None
        if not isinstance(stated, list) or len(stated) != 3 * self.count:
            seen = f"{len(stated)} numbers" if isinstance(stated, list) else short(stated)
            wanted = f"not {3 * self.count} numbers; they are absent, its box is kept"
            self._notes.append((Kind.KEY_POINTS, f"{name}: keypoints has {seen}, {wanted}"))
            return None
        points = np.array([as_number(value) for value in stated]).reshape(-1, 3)
        shares = points[:, :2] / (width, height)
        inside = ((shares >= -TOLERANCE) & (shares <= 1 + TOLERANCE)).all(axis=1) | (points[:, 2] == 0)
        bad = ~np.isfinite(points).all(axis=1) | ~np.isin(points[:, 2], (0, 1, 2)) | ~inside
        if bad.any():
            wanted = f"x, y inside the {width} x {height} image and visibility 0, 1 or 2"
            values = show_points(bad, [stated[at : at + 3] for at in range(0, len(stated), 3)])
            seen = f"keypoints {np.flatnonzero(bad).tolist()} are not finite {wanted}: {values}"
            self._notes.append((Kind.KEY_POINTS, f"{name}: {seen}; they are absent"))
        points[bad | (points[:, 2] == 0)] = 0
        return points


def angle_in_degrees(rows: list[Any]) -> str:
    """Name the first annotation of a file whose ``rbox`` has an angle that cannot be in radians; nothing if none has.

    A small angle is the same in both, so that one box alone does not say what it is in.
    """
    for position, row in enumerate(rows):
        stated = row.get("rbox") if isinstance(row, dict) else None
        angle = as_number(stated[4]) if isinstance(stated, list) and len(stated) == 5 else 0.0
        if math.isfinite(angle) and abs(angle) > MOST_RADIANS:
            return f"annotations[{position}] has angle {angle:g}"
    return ""


def _corners(row: Row, degrees: str) -> NDArray[np.float64]:
    """Read four corners: of ``rbox``, an oriented box, where there is one, else the one ring of the segmentation."""
    if row.get("rbox") is not None:
        stated = row["rbox"]
        values = np.array([as_number(value) for value in stated]) if isinstance(stated, list) else np.empty(0)
        if values.shape != (5,):
            raise Fault(Kind.NO_CORNERS, f"rbox {short(stated)} is not five numbers: centre, width, height, angle")
        if not np.isfinite(values).all():
            raise Fault(Kind.NOT_FINITE, f"rbox {short(stated)} is not five finite numbers")
        if values[2] <= 0 or values[3] <= 0:
            raise Fault(Kind.NO_AREA, f"rbox {short(stated)} has no positive width and height")
        if degrees:
            own = abs(values[4]) > MOST_RADIANS
            looks = "which looks like degrees" if own else f"and {degrees}, so that the file looks like degrees"
            seen = f"rbox {short(stated)} has angle {values[4]:g}, {looks}"
            raise Fault(Kind.OUT_OF_RANGE, f"{seen}; write it in radians, clockwise on the screen")
        return from_rbox(values)
    rings = row.get("segmentation")
    ring = rings[0] if isinstance(rings, list) and len(rings) == 1 else None
    if not isinstance(ring, list) or len(ring) != 8:
        raise Fault(Kind.NO_CORNERS, f"segmentation {short(rings)} is not one ring of four x, y pairs")
    return np.array([as_number(value) for value in ring]).reshape(4, 2)


def _meets(ring: Float32, box: Box) -> bool:
    """Whether a polygon has area within a box."""
    # Most have a corner there, which is seen sooner than they are cut.
    has_corner = ((ring > box[:2]) & (ring < box[2:])).all(axis=1).any()
    return area(ring if has_corner else cut(ring, box)) > 0


def _differ(box: Box, other: Box) -> bool:
    """Whether two boxes differ on a side by more than rounding, or drawing loosely, explains."""
    x1, y1, x2, y2 = box
    across, down = max(2, (x2 - x1) / 10), max(2, (y2 - y1) / 10)
    return any(abs(a - b) > allowed for a, b, allowed in zip(box, other, (across, down) * 2, strict=True))


def _reaches_outside(box: Box, rings: tuple[Float32, ...], width: int, height: int) -> bool:
    """Whether more of an object is outside than rounding explains."""
    margin = TOLERANCE * width, TOLERANCE * height
    corners = np.concatenate([np.array(box).reshape(2, 2), *rings])
    return bool((corners < (-margin[0], -margin[1])).any() or (corners > (width + margin[0], height + margin[1])).any())

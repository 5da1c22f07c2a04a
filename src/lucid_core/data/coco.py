"""Reader of COCO annotation files."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.coco_values import (
    Box,
    Row,
    as_id,
    as_number,
    as_number_id,
    clamp_box,
    load_json,
    matching_id,
    read_categories,
    short,
)
from lucid_core.data.images import ImageReader
from lucid_core.data.records import DataSet, Fault, Listing, make_instances, make_truth
from lucid_core.data.types import DataError, Float32, Record

__all__ = ["read_coco"]


def read_coco(images_dir: Path, annotations: Path) -> DataSet:
    """Read one split of a COCO data set.

    Pictures are not opened: their sizes come from the json (from the file's header where the json has none), so that
    damage inside a picture shows when it is decoded. What is read of an annotation:

    - Categories in the order of their ids become labels ``0 .. C-1``; images come in the order of their ids, which may
      be numbers or text.
    - ``bbox`` is clamped to the image for training; evaluation keeps it as stated, as pycocotools does. A box that is
      not four finite numbers, or has no area inside the image, is left out of both. Without ``bbox`` the envelope of
      the polygons is taken.
    - ``iscrowd`` and ``ignore`` objects are not trained; for evaluation both are crowd regions, which cost a detection
      nothing.
    - ``segmentation``: all rings of at least three points, clamped. A bad ring is left out, the box stays. A mask in
      run lengths gives no polygon.
    - ``area`` as stated where it is finite and positive, else that of the box.
    - ``keypoints``, where categories or annotations have one common count ``K``; what is wrong about a point makes
      that point absent, not the object.

    Args:
        images_dir: The folder that ``file_name`` is relative to; names that lead out of it are refused.
        annotations: The json file.

    Returns:
        The split; whatever was left out is in its ``problems``.

    Raises:
        DataError: The file is no COCO json, its ids are ambiguous, or no image of it is usable.
    """
    content = load_json(annotations)
    reader = _Reader(images_dir, annotations, content)
    images = reader.images(content.pop("images"))
    rows = reader.by_image(content.pop("annotations"), images)
    # Each row is dropped as soon as its arrays exist: a large json takes several times its size as dictionaries.
    ordered = sorted(images, key=lambda key: (isinstance(key, str), key))
    read = (reader.record(image_id, images.pop(image_id), rows.pop(image_id, [])) for image_id in ordered)
    records = tuple(record for record in read if record is not None)
    reader.conclude(records)
    if not records:
        raise DataError(
            f"{annotations}: none of its images is usable with the pictures in {images_dir}; {reader.problems[0]}"
        )
    return DataSet(records, reader.names, reader.category_ids, tuple(reader.problems))


@dataclass(slots=True)
class _Object:
    """One annotation, checked."""

    box: Box
    label: int
    area: float
    crowd: bool
    rings: tuple[Float32, ...]
    points: NDArray[np.float64] | None


class _Reader:
    """Turns the rows of one json into records, and collects what was wrong with them."""

    def __init__(self, images_dir: Path, annotations: Path, content: Row) -> None:
        self.folder = images_dir
        self.file = annotations
        self.problems: list[str] = []
        self.names, self.category_ids = read_categories(content["categories"], annotations)
        self.labels = {category: label for label, category in enumerate(self.category_ids)}
        self.count = self._point_count(content)
        self._listing = Listing()
        self._headers = ImageReader()
        self._seen: dict[Path, int | str] = {}
        self._unfilled: list[str] = []

    def tell(self, problem: str) -> None:
        self.problems.append(f"{self.file}: {problem}")

    def images(self, rows: list[Any]) -> dict[int | str, Row]:
        """Key the image rows by their id."""
        images: dict[int | str, Row] = {}
        for position, row in enumerate(rows):
            key = as_id(row.get("id")) if isinstance(row, dict) else None
            if key is None:
                self.tell(f"images[{position}] has no id; left out")
            elif key in images and images[key].get("file_name") != row.get("file_name"):
                raise DataError(
                    f"{self.file}: image id {key!r} belongs to {images[key].get('file_name')} and to "
                    f"{row.get('file_name')}, so that annotations cannot be told apart; give each image its own id"
                )
            else:
                images[key] = row
        return images

    def by_image(self, rows: list[Any], images: dict[int | str, Row]) -> dict[int | str, list[tuple[str, Row]]]:
        """Group annotations by the image they belong to, each with a name for messages."""
        grouped: dict[int | str, list[tuple[str, Row]]] = defaultdict(list)
        ids: Counter[Any] = Counter()
        for position, row in enumerate(rows):
            if not isinstance(row, dict):
                self.tell(f"annotations[{position}] is not an object; left out")
                continue
            stated = as_id(row.get("id"))
            ids[stated] += stated is not None
            name = f"annotations[{position}] (no id)" if stated is None else f"annotation {stated}"
            image = matching_id(row.get("image_id"), images)
            if image is None:
                self.tell(f"{name} is of image {row.get('image_id')!r}, which is not listed; left out")
            else:
                grouped[image].append((name, row))
        repeated = [str(key) for key, times in ids.items() if times > 1]
        if repeated:
            self.tell(
                f"{len(repeated)} annotation ids occur more than once ({', '.join(repeated[:5])}); all objects are "
                f"kept, ids are not used"
            )
        return grouped

    def record(self, image_id: int | str, image: Row, rows: list[tuple[str, Row]]) -> Record | None:
        """Read one image with its annotations; ``None`` if it must be left out."""
        try:
            path = self._listing.inside(self.folder, image.get("file_name"))
            width, height = self._size(image, path)
        except (Fault, DataError) as fault:
            self.tell(f"image {image_id}: {fault}; left out with its {len(rows)} annotations")
            return None
        if path in self._seen:
            self.tell(f"image {image_id} is the same file as image {self._seen[path]}, {path.name}; both are kept")
        self._seen[path] = image_id

        objects: list[_Object] = []
        for name, row in rows:
            try:
                objects.append(self._object(name, row, width, height))
            except Fault as fault:
                self.tell(f"{name} of {path.name}: {fault}; left out")
                self._unfilled = [unfilled for unfilled in self._unfilled if unfilled != name]
        if rows and not objects:
            self.tell(f"image {image_id}, {path.name}: none of its annotations is usable; left out")
            return None
        twice = len(objects) - len({(one.label, one.box, one.crowd) for one in objects})
        if twice:
            self.tell(f"image {image_id}, {path.name}: {twice} boxes repeat another of the same class; all are kept")

        taught = [one for one in objects if not one.crowd]
        clamped = [clamp_box(one.box, width, height) for one in taught]
        points = None
        if self.count is not None:
            absent = np.zeros((self.count, 3))
            stacked = [absent if one.points is None else one.points for one in taught]
            points = np.array(stacked, dtype=np.float64).reshape(-1, self.count, 3)
        return Record(
            image=path,
            image_id=image_id,
            width=width,
            height=height,
            instances=make_instances(clamped, [one.label for one in taught], [one.rings for one in taught], points),
            truth=make_truth(
                [one.box for one in objects],
                [one.label for one in objects],
                [one.area for one in objects],
                [one.crowd for one in objects],
            ),
        )

    def conclude(self, records: tuple[Record, ...]) -> None:
        """Tell what concerns the file as a whole, in one line each."""
        if self._unfilled:
            names = ", ".join(self._unfilled[:20]) + (" ..." if len(self._unfilled) > 20 else "")
            self.tell(f"{len(self._unfilled)} annotations have an empty segmentation, their boxes are kept: {names}")
        if not any(len(record.truth.boxes) for record in records):
            self.tell(f"has no annotations for its {len(records)} usable images: all are background")

    def _size(self, image: Row, path: Path) -> tuple[int, int]:
        if image.get("width") is None or image.get("height") is None:
            return self._headers.probe(path)
        try:
            width, height = int(image["width"]), int(image["height"])
        except (TypeError, ValueError, OverflowError):
            width = height = 0
        if width < 1 or height < 1:
            raise Fault(f"width {image['width']!r} and height {image['height']!r} are not a size in pixels")
        return width, height

    def _object(self, name: str, row: Row, width: int, height: int) -> _Object:
        category = as_number_id(row.get("category_id"))
        if category not in self.labels:
            raise Fault(f"category_id {row.get('category_id')!r} is not in categories")
        rings = self._rings(name, row.get("segmentation"), width, height)
        box = self._box(name, row.get("bbox"), rings)
        x1, y1, x2, y2 = clamp_box(box, width, height)
        # In float32, as they are kept: a box can be too thin to have two sides there.
        if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
            raise Fault(f"bbox {row.get('bbox')} has no area inside the {width} x {height} image")
        area = as_number(row.get("area"))
        if not (math.isfinite(area) and area > 0):
            area = (box[2] - box[0]) * (box[3] - box[1])
        crowd = as_number(row.get("iscrowd")) == 1 or as_number(row.get("ignore")) == 1
        return _Object(box, self.labels[category], area, crowd, rings, self._points(name, row))

    def _box(self, name: str, stated: Any, rings: tuple[Float32, ...]) -> Box:
        if stated is None and rings:
            self.tell(f"{name} has no bbox; the envelope of its polygons is taken")
            corners = np.concatenate(rings)
            return tuple(map(float, (*corners.min(axis=0), *corners.max(axis=0))))  # type: ignore[return-value]
        if not isinstance(stated, list) or len(stated) != 4:
            raise Fault(f"bbox {stated!r} is not x, y, width, height")
        x, y, w, h = map(as_number, stated)
        if not all(map(math.isfinite, (x, y, w, h))):
            raise Fault(f"bbox {stated} is not four finite numbers")
        if w <= 0 or h <= 0:
            raise Fault(f"bbox {stated} has no positive width and height")
        return x, y, x + w, y + h

    def _rings(self, name: str, stated: Any, width: int, height: int) -> tuple[Float32, ...]:
        if stated is None or isinstance(stated, dict):
            return ()
        if stated == []:
            self._unfilled.append(name)
            return ()
        if not isinstance(stated, list):
            self.tell(f"{name}: segmentation {short(stated)} holds no polygon; its box is kept")
            return ()
        rings = []
        corner = np.array((width, height), dtype=np.float32)
        for ring in stated:
            try:
                flat = np.array(ring, dtype=np.float32)
                if flat.ndim != 1 or flat.size < 6 or flat.size % 2 or not np.isfinite(flat).all():
                    raise ValueError
            except (TypeError, ValueError):
                self.tell(
                    f"{name}: polygon {short(ring)} is not a list of three or more finite x, y pairs; it is left "
                    f"out, its box is kept"
                )
                continue
            points = flat.reshape(-1, 2)
            rings.append(np.minimum(np.maximum(points, 0, out=points), corner, out=points))
        return tuple(rings)

    def _point_count(self, content: Row) -> int | None:
        """Find the one number of key points that all objects of this file have; ``None`` if there is none."""
        stated = [row["keypoints"] for row in content["annotations"] if isinstance(row, dict) and row.get("keypoints")]
        named = {len(row["keypoints"]) for row in content["categories"] if isinstance(row.get("keypoints"), list)}
        counts = (named - {0}) or {len(flat) // 3 for flat in stated if isinstance(flat, list)}
        if stated and len(counts) == 1:
            return counts.pop()
        if stated:
            self.tell(f"key points come in different numbers ({sorted(counts)}); none are read, boxes are kept")
        return None

    def _points(self, name: str, row: Row) -> NDArray[np.float64] | None:
        stated = row.get("keypoints")
        if self.count is None or not stated:
            return None
        if not isinstance(stated, list) or len(stated) != 3 * self.count:
            seen = len(stated) if isinstance(stated, list) else stated
            self.tell(f"{name}: keypoints has {seen} numbers, not {3 * self.count}; they are absent, its box is kept")
            return None
        points = np.array([as_number(value) for value in stated]).reshape(-1, 3)
        bad = ~np.isfinite(points).all(axis=1) | ~np.isin(points[:, 2], (0, 1, 2))
        if bad.any():
            self.tell(f"{name}: keypoints {np.flatnonzero(bad).tolist()} are not finite x, y and visibility 0, 1 or 2")
        points[bad | (points[:, 2] == 0)] = 0
        return points

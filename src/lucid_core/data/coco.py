"""Reader of COCO annotation files."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.coco_objects import CocoObject, ObjectReader, angle_in_degrees
from lucid_core.data.coco_points import names_fault, point_count, read_points
from lucid_core.data.coco_values import (
    Row,
    as_id,
    as_tile,
    clamp_box,
    load_json,
    matching_id,
    read_categories,
)
from lucid_core.data.points import mirror_remark
from lucid_core.data.problems import Fault, Kind, Problem, first_fault
from lucid_core.data.records import DataSet, Listing, make_instances, make_truth
from lucid_core.data.scan import PictureScan, Size
from lucid_core.data.types import DataError, Record, Task, Wanted

__all__ = ["read_coco", "read_coco_classes"]

#: Image rows by the image's id.
Images = dict[int | str, Row]
#: Annotations by the image's id, each with the name that messages call it by.
Rows = dict[int | str, list[tuple[str, Row]]]


def read_coco_classes(annotations: Path, task: Task = "detect") -> DataSet:
    """Read the table of classes, and of key points, alone: a split without images.

    Raises:
        DataError: The file is no COCO json, or its tables are ambiguous.
    """
    content = load_json(annotations)
    points = read_points(content, annotations) if task == "keypoints" else None
    return DataSet((), *read_categories(content["categories"], annotations), points=points)


def read_coco(images_dir: Path, annotations: Path, scan: PictureScan | None = None, task: Task = "detect") -> DataSet:
    """Read one split of a COCO data set.

    Every picture is looked at, so that none is left in the split that cannot be decoded or is not of the size that its
    labels were made for. What is read of an annotation:

    - Categories in the order of their ids become labels ``0 .. C-1``; images come in the order of their ids, which may
      be numbers or text.
    - ``bbox`` is clamped to the image for training; evaluation keeps it as stated, as pycocotools does. A box that is
      not four finite numbers, or has no area inside the image, is left out of both. Without ``bbox`` the envelope of
      the polygons is taken.
    - ``iscrowd`` and ``ignore`` objects are not trained; for evaluation both are crowd regions, which cost a detection
      nothing.
    - ``segmentation``: all rings of at least three points, cut at the border. A bad ring is left out, and so are all
      where none has area within the box; the box stays. A mask in run lengths gives no polygon.
    - ``area`` as stated where it is finite and positive, else that of the box; for ``segment`` that of the mask.
    - ``keypoints``, where categories or annotations have one common count ``K``; what is wrong about a point makes
      that point absent, not the object, and so does a place outside the image.

    The task decides what an object must have:

    - ``segment``: a ring or a mask in run lengths, which is outlined exactly; of several rings all are kept together,
      and the object covers what any of them does. An object without, or with none that has area within its box, is
      left out. Key points are not read.
    - ``obb``: ``rbox``, five numbers ``cx, cy, w, h, angle``: pixels, and radians from the x axis to the side ``w``,
      clockwise on the screen; or else a segmentation of one ring of four points. Where one angle can only be degrees,
      no ``rbox`` of the file is taken. Box and area are those of the corners, and the stated ones are not read. Objects
      that are ``difficult`` are trained, and need not be found in evaluation.
    - ``keypoints``: nothing more, but the data set must say which points there are. By their names left and right
      change places in mirrored images.

    Args:
        images_dir: The folder that ``file_name`` is relative to; names that lead out of it are refused.
        annotations: The json file.
        scan: Looks at the pictures.
        task: What is learnt.

    Returns:
        The split; whatever was left out is in its ``problems``.

    Raises:
        DataError: The file is no COCO json, its ids or key points are ambiguous, or no image of it is usable.
    """
    content = load_json(annotations)
    reader = _Reader(images_dir, annotations, content, task)
    images = reader.images(content.pop("images"))
    rows = reader.by_image(content.pop("annotations"), images)
    files = reader.files(images, rows)
    sizes = (scan or PictureScan())(list(files.values()))
    # Each row is dropped as soon as its arrays exist: a large json takes several times its size as dictionaries.
    ordered = sorted(files, key=lambda key: (isinstance(key, str), key))
    read = (reader.record(key, images.pop(key), rows.pop(key, []), files[key], sizes[files[key]]) for key in ordered)
    records = tuple(record for record in read if record is not None)
    if not records:
        seen = first_fault(reader.problems)
        raise DataError(f"{annotations}: none of its images is usable with the pictures in {images_dir}{seen}")
    reader.conclude(records)
    return DataSet(records, reader.names, reader.category_ids, tuple(reader.problems), reader.points)


class _Reader:
    """Turns the rows of one json into records, and collects what was wrong with them."""

    def __init__(self, images_dir: Path, annotations: Path, content: Row, task: Task) -> None:
        self.task: Task = task
        self.folder = images_dir
        self.file = annotations
        self.problems: list[Problem] = []
        self.names, self.category_ids = read_categories(content["categories"], annotations)
        self.points = read_points(content, annotations) if task == "keypoints" else None
        self.count, counts = None if self.points is None else self.points.count, list[int]()
        if task == "detect":
            self.count, counts = point_count(content)
        if self.points is not None and (remark := mirror_remark(self.points, names_fault(content))) is not None:
            self.tell(*remark)
        if counts and self.count is None:
            differ = f"key points come in different numbers or in none ({counts}); none are read, boxes are kept"
            self.tell(Kind.KEY_POINTS, differ)
        labels = {category: label for label, category in enumerate(self.category_ids)}
        degrees = angle_in_degrees(content["annotations"]) if task == "obb" else ""
        self._objects = ObjectReader(labels, self.count, self.tell, Wanted(task, self.count or 0), degrees)
        self._seen: dict[Path, int | str] = {}

    def tell(self, kind: Kind, text: str, where: str = "") -> None:
        self.problems.append(Problem(kind, f"{self.file}: {text}", self.file, where))

    def images(self, rows: list[Any]) -> Images:
        """Key the image rows by their id."""
        images: Images = {}
        for position, row in enumerate(rows):
            key = as_id(row.get("id")) if isinstance(row, dict) else None
            if key is None:
                self.tell(Kind.IMAGE_ENTRY, f"images[{position}] has no id; left out", f"images[{position}]")
            elif key not in images:
                images[key] = row
            elif images[key].get("file_name") == row.get("file_name"):
                self.tell(Kind.REPEATED_IMAGE, f"image {key} is listed twice; it is taken once", f"image {key}")
            else:
                raise DataError(
                    f"{self.file}: image id {key!r} belongs to {images[key].get('file_name')} and to "
                    f"{row.get('file_name')}, so that annotations cannot be told apart; give each image its own id"
                )
        return images

    def by_image(self, rows: list[Any], images: Images) -> Rows:
        """Group annotations by the image they belong to, each with a name for messages."""
        grouped: Rows = defaultdict(list)
        ids: Counter[Any] = Counter()
        for position, row in enumerate(rows):
            if not isinstance(row, dict):
                place = f"annotations[{position}]"
                self.tell(Kind.MALFORMED, f"{place} is not an object; left out", place)
                continue
            stated = as_id(row.get("id"))
            ids[stated] += stated is not None
            name = f"annotations[{position}] (no id)" if stated is None else f"annotation {stated}"
            image = matching_id(row.get("image_id"), images)
            if image is None:
                seen = f"{name} is of image {row.get('image_id')!r}, which is not listed; left out"
                self.tell(Kind.IMAGE_UNLISTED, seen, name)
            else:
                grouped[image].append((name, row))
        repeated = [str(key) for key, times in ids.items() if times > 1]
        if repeated:
            self.tell(
                Kind.REPEATED_ID,
                f"{len(repeated)} annotation ids occur more than once ({', '.join(repeated[:5])}); all objects are "
                f"kept, ids are not used",
            )
        return grouped

    def files(self, images: Images, rows: Rows) -> dict[int | str, Path]:
        """Find the pictures of the images; those without one are left out."""
        listing, found = Listing(), {}
        for key, image in images.items():
            try:
                found[key] = listing.inside(self.folder, image.get("file_name"))
            except Fault as fault:
                self._leave_out(key, fault.kind, str(fault), len(rows.get(key, ())))
        return found

    def record(
        self, image_id: int | str, image: Row, rows: list[tuple[str, Row]], path: Path, seen: Size | DataError
    ) -> Record | None:
        """Read one image with its annotations; ``None`` if it must be left out."""
        try:
            width, height = self._size(image, path, seen)
        except Fault as fault:
            self._leave_out(image_id, fault.kind, str(fault), len(rows))
            return None
        name = f"image {image_id}"
        if path in self._seen:
            same = f"{name} is the same file as image {self._seen[path]}, {path.name}; both are kept"
            self.tell(Kind.REPEATED_IMAGE, same, name)
        self._seen.setdefault(path, image_id)

        objects: list[CocoObject] = []
        tile = as_tile(image)
        for annotation, row in rows:
            try:
                objects.append(self._objects.read(annotation, path.name, row, width, height, tile is not None))
            except Fault as fault:
                self.tell(fault.kind, f"{annotation} of {path.name}: {fault}; left out", annotation)
        if rows and not objects:
            unusable = f"{name}, {path.name}: none of its annotations is usable; left out"
            self.tell(Kind.NO_USABLE_LABEL, unusable, name)
            return None
        twice = len(objects) - len({(one.label, one.box, one.crowd) for one in objects})
        if twice:
            repeat = f"{name}, {path.name}: {twice} boxes repeat another of the same class; all are kept"
            self.tell(Kind.REPEATED_OBJECT, repeat, name)
        return replace(self._pack(path, image_id, width, height, objects), tile=tile)

    def _pack(self, path: Path, image_id: int | str, width: int, height: int, objects: list[CocoObject]) -> Record:
        taught = [one for one in objects if not one.crowd]
        boxes = [clamp_box(one.box, width, height) if one.oriented is None else one.oriented.box for one in taught]
        rboxes = [one.oriented.rbox for one in taught if one.oriented is not None]
        quads = [one.oriented.quad for one in objects if one.oriented is not None]
        oriented = self.task == "obb"
        return Record(
            image=path,
            image_id=image_id,
            width=width,
            height=height,
            instances=make_instances(
                boxes,
                [one.label for one in taught],
                [one.rings for one in taught],
                self._stacked(taught),
                rboxes if oriented else None,
            ),
            truth=make_truth(
                [one.box for one in objects],
                [one.label for one in objects],
                [one.area for one in objects],
                [one.crowd for one in objects],
                [one.segment for one in objects] if self.task == "segment" else None,
                quads if oriented else None,
                [one.difficult for one in objects] if oriented else None,
                self._stacked(objects) if self.task == "keypoints" else None,
            ),
        )

    def _stacked(self, objects: list[CocoObject]) -> NDArray[np.float64] | None:
        if self.count is None:
            return None
        absent = np.zeros((self.count, 3))
        stacked = [absent if one.points is None else one.points for one in objects]
        return np.array(stacked, dtype=np.float64).reshape(-1, self.count, 3)

    def conclude(self, records: tuple[Record, ...]) -> None:
        """Tell what concerns the file as a whole, in one line each."""
        unfilled = self._objects.unfilled
        if unfilled:
            names = ", ".join(unfilled[:20]) + (" ..." if len(unfilled) > 20 else "")
            empty = f"{len(unfilled)} annotations have an empty segmentation, their boxes are kept: {names}"
            self.tell(Kind.NO_POLYGON, empty)
        if not any(len(record.truth.boxes) for record in records):
            unlabelled = f"has no annotations for its {len(records)} usable images: all are background"
            self.tell(Kind.NO_LABELS, unlabelled)
        elif self.points is not None and not any(record.truth.points[..., 2].any() for record in records):  # type: ignore[index]
            self.tell(Kind.NO_LABELS, "no usable annotation has a key point: there is nothing to learn of them")

    def _leave_out(self, image_id: int | str, kind: Kind, text: str, annotations: int) -> None:
        self.tell(kind, f"image {image_id}: {text}; left out with its {annotations} annotations", f"image {image_id}")

    def _size(self, image: Row, path: Path, seen: Size | DataError) -> Size:
        if isinstance(seen, DataError):
            raise Fault(Kind.PICTURE_UNREADABLE, str(seen))
        if image.get("width") is None or image.get("height") is None:
            return seen
        try:
            width, height = int(image["width"]), int(image["height"])
        except (TypeError, ValueError, OverflowError):
            width = height = 0
        if width < 1 or height < 1:
            text = f"width {image['width']!r} and height {image['height']!r} are not a size in pixels"
            raise Fault(Kind.IMAGE_ENTRY, text)
        if (width, height) != seen:
            raise Fault(
                Kind.PICTURE_SIZE,
                f"{path} is {seen[0]} x {seen[1]} pixels upright, but its labels are for {width} x {height}; correct "
                f"the size and the boxes in the annotations, or restore the picture",
            )
        return seen

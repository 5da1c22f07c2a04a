"""Reader of YOLO folders: a ``data.yaml``, pictures, and one text file of labels per picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lucid_core.data.problems import Fault, Kind, Problem
from lucid_core.data.records import TOLERANCE, DataSet, make_instances, make_truth
from lucid_core.data.scan import PictureScan, Size
from lucid_core.data.types import DataError, Float32, Record, UnreadableNow
from lucid_core.data.yolo_files import YoloFiles, image_ids, read_lines

__all__ = ["read_yolo", "read_yolo_classes"]


def read_yolo_classes(data_yaml: Path) -> DataSet:
    """Read the class table alone: a split without images.

    Raises:
        DataError: The yaml is not usable.
    """
    names = YoloFiles(data_yaml).names
    return DataSet((), names, tuple(range(len(names))))


def read_yolo(data_yaml: Path, split: str, scan: PictureScan | None = None) -> DataSet:
    """Read one split of a YOLO data set.

    The yaml has ``names`` (a list, or a mapping from 0 on) and an entry for each split: a folder, searched with all
    its sub-folders, or a ``.txt`` list of pictures, or several of these. Entries are relative to ``path`` if the yaml
    has one, and to the yaml itself; leading ``..`` that lead nowhere are dropped. Nothing outside these two folders is
    read.

    The labels of ``images/x/a.jpg`` are in ``labels/x/a.txt`` (the last folder called ``images`` counts), or beside
    the picture where no folder is called so. A picture without label file is background, and so is one with an empty
    file. Rows are

    - ``class cx cy w h``, shares of the picture; or
    - ``class x1 y1 x2 y2 x3 y3 ...``, a polygon of three or more points, whose envelope is the box;
    - with ``kpt_shape`` in the yaml, ``class cx cy w h`` followed by key points, which are not read.

    Values up to :data:`~lucid_core.data.records.TOLERANCE` outside [0, 1] are clamped, boxes are clamped to the
    picture. Other rows are left out and told; a picture none of whose rows is usable is left out whole, as is one that
    cannot be decoded.

    Args:
        data_yaml: The yaml file.
        split: ``train``, ``val`` or ``test``.
        scan: Looks at the pictures.

    Returns:
        The split, folders in path order and lists in their own; whatever was left out is in its ``problems``.

    Raises:
        NoSplit: The yaml has no entry for the split.
        DataError: The yaml is not usable, an entry leads nowhere or out of the data set, or no picture is usable.
    """
    files = YoloFiles(data_yaml)
    images = files.images(split)
    sizes = (scan or PictureScan())(images)
    reader = _Reader(files)
    read = (reader.record(image, key, sizes[image]) for image, key in zip(images, image_ids(images), strict=True))
    records = tuple(record for record in read if record is not None)
    if not records:
        raise DataError(f"{data_yaml}: no picture of split {split!r} is usable; {files.problems[0]}")
    if not reader.labelled:
        seen = (
            f"{data_yaml}: none of the {len(images)} pictures of split {split!r} has a label file, so all are "
            f"background; looked for {files.label_path(images[0])}"
        )
        files.problems.append(Problem(Kind.NO_LABELS, seen, data_yaml))
    names = files.names
    return DataSet(records, names, tuple(range(len(names))), tuple(files.problems))


class _Reader:
    """Turns pictures and label files into records, and adds what was wrong with them to the problems."""

    def __init__(self, files: YoloFiles) -> None:
        self.files = files
        self.keypoints = "kpt_shape" in files.config
        #: Label files, and the picture that each was first read for.
        self.labelled: dict[Path, Path] = {}

    def tell(self, kind: Kind, message: str, file: Path, where: str = "") -> None:
        self.files.problems.append(Problem(kind, message, file, where))

    def record(self, image: Path, image_id: str, seen: Size | DataError) -> Record | None:
        """Read the labels of one picture; ``None`` if it must be left out."""
        file = self.files.labels(image)
        if file is not None:
            other = self.labelled.setdefault(file, image)
            if other != image:
                self.tell(Kind.SHARED_LABELS, f"{file}: is the label file of {other.name} and of {image.name}", file)
        if isinstance(seen, DataError):
            self.tell(Kind.PICTURE_UNREADABLE, f"{seen}; left out", image)
            return None
        try:
            lines = [] if file is None else read_lines(file)
        except UnreadableNow:
            raise
        except DataError as error:
            self.tell(Kind.LABEL_FILE, f"{error}; {image.name} is left out", file or image)
            return None
        boxes, labels, polygons = [], [], []
        for number, line in lines:
            place = f"{file}:{number}"
            try:
                row = _row(line.split(), len(self.files.names), seen, self.keypoints)
            except Fault as fault:
                self.tell(fault.kind, f"{place}: {fault}; left out", file or image, f"line {number}")
                continue
            if row.clipped:
                text = f"{place}: the box reaches outside the picture; clipped at the border"
                self.tell(Kind.CLIPPED, text, file or image, f"line {number}")
            boxes.append(row.box)
            labels.append(row.label)
            polygons.append(row.rings)
        if lines and not boxes:
            self.tell(Kind.NO_USABLE_LABEL, f"{image}: none of its label rows is usable; left out", image)
            return None
        twice = len(boxes) - len(set(zip(labels, boxes, strict=True)))
        if twice:
            text = f"{file}: {twice} boxes repeat another of the same class; all are kept"
            self.tell(Kind.REPEATED_OBJECT, text, file or image)
        areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in boxes]
        return Record(
            image=image,
            image_id=image_id,
            width=seen[0],
            height=seen[1],
            instances=make_instances(boxes, labels, polygons),
            truth=make_truth(boxes, labels, areas, [False] * len(boxes)),
        )


class _Row(NamedTuple):
    """One row of a label file, in pixels."""

    label: int
    box: tuple[float, float, float, float]
    rings: tuple[Float32, ...]
    clipped: bool


def _row(fields: list[str], classes: int, size: Size, keypoints: bool) -> _Row:
    if len(fields) == 1 and "," in fields[0]:
        raise Fault(Kind.MALFORMED, f"{fields[0]!r} is separated by commas; separate the numbers by blanks")
    count = len(fields)
    is_box = count == 5 or (keypoints and count > 5)
    if not is_box and (count < 7 or count % 2 == 0):
        seen = f"has {count} fields; a box has 5, a polygon has 7 or more, an odd number"
        raise Fault(Kind.MALFORMED, seen)
    label = _label(fields[0], classes)
    values = np.array([_share(field) for field in (fields[1:5] if is_box else fields[1:])])
    if is_box:
        cx, cy, w, h = values.tolist()
        shares = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
        rings: tuple[Float32, ...] = ()
    else:
        ring = values.reshape(-1, 2)
        shares = (*ring.min(axis=0).tolist(), *ring.max(axis=0).tolist())
        rings = ((ring * size).astype(np.float32),)
    clipped = not all(-TOLERANCE <= share <= 1 + TOLERANCE for share in shares)
    x1, x2 = (min(max(shares[i], 0.0), 1.0) * size[0] for i in (0, 2))
    y1, y2 = (min(max(shares[i], 0.0), 1.0) * size[1] for i in (1, 3))
    if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
        raise Fault(Kind.NO_AREA, "the box has no area")
    return _Row(label, (x1, y1, x2, y2), rings, clipped)


def _label(field: str, classes: int) -> int:
    try:
        value = float(field)
    except ValueError:
        raise Fault(Kind.MALFORMED, f"class {field!r} is not a number; write its index in 'names'") from None
    if not value.is_integer() or not 0 <= value < classes:
        raise Fault(Kind.UNKNOWN_CLASS, f"class {field} is not a whole number from 0 to {classes - 1}")
    return int(value)


def _share(field: str) -> float:
    try:
        value = float(field)
    except ValueError:
        raise Fault(Kind.MALFORMED, f"{field!r} is not a number") from None
    if not math.isfinite(value):
        raise Fault(Kind.NOT_FINITE, f"{field} is not a finite number")
    if not -TOLERANCE <= value <= 1 + TOLERANCE:
        pixels = "; divide pixels by the size of the picture" if value > 2 else ""
        raise Fault(Kind.OUT_OF_RANGE, f"{field} is not a share of the picture in [0, 1]{pixels}")
    return min(max(value, 0.0), 1.0)

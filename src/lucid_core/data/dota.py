"""Reader of DOTA text: per picture one file of corners in pixels, class name and difficulty."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lucid_core.data.problems import Fault, Kind, Problem
from lucid_core.data.quads import Oriented, oriented
from lucid_core.data.records import DataSet, Listing, make_instances, make_truth
from lucid_core.data.scan import PictureScan, Size
from lucid_core.data.types import DataError, Record, UnreadableNow
from lucid_core.data.yolo_files import SUFFIXES, image_ids, read_lines

__all__ = ["DotaPlace", "dota_places", "read_dota", "read_dota_classes"]

ROW = "x1 y1 x2 y2 x3 y3 x4 y4 class difficulty, corners in pixels"
#: Lines about the picture that stand above the objects.
HEADERS = ("imagesource:", "gsd:")


class DotaPlace(NamedTuple):
    """Where the files of one split are.

    Attributes:
        root: The folder of the data set; ``classes.txt`` in it names the classes, one a line.
        images: The folder of the pictures, or a text file that lists them, relative to ``root``.
        labels: The folder of the text files.
    """

    root: Path
    images: Path
    labels: Path


class _Object(NamedTuple):
    label: int
    found: Oriented
    difficult: bool


def dota_places(root: Path, split: str) -> Iterator[DotaPlace]:
    """List every place that a split may have."""
    for name in (split, *(("valid",) if split == "val" else ())):
        yield DotaPlace(root, root / name / "images", root / name / "labelTxt")
        yield DotaPlace(root, root / "images" / name, root / "labelTxt" / name)
        for labels in ("labelTxt", "labels"):
            yield DotaPlace(root, root / f"{name}.txt", root / labels)


def read_dota_classes(place: DotaPlace) -> DataSet:
    """Read the class table: ``classes.txt``, else the names in all label files of the data set, sorted.

    Raises:
        DataError: A file cannot be read, or there is no name.
    """
    file = place.root / "classes.txt"
    if file.is_file():
        names = list(dict.fromkeys(line for _, line in read_lines(file)))
    else:
        folders = {one.labels for split in ("train", "val", "test") for one in dota_places(place.root, split)}
        files = [
            path for folder in sorted(folders | {place.labels}) if folder.is_dir() for path in folder.glob("*.txt")
        ]
        names = sorted({name for path in files for name in _names(path)})
    if not names:
        raise DataError(f"{place.labels}: no file in it has a row {ROW}, and {file} does not name any class")
    return DataSet((), tuple(names), tuple(range(len(names))))


def read_dota(place: DotaPlace, scan: PictureScan | None = None) -> DataSet:
    """Read one split of DOTA text.

    A row is ``x1 y1 x2 y2 x3 y3 x4 y4 class difficulty``; the difficulty may be left out, and any but 0 is difficult:
    such an object is trained, and need not be found in evaluation. Lines ``imagesource:`` and ``gsd:`` are skipped. A
    picture without label file is background, and so is one whose file has no row.

    Args:
        place: Where it is.
        scan: Looks at the pictures.

    Returns:
        The split; whatever was left out is in its ``problems``.

    Raises:
        DataError: A file cannot be read, or no picture is usable.
    """
    names = read_dota_classes(place).class_names
    reader = _Reader(place, names)
    images = reader.images()
    sizes = (scan or PictureScan())(images)
    read = (reader.record(path, name, sizes[path]) for path, name in zip(images, image_ids(images), strict=True))
    records = tuple(record for record in read if record is not None)
    if not records:
        seen = f"; {reader.problems[0]}" if reader.problems else ""
        raise DataError(f"{place.images}: no picture is usable with the labels in {place.labels}{seen}")
    if not reader.labelled:
        seen = f"{place.labels}: none of the {len(images)} pictures has a label file, so all are background"
        reader.problems.append(Problem(Kind.NO_LABELS, seen, place.labels))
    return DataSet(records, names, tuple(range(len(names))), tuple(reader.problems))


class _Reader:
    """Turns pictures and label files into records, and collects what was wrong with them."""

    def __init__(self, place: DotaPlace, names: tuple[str, ...]) -> None:
        self.place = place
        self.labels = {name: label for label, name in enumerate(names)}
        self.problems: list[Problem] = []
        self.labelled = 0
        self._listing = Listing()

    def images(self) -> list[Path]:
        place = self.place
        if place.images.is_dir():
            names = self._listing.names(place.images)
            return [
                place.images / name for name in sorted(set(names.values())) if Path(name).suffix.lower() in SUFFIXES
            ]
        found: dict[Path, None] = {}
        for number, line in read_lines(place.images):
            try:
                found[self._listing.inside(place.root, line)] = None
            except Fault as fault:
                where = f"line {number}"
                self._tell(fault.kind, f"{place.images}:{number}: {fault}; left out", place.images, where)
        return list(found)

    def record(self, image: Path, image_id: str, seen: Size | DataError) -> Record | None:
        """Read the labels of one picture; ``None`` if it must be left out."""
        if isinstance(seen, DataError):
            self._tell(Kind.PICTURE_UNREADABLE, f"{seen}; left out", image)
            return None
        file = self._listing.find(self.place.labels, image.stem + ".txt")
        self.labelled += file is not None
        objects: list[_Object] = []
        try:
            rows = [] if file is None else _rows(file)
        except UnreadableNow:
            raise
        except DataError as error:
            self._tell(Kind.LABEL_FILE, f"{error}; {image.name} is left out", file or image)
            return None
        for number, fields in rows:
            where = f"line {number}"
            try:
                one = self._object(fields, seen)
            except Fault as fault:
                self._tell(fault.kind, f"{file}:{number}: {fault}; left out", file or image, where)
                continue
            for kind, note in one.found.notes:
                self._tell(kind, f"{file}:{number}: {note}", file or image, where)
            objects.append(one)
        if rows and not objects:
            self._tell(Kind.NO_USABLE_LABEL, f"{image}: none of its label rows is usable; left out", image)
            return None
        twice = len(objects) - len({(one.label, one.found.box) for one in objects})
        if twice:
            text = f"{file}: {twice} boxes repeat another of the same class; all are kept"
            self._tell(Kind.REPEATED_OBJECT, text, file or image)
        boxes, labels = [one.found.box for one in objects], [one.label for one in objects]
        return Record(
            image=image,
            image_id=image_id,
            width=seen[0],
            height=seen[1],
            instances=make_instances(boxes, labels, [()] * len(boxes), None, [one.found.rbox for one in objects]),
            truth=make_truth(
                boxes,
                labels,
                [one.found.area for one in objects],
                [False] * len(boxes),
                quads=[one.found.quad for one in objects],
                difficult=[one.difficult for one in objects],
            ),
        )

    def _object(self, fields: list[str], size: Size) -> _Object:
        values, name, difficulty = _split(fields)
        if name not in self.labels:
            known = ", ".join(self.labels)
            raise Fault(Kind.UNKNOWN_CLASS, f"class {name!r} is not one of {known[:80]}")
        return _Object(self.labels[name], oriented(np.array(values).reshape(4, 2), *size), difficulty != 0)

    def _tell(self, kind: Kind, message: str, file: Path, where: str = "") -> None:
        self.problems.append(Problem(kind, message, file, where))


def _rows(file: Path) -> list[tuple[int, list[str]]]:
    """Read the rows of objects, numbered from 1."""
    return [(number, line.split()) for number, line in read_lines(file) if not line.lower().startswith(HEADERS)]


def _split(fields: list[str]) -> tuple[list[float], str, int]:
    """Take a row apart: eight numbers, the name of the class, the difficulty."""
    numbers = [_number(field) for field in fields]
    if len(fields) < 9 or None in numbers[:8]:
        raise Fault(Kind.MALFORMED, f"{' '.join(fields)[:60]!r} is not a row {ROW}")
    if None not in numbers:
        raise Fault(
            Kind.DIALECT,
            f"{' '.join(fields)[:60]!r} has numbers alone, as rows of YOLO have; a row here is {ROW}: read such files "
            f"as a YOLO folder with a data.yaml",
        )
    ends = len(fields) > 9 and fields[-1].lstrip("+-").isdecimal()
    # A name may hold blanks.
    name = " ".join(fields[8:-1] if ends else fields[8:])
    return [math.nan if value is None else value for value in numbers[:8]], name, int(fields[-1]) if ends else 0


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None


def _names(file: Path) -> set[str]:
    names = set()
    for _, fields in _rows(file):
        try:
            names.add(_split(fields)[1])
        except Fault:
            continue
    return names

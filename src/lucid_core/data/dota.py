"""Reader of DOTA text: per picture one file of corners in pixels, class name and difficulty."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import NamedTuple

import numpy as np

from lucid_core.data.problems import Fault, Kind, Problem, first_fault
from lucid_core.data.quads import oriented
from lucid_core.data.records import TOLERANCE, DataSet, Listing
from lucid_core.data.scan import PictureScan, Size
from lucid_core.data.text_labels import LabelRow, TextLabels, find_labels, image_ids, read_lines
from lucid_core.data.types import DataError, UnreadableNow, Wanted
from lucid_core.data.yolo_files import SUFFIXES

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
        DataError: ``classes.txt`` cannot be read, or there is no name.
    """
    names, remark = _classes(place)
    return DataSet((), names, tuple(range(len(names))), remark)


def read_dota(place: DotaPlace, scan: PictureScan | None = None) -> DataSet:
    """Read one split of DOTA text.

    A row is ``x1 y1 x2 y2 x3 y3 x4 y4 class difficulty``; the difficulty may be left out, else it is 0, 1 or 2, and any
    but 0 is difficult: such an object is trained, and need not be found in evaluation. Lines ``imagesource:`` and
    ``gsd:`` are skipped. A picture without label file is background, and so is one whose file has no row. Rows of
    shares of the picture are refused: they are of another kind of labels.

    Args:
        place: Where it is.
        scan: Looks at the pictures.

    Returns:
        The split; whatever was left out is in its ``problems``.

    Raises:
        DataError: A list cannot be read, or no picture is usable.
    """
    names, remark = _classes(place)
    problems = list(remark)
    listing = Listing()
    images = _images(place, listing, problems)
    sizes = (scan or PictureScan())(images)
    read_row = partial(_read, {name: label for label, name in enumerate(names)})
    labels = TextLabels(Wanted("obb"), read_row, problems, _lines)
    read = (
        labels.record(image, key, sizes[image], find_labels(listing, place.labels, image.stem))
        for image, key in zip(images, image_ids(images), strict=True)
    )
    records = tuple(record for record in read if record is not None)
    if not records:
        seen = first_fault(problems)
        raise DataError(f"{place.images}: no picture is usable with the labels in {place.labels}{seen}")
    if not labels.pictures:
        seen = f"{place.labels}: none of the {len(images)} pictures has a label file, so all are background"
        problems.append(Problem(Kind.NO_LABELS, seen, place.labels))
    return DataSet(records, names, tuple(range(len(names))), tuple(problems))


def _classes(place: DotaPlace) -> tuple[tuple[str, ...], tuple[Problem, ...]]:
    """Return the names of the classes, and a remark where rows alone name them."""
    file = place.root / "classes.txt"
    if file.is_file():
        names = tuple(dict.fromkeys(line for _, line in read_lines(file)))
        if not names:
            raise DataError(f"{file}: is empty; write the classes into it, one a line, or remove it")
        return names, ()
    folders = {one.labels for split in ("train", "val", "test") for one in dota_places(place.root, split)}
    found: set[str] = set()
    refused = ""
    for folder in sorted(folders | {place.labels}):
        for path in sorted(folder.glob("*.[tT][xX][tT]")):
            for number, line in _usable_lines(path):
                try:
                    found.add(_split(line.split())[1])
                except Fault as fault:
                    refused = refused or f"; {path}:{number}: {fault}"
    if not found:
        raise DataError(f"{place.labels}: no file in it has a row {ROW}, and there is no {file}{refused}")
    names = tuple(sorted(found))
    listed = shorten(", ".join(names), 500, placeholder=" ...")
    seen = f"{file}: no such file; the classes are those of the rows: {listed}; a list would tell misspelt ones"
    return names, (Problem(Kind.NO_CLASS_TABLE, seen, file),)


def _images(place: DotaPlace, listing: Listing, problems: list[Problem]) -> list[Path]:
    """List the pictures of a folder, or those that a file lists."""
    if place.images.is_dir():
        names = sorted(set(listing.names(place.images).values()))
        return [place.images / name for name in names if Path(name).suffix.lower() in SUFFIXES]
    found: dict[Path, None] = {}
    for number, line in read_lines(place.images):
        try:
            found[listing.inside(place.root, line)] = None
        except Fault as fault:
            seen = f"{place.images}:{number}: {fault}; left out"
            problems.append(Problem(fault.kind, seen, place.images, f"line {number}"))
    return list(found)


def _read(labels: dict[str, int], fields: list[str], size: Size) -> LabelRow:
    values, name, difficulty = _split(fields)
    if name not in labels:
        raise Fault(Kind.UNKNOWN_CLASS, f"class {name!r} is not one of {', '.join(labels)[:80]}")
    found = oriented(np.array(values).reshape(4, 2), *size)
    return LabelRow(labels[name], found.box, found.area, (), found.notes, found, difficult=difficulty != 0)


def _lines(file: Path) -> list[tuple[int, str]]:
    """Read the lines of objects, numbered from 1."""
    return [(number, line) for number, line in read_lines(file) if not line.lower().startswith(HEADERS)]


def _usable_lines(file: Path) -> list[tuple[int, str]]:
    """Read the lines of objects; a file that cannot be read has none, and is told where its picture is read."""
    try:
        return _lines(file)
    except UnreadableNow:
        raise
    except DataError:
        return []


def _split(fields: list[str]) -> tuple[list[float], str, float]:
    """Take a row apart: eight numbers, the name of the class, the difficulty."""
    row = " ".join(fields)[:60]
    numbers = [_number(field) for field in fields]
    values = [value for value in numbers[:8] if value is not None]
    if len(fields) < 9 or len(values) < 8:
        raise Fault(Kind.MALFORMED, f"{row!r} is not a row {ROW}")
    if None not in numbers:
        raise Fault(
            Kind.DIALECT,
            f"{row!r} has numbers alone, as rows of YOLO have; a row here is {ROW}: read such files as a YOLO folder "
            f"with a data.yaml",
        )
    if any(values) and all(abs(value) <= 1 + TOLERANCE for value in values):
        raise Fault(
            Kind.DIALECT, f"{row!r} has corners in shares of the picture; multiply them by its size: a row is {ROW}"
        )
    # A name may hold blanks.
    difficulty = numbers[-1] if len(fields) > 9 else None
    if difficulty not in (None, 0, 1, 2):
        seen = f"{row!r} ends in the difficulty {fields[-1]}, which is not 0, 1 or 2"
        raise Fault(Kind.MALFORMED, f"{seen}; a column that means something else belongs out of the file")
    return values, " ".join(fields[8:] if difficulty is None else fields[8:-1]), difficulty or 0


def _number(field: str) -> float | None:
    try:
        return float(field)
    except ValueError:
        return None

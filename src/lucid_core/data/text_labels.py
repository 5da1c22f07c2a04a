"""From pictures with a text file of labels each to records: what YOLO folders and DOTA text have in common."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.problems import Fault, Kind, Problem
from lucid_core.data.quads import Oriented
from lucid_core.data.records import Listing, make_instances, make_truth
from lucid_core.data.scan import Size
from lucid_core.data.types import DataError, Float32, Record, UnreadableNow, Wanted

__all__ = ["LabelRow", "TextLabels", "find_labels", "image_ids", "read_lines"]

Lines = list[tuple[int, str]]


class LabelRow(NamedTuple):
    """One row of a label file, in pixels.

    Attributes:
        label: Index of the class.
        box: ``x1, y1, x2, y2``.
        area: Pixels of the polygon or oriented box, else of the box.
        rings: A polygon or nothing.
        notes: What was changed: kinds and messages.
        oriented: The oriented box of a row of four corners.
        points: ``(K, 3)``: x, y and visibility.
        difficult: It need not be found.
    """

    label: int
    box: tuple[float, float, float, float]
    area: float
    rings: tuple[Float32, ...] = ()
    notes: tuple[tuple[Kind, str], ...] = ()
    oriented: Oriented | None = None
    points: NDArray[np.float64] | None = None
    difficult: bool = False


def read_lines(file: Path) -> Lines:
    """Read the non-blank lines of a text file, numbered from 1.

    Raises:
        DataError: It is no text.
        UnreadableNow: It could not be read for a reason that lies outside it.
    """
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        if (passing := UnreadableNow.because(file, error)) is not None:
            raise passing from error
        raise DataError(f"{file}: cannot be read as UTF-8 text ({error})") from None
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def find_labels(listing: Listing, folder: Path, stem: str) -> Path | None:
    """Find the label file of a picture by its stem."""
    return listing.find(folder, f"{stem}.txt") or listing.find(folder, f"{stem}.TXT")


def image_ids(images: list[Path]) -> list[str]:
    """Name each picture by its file name, with as many folders as it takes to tell all apart."""
    names = [image.name for image in images]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([image.parent for image in images])
    return [Path(os.path.relpath(image, common)).as_posix() for image in images]


class TextLabels:
    """Turns pictures and label files into records, and collects what was wrong with them.

    Args:
        wanted: What the task needs of an object.
        read: Reads what stands between the blanks of a row, for a picture of that size, or raises a
            :class:`~lucid_core.data.problems.Fault`.
        lines: Reads the rows of a file.
        problems: Gets what is wrong.

    Attributes:
        pictures: Label files, and the picture that each was first read for.
    """

    def __init__(
        self,
        wanted: Wanted,
        read: Callable[[list[str], Size], LabelRow],
        problems: list[Problem],
        lines: Callable[[Path], Lines] = read_lines,
    ) -> None:
        self.pictures: dict[Path, Path] = {}
        self._wanted = wanted
        self._read = read
        self._problems = problems
        self._lines = lines

    def record(self, image: Path, image_id: str, seen: Size | DataError, file: Path | None) -> Record | None:
        """Read the labels of one picture.

        Args:
            image: The picture.
            image_id: What it is called.
            seen: Its size, or why it cannot be used.
            file: Its label file; ``None`` makes it background.

        Returns:
            Its record; ``None`` if it must be left out.

        Raises:
            UnreadableNow: The file could not be read for a reason that lies outside it.
        """
        if file is not None and (other := self.pictures.setdefault(file, image)) != image:
            self._tell(Kind.SHARED_LABELS, f"{file}: is the label file of {other.name} and of {image.name}", file)
        if isinstance(seen, DataError):
            self._tell(Kind.PICTURE_UNREADABLE, f"{seen}; left out", image)
            return None
        rows: list[LabelRow] = []
        if file is not None:
            try:
                lines = self._lines(file)
            except UnreadableNow:
                raise
            except DataError as error:
                self._tell(Kind.LABEL_FILE, f"{error}; {image.name} is left out", file)
                return None
            rows = self._rows(file, lines, seen)
            if lines and not rows:
                self._tell(Kind.NO_USABLE_LABEL, f"{image}: none of its label rows is usable; left out", image)
                return None
        return self._record(image, image_id, seen, rows)

    def _rows(self, file: Path, lines: Lines, size: Size) -> list[LabelRow]:
        rows = []
        for number, line in lines:
            try:
                row = self._read(line.split(), size)
            except Fault as fault:
                self._tell(fault.kind, f"{file}:{number}: {fault}; left out", file, f"line {number}")
                continue
            for kind, note in row.notes:
                self._tell(kind, f"{file}:{number}: {note}", file, f"line {number}")
            rows.append(row)
        if twice := len(rows) - len({(row.label, row.box) for row in rows}):
            seen = f"{file}: {twice} boxes repeat another of the same class; all are kept"
            self._tell(Kind.REPEATED_OBJECT, seen, file)
        return rows

    def _record(self, image: Path, image_id: str, size: Size, rows: list[LabelRow]) -> Record:
        task, count = self._wanted
        boxes, labels, rings = [row.box for row in rows], [row.label for row in rows], [row.rings for row in rows]
        quads = [row.oriented for row in rows if row.oriented is not None] if task == "obb" else None
        points = None
        if task == "keypoints":
            points = np.array([row.points for row in rows], np.float64).reshape(-1, count, 3)
        return Record(
            image=image,
            image_id=image_id,
            width=size[0],
            height=size[1],
            instances=make_instances(
                boxes, labels, rings, points, None if quads is None else [quad.rbox for quad in quads]
            ),
            truth=make_truth(
                boxes,
                labels,
                [row.area for row in rows],
                [False] * len(rows),
                rings if task == "segment" else None,
                None if quads is None else [quad.quad for quad in quads],
                None if quads is None else [row.difficult for row in rows],
                points,
            ),
        )

    def _tell(self, kind: Kind, message: str, file: Path, where: str = "") -> None:
        self._problems.append(Problem(kind, message, file, where))

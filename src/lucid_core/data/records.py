"""What every reader makes of a data set, and how two splits are brought to one class table."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.points import PointTable
from lucid_core.data.problems import Fault, Kind, Problem, summarise
from lucid_core.data.types import DataError, Float32, Instances, Record, Segment, Truth, UnreadableNow

__all__ = ["TOLERANCE", "DataSet", "Listing", "make_instances", "make_truth", "match_classes"]

#: Rounding moves coordinates across the border by up to this share of the image; that much is clamped and not told.
TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class DataSet:
    """One split, read.

    Faults of single rows and files do not stop a run: they are left out by a rule and told in ``problems``. An image
    whose labels were all unusable is left out too, since without them it would be taught as background.

    Attributes:
        records: The images with their labels, in a fixed order.
        class_names: ``C`` names; a label is an index into them.
        category_ids: ``C`` ids for result files: those of the COCO json, or ``0 .. C-1``.
        problems: What is wrong with it and what was done, each once.
        points: The key points of its objects, where they are the task.
    """

    records: tuple[Record, ...]
    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    problems: tuple[Problem, ...] = ()
    points: PointTable | None = None

    def __len__(self) -> int:
        return len(self.records)

    def report(self, limit: int | None = 10) -> str:
        """Sum the split up in a few lines.

        Args:
            limit: Problems of each kind to tell; the rest is counted. ``None`` tells all.

        Returns:
            One line with the counts, then the problems by kind.
        """
        objects = sum(len(record.instances) for record in self.records)
        lines = [
            f"{len(self.records)} images, {objects} objects, {len(self.class_names)} classes, "
            f"{len(self.problems)} problems"
        ]
        return "\n  ".join(lines + summarise(self.problems, limit))


def match_classes(train: DataSet, other: DataSet) -> DataSet:
    """Give a second split the class table of the training split, by name.

    Two annotation files may list the same names under other ids, or in another order; equal ids prove nothing.

    Args:
        train: The split whose table holds.
        other: The split to bring to it.

    Returns:
        ``other`` with labels, names and category ids in the order of ``train``; its category ids remain its own.

    Raises:
        DataError: The names differ, or cannot be told apart, or the key points differ. The message shows both tables.
    """
    if other.points is not None and train.points is not None:
        seen = [(table.count, table.names) for table in (train.points, other.points)]
        if seen[0] != seen[1]:
            raise DataError(
                f"the splits disagree on their key points: train has {seen[0][0]} ({', '.join(seen[0][1])}); the other "
                f"split has {seen[1][0]} ({', '.join(seen[1][1])}). Give both the same points in the same order"
            )
    if other.class_names == train.class_names:
        return other
    if sorted(other.class_names) != sorted(train.class_names) or len(set(train.class_names)) < len(train.class_names):
        raise DataError(
            f"the splits disagree on their classes: train has {_table(train)}; the other split has {_table(other)}. "
            f"Give both the same names, each once"
        )
    to_train = np.array([train.class_names.index(name) for name in other.class_names], dtype=np.int64)
    records = tuple(
        replace(
            record,
            instances=replace(record.instances, labels=to_train[record.instances.labels]),
            truth=replace(record.truth, labels=to_train[record.truth.labels]),
        )
        for record in other.records
    )
    ids = tuple(other.category_ids[other.class_names.index(name)] for name in train.class_names)
    return replace(other, records=records, class_names=train.class_names, category_ids=ids)


def _table(data: DataSet) -> str:
    return "{" + ", ".join(f"{i}: {name}" for i, name in zip(data.category_ids, data.class_names, strict=True)) + "}"


class Listing:
    """Knows which files exist, from one listing per folder instead of one question per file."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, str]] = {}

    def find(self, folder: str | Path, name: str) -> Path | None:
        """Find a file by name.

        A name may be written in another Unicode form than the file system keeps (``é`` as one or two code points).

        Args:
            folder: Where to look.
            name: File name, without folders.

        Returns:
            The path as the file system spells it, or ``None``.
        """
        names = self.names(folder)
        found = names.get(name) or names.get(unicodedata.normalize("NFC", name))
        return None if found is None else Path(folder, found)

    def inside(self, root: Path, name: object) -> Path:
        """Find the file that an annotation names, below ``root``.

        Whether a name leads out of ``root`` is judged by the name: a symbolic link inside is followed wherever it
        leads, since whoever owns the folder has put it there.

        Args:
            root: The folder that names are relative to.
            name: What the annotation states: a relative path, or an absolute one below ``root``.

        Raises:
            Fault: It is no name, leads out of ``root``, or there is no such file.
        """
        if not isinstance(name, str) or not name:
            raise Fault(Kind.IMAGE_ENTRY, "has no file_name")
        # Annotation tools on Windows write backslashes; elsewhere a name may hold one.
        for spelling in dict.fromkeys((name, name.replace("\\", "/"))):
            below = os.path.normpath(os.path.relpath(spelling, root) if os.path.isabs(spelling) else spelling)
            if below.split(os.sep)[0] == os.pardir or os.path.isabs(below):
                raise Fault(Kind.PICTURE_OUTSIDE, f"file_name {name!r} leads out of {root}, which is refused")
            folder, file = os.path.split(os.path.join(root, below))
            found = self.find(folder, file)
            if found is not None:
                return found
        raise Fault(Kind.PICTURE_MISSING, f"file_name {name!r} is not in {root}")

    def names(self, folder: str | Path) -> dict[str, str]:
        """List a folder's files: name, exact or in Unicode form NFC, to the name as stored. Empty if there is none."""
        key = os.fspath(folder)
        if key not in self._folders:
            try:
                with os.scandir(key) as entries:
                    stored = sorted(entry.name for entry in entries if entry.is_file())
            except PermissionError:
                raise DataError(f"{key}: this folder may not be read; change its permissions") from None
            # There is no such folder; or the name cannot be one: too long, or with characters that none can have.
            except (OSError, ValueError) as error:
                if (passing := UnreadableNow.because(Path(key), error)) is not None:
                    raise passing from error
                stored = []
            composed = {unicodedata.normalize("NFC", name): name for name in stored}
            self._folders[key] = composed | {name: name for name in stored}
        return self._folders[key]


def make_instances(
    boxes: Sequence[Sequence[float]],
    labels: Sequence[int],
    polygons: Sequence[tuple[Float32, ...]],
    points: NDArray[np.float64] | None = None,
    rboxes: Sequence[Float32] | None = None,
) -> Instances:
    """Pack the training labels of one image.

    Args:
        boxes: ``n`` of ``x1, y1, x2, y2``.
        labels: ``n`` class indices.
        polygons: ``n`` tuples of rings.
        points: ``(n, K, 3)``: x, y, visibility; ``None`` where the data set has none.
        rboxes: ``n`` of ``(5,)``; ``None`` where the data set has none.

    Returns:
        The arrays, of the right shapes also for ``n = 0``.
    """
    return Instances(
        boxes=np.array(boxes, dtype=np.float32).reshape(-1, 4),
        labels=np.array(labels, dtype=np.int64),
        polygons=tuple(polygons),
        rboxes=None if rboxes is None else np.array(rboxes, dtype=np.float32).reshape(-1, 5),
        points=None if points is None else points[..., :2].astype(np.float32),
        visibility=None if points is None else points[..., 2].astype(np.int64),
    )


def make_truth(
    boxes: Sequence[Sequence[float]],
    labels: Sequence[int],
    areas: Sequence[float],
    crowd: Sequence[bool],
    segments: Sequence[Segment] | None = None,
    quads: Sequence[NDArray[np.float64]] | None = None,
    difficult: Sequence[bool] | None = None,
    points: NDArray[np.float64] | None = None,
) -> Truth:
    """Pack the evaluation labels of one image; arguments as the attributes of :class:`Truth`."""
    return Truth(
        boxes=np.array(boxes, dtype=np.float64).reshape(-1, 4),
        labels=np.array(labels, dtype=np.int64),
        areas=np.array(areas, dtype=np.float64),
        crowd=np.array(crowd, dtype=np.bool_),
        segments=None if segments is None else tuple(segments),
        quads=None if quads is None else np.array(quads, dtype=np.float64).reshape(-1, 4, 2),
        difficult=None if difficult is None else np.array(difficult, dtype=np.bool_),
        points=points,
    )

"""Cuts large pictures with oriented boxes into overlapping tiles, as DOTA is trained (arXiv 1711.10398, section 5)."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from lucid_core.data.geometry import WHOLE_SHARE, area, corners, cut, envelope, fit, refit
from lucid_core.data.images import ImageReader
from lucid_core.data.problems import Kind, Problem
from lucid_core.data.quads import LEAST_SIDE
from lucid_core.data.records import DataSet
from lucid_core.data.types import DataError, Record, UnreadableNow

__all__ = ["Cutter", "TileCount", "picture_names", "starts", "write_tiles"]

#: How each kind of file is written.
QUALITY = {".png": [cv2.IMWRITE_PNG_COMPRESSION, 1], ".jpg": [cv2.IMWRITE_JPEG_QUALITY, 95]}
#: Pictures that are handed to the threads at a time.
SLICE = 64

Row = dict[str, Any]
#: Hands on what it is given and shows how far it is.
Progress = Callable[[Iterable["list[Row] | DataError"], int], Iterable["list[Row] | DataError"]]


class TileCount(NamedTuple):
    """What became of a split.

    Attributes:
        images: Pictures that were to be cut.
        tiles: Of them.
        empty: Tiles without an object.
        objects: In all tiles.
        difficult: Of these objects.
        unseen: Objects of the pictures, neither crowd nor difficult there, that no tile shows to 70 %: they are
            difficult wherever they are seen, so that no evaluation counts them.
    """

    images: int
    tiles: int
    empty: int
    objects: int
    difficult: int
    unseen: int


def starts(length: int, patch: int, overlap: int) -> list[int]:
    """Return where windows begin along a side, pixels: each ``patch - overlap`` further, the last one flush.

    A side that is no longer than a patch has one window, as long as the side.
    """
    last = max(length - patch, 0)
    return [*range(0, last, patch - overlap), last]


@dataclass(frozen=True, slots=True)
class Cutter:
    """How pictures are cut.

    Attributes:
        patch: Side of a tile, pixels.
        overlap: Of neighbouring tiles, pixels.
        suffix: Of the files of the tiles: ``.png``, or ``.jpg`` with a little loss.
        workers: Threads.
        progress: Shows how far it is.
    """

    patch: int = 1024
    overlap: int = 200
    suffix: str = ".png"
    workers: int = 4
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.patch < 32 or not 0 <= self.overlap < self.patch:
            raise ValueError(
                f"patch is {self.patch} and overlap {self.overlap}: patches have 32 pixels or more, and overlap by "
                f"less than their side"
            )

    def rows(self, record: Record, name: str, folder: Path, ids: tuple[int, ...]) -> list[Row]:
        """Cut one picture, and write its tiles.

        Args:
            record: The picture with its evaluation labels, of which nothing is left out.
            name: What the tiles are called after.
            folder: Where they go.
            ids: Category id of each label.

        Returns:
            For each tile, row by row, its image entry; under ``annotations`` those of its objects, without ids but with
            the number of the ``object`` in the picture.
        """
        pixels = ImageReader().decode(record.image)
        height, width = pixels.shape[:2]
        if (width, height) != (record.width, record.height):
            raise DataError(f"{record.image}: is {width} x {height} pixels, and was {record.width} x {record.height}")
        rows = []
        for top in starts(height, self.patch, self.overlap):
            for left in starts(width, self.patch, self.overlap):
                right, bottom = min(left + self.patch, width), min(top + self.patch, height)
                file = f"{name}__{left}_{top}{self.suffix}"
                part = np.ascontiguousarray(pixels[top:bottom, left:right, ::-1])
                if not cv2.imwrite(str(folder / file), part, QUALITY[self.suffix]):
                    raise OSError(f"{folder / file}: could not be written")
                rows.append(
                    {
                        "file_name": file,
                        "width": right - left,
                        "height": bottom - top,
                        "source_image": str(record.image_id),
                        "window": [left, top, right, bottom],
                        "annotations": list(_objects(record, (left, top, right, bottom), ids)),
                    }
                )
        return rows


def _objects(record: Record, window: tuple[int, int, int, int], ids: tuple[int, ...]) -> Iterator[Row]:
    """Give the annotations of the objects in a window, in its coordinates."""
    truth = record.truth
    assert truth.quads is not None and truth.difficult is not None
    corner = np.array(window[:2], np.float64)
    rows = zip(truth.quads, truth.labels, truth.crowd, truth.difficult, strict=True)
    for number, (quad, label, crowd, difficult) in enumerate(rows):
        visible = cut(quad, window)
        seen = area(visible)
        if seen <= 0:
            continue
        whole = seen >= WHOLE_SHARE * area(quad)
        box = envelope(visible)
        if not whole:
            part = refit(visible, float(fit(quad[None])[0, 4]))
            # A sliver that the reader would refuse must not take its tile with it.
            if part[2:4].min() < LEAST_SIDE:
                continue
            quad = corners(part[None].astype(np.float64))[0]
        moved, (x1, y1, x2, y2) = quad - corner, (box - np.tile(corner, 2)).tolist()
        yield {
            "object": number,
            "category_id": ids[label],
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": area(quad),
            "iscrowd": int(crowd),
            "difficult": int(difficult or not whole),
            "segmentation": [moved.ravel().tolist()],
        }


def write_tiles(splits: dict[str, DataSet], out: Path, cutter: Cutter) -> tuple[dict[str, TileCount], list[Problem]]:
    """Cut whole splits into a COCO data set, whose images name their ``source_image`` and ``window``.

    Every window is written, also one without an object. An object is in every tile that shows a part of it: its
    corners as they are where at least 70 % of its area is there, else the smallest box in its own direction about
    that part, and ``difficult``. What was difficult stays so. The folder appears complete or not at all.

    Args:
        splits: Read for the task ``obb``, by name.
        out: The folder to make.
        cutter: How to cut.

    Returns:
        What became of each split, and the pictures that could not be cut.

    Raises:
        DataError: ``out`` is there and not empty.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise DataError(f"{out}: is there already; choose another folder, or remove it")
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    problems: list[Problem] = []
    try:
        (work / "annotations").mkdir()
        counts = {split: _write(data, work, split, cutter, problems) for split, data in splits.items()}
        work.chmod(0o755)
        if out.is_dir():
            out.rmdir()
        work.rename(out)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return counts, problems


def _write(data: DataSet, work: Path, split: str, cutter: Cutter, problems: list[Problem]) -> TileCount:
    folder = work / split
    folder.mkdir()
    images: list[Row] = []
    annotations: list[Row] = []
    unseen = 0
    pool = ThreadPoolExecutor(cutter.workers)
    try:
        cutting: Iterable[list[Row] | DataError] = _cut_all(pool, data, folder, cutter)
        if cutter.progress is not None:
            cutting = cutter.progress(cutting, len(data))
        for record, rows in zip(data.records, cutting, strict=True):
            if isinstance(rows, DataError):
                problems.append(Problem(Kind.PICTURE_UNREADABLE, f"{rows}; left out", record.image))
                continue
            unseen += _unseen(record, rows)
            for row in rows:
                image = {"id": len(images) + 1, **row}
                found = image.pop("annotations")
                images.append(image)
                for one in found:
                    del one["object"]
                first = len(annotations) + 1
                annotations += [{"id": first + n, "image_id": image["id"], **one} for n, one in enumerate(found)]
    finally:
        # An interrupt does not wait for the rest.
        pool.shutdown(cancel_futures=True)
    categories = [{"id": key, "name": name} for key, name in zip(data.category_ids, data.class_names, strict=True)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (work / "annotations" / f"instances_{split}.json").write_text(json.dumps(content))
    filled = {one["image_id"] for one in annotations}
    difficult = sum(one["difficult"] for one in annotations)
    return TileCount(len(data), len(images), len(images) - len(filled), len(annotations), difficult, unseen)


def _unseen(record: Record, rows: list[Row]) -> int:
    """Count the objects that evaluation would count in the picture, and counts in none of its tiles."""
    assert record.truth.difficult is not None
    counted = {one["object"] for row in rows for one in row["annotations"] if not one["difficult"]}
    in_picture = np.flatnonzero(~record.truth.difficult & ~record.truth.crowd)
    return len(set(in_picture.tolist()) - counted)


def _cut_all(pool: ThreadPoolExecutor, data: DataSet, folder: Path, cutter: Cutter) -> Iterator[list[Row] | DataError]:
    names = picture_names([record.image.stem for record in data.records])
    job = partial(_cut_one, cutter, folder, data.category_ids)
    for start in range(0, len(data), SLICE):
        part = slice(start, start + SLICE)
        yield from pool.map(job, data.records[part], names[part])


def _cut_one(cutter: Cutter, folder: Path, ids: tuple[int, ...], record: Record, name: str) -> list[Row] | DataError:
    try:
        return cutter.rows(record, name, folder, ids)
    except UnreadableNow:
        raise
    except DataError as error:
        return error


def picture_names(stems: Sequence[str]) -> list[str]:
    """Name pictures by the stems of their files; of several with one stem, the later ones by the next free number.

    No two differ in case alone, which some file systems do not tell apart.
    """
    taken = {stem.casefold() for stem in stems}
    numbers: dict[str, Iterator[int]] = {}
    names = []
    for stem in stems:
        name, key = stem, stem.casefold()
        if key in numbers:
            name = next(free for n in numbers[key] if (free := f"{stem}_{n}").casefold() not in taken)
            taken.add(name.casefold())
        else:
            numbers[key] = count(1)
        names.append(name)
    return names

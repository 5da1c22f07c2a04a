"""Host-side types of the data path: ``file -> Record -> Sample -> Batch``. NumPy only; nothing here needs torch."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "DETECT",
    "DataError",
    "Float32",
    "Instances",
    "NoSplit",
    "Record",
    "Rle",
    "Sample",
    "SampleKey",
    "Segment",
    "Task",
    "Tile",
    "Truth",
    "UnreadableNow",
    "Wanted",
]

Float32 = NDArray[np.float32]

#: What is learnt about an object besides its class and box: nothing, its mask, the rotation of its box, or key points.
Task = Literal["detect", "segment", "obb", "keypoints"]


class Wanted(NamedTuple):
    """Which labels a run reads, and so the structure of its batches.

    Attributes:
        task: What is learnt.
        points: ``K``, key points of each object; 0 for other tasks.
    """

    task: Task = "detect"
    points: int = 0


DETECT = Wanted()


class Rle(TypedDict):
    """A mask in run lengths, column by column, as pycocotools takes it.

    ``size`` is ``[height, width]``; ``counts`` are compressed.
    """

    size: list[int]
    counts: bytes


#: What an object covers: rings of ``(P, 2)`` pixels, as stated, or a mask.
Segment: TypeAlias = "tuple[Float32, ...] | Rle"


class DataError(ValueError):
    """A fault of the user's data. Its message names the file, what was seen and what to do."""


class NoSplit(DataError):
    """The data set has no such split at all, as opposed to one that cannot be used."""


class UnreadableNow(DataError):
    """A file could not be read, for a reason that says nothing about the file: it is not left out, the run ends."""

    @classmethod
    def because(cls, path: Path, error: Exception) -> UnreadableNow | None:
        """Tell a shortage, a failing disk and a lack of permission from a fault of the file.

        Args:
            path: The file or folder.
            error: What reading it raised.

        Returns:
            The error to raise; ``None`` where the file is to blame.
        """
        if not isinstance(error, MemoryError) and not (isinstance(error, OSError) and error.errno in _NO_FAULT):
            return None
        seen = " ".join(str(error).split()) or type(error).__name__
        return cls(
            f"{path}: could not be read now ({seen}); the file itself may be whole: try again once that is mended"
        )


#: Reasons that lie with the machine, the disk or the permissions.
_NO_FAULT = frozenset((errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM, errno.ESTALE, errno.EACCES, errno.EPERM))


@dataclass(frozen=True, slots=True)
class Instances:
    """The labelled objects of one image. All arrays have ``n`` rows, in the same order.

    Attributes:
        boxes: ``(n, 4)`` float32, ``x1, y1, x2, y2`` in pixels.
        labels: ``(n,)`` int64, contiguous from 0.
        polygons: ``n`` tuples of rings, each ring ``(P, 2)`` float32 pixels; an empty tuple where an object has none.
            An object covers all that any of its rings does; none goes around a hole.
        rboxes: ``(n, 5)`` float32, ``cx, cy, w, h, theta``, or ``None`` where the data set has none.
        points: ``(n, K, 2)`` float32 pixels, or ``None``.
        visibility: ``(n, K)`` int64, 0 absent, 1 hidden, 2 visible, or ``None``.
    """

    boxes: Float32
    labels: NDArray[np.int64]
    polygons: tuple[tuple[Float32, ...], ...]
    rboxes: Float32 | None = None
    points: Float32 | None = None
    visibility: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True, slots=True)
class Truth:
    """What evaluation needs to know of one image beyond its training labels, crowd regions included.

    Attributes:
        boxes: ``(m, 4)`` float64, ``x1, y1, x2, y2`` in pixels of the original image.
        labels: ``(m,)`` int64.
        areas: ``(m,)`` float64 pixels, as the annotation states them (box area where it states none).
        crowd: ``(m,)`` bool.
        segments: Of the task ``segment``: ``m`` segments as the annotation states them, crowd regions too.
        quads: Of the task ``obb``: ``(m, 4, 2)`` float64, corners of the oriented boxes as stated, pixels.
        difficult: Of the task ``obb``: ``(m,)`` bool, objects that need not be found.
        points: Of the task ``keypoints``: ``(m, K, 3)`` float64, x, y in pixels and visibility 0, 1 or 2.
    """

    boxes: NDArray[np.float64]
    labels: NDArray[np.int64]
    areas: NDArray[np.float64]
    crowd: NDArray[np.bool_]
    segments: tuple[Segment, ...] | None = None
    quads: NDArray[np.float64] | None = None
    difficult: NDArray[np.bool_] | None = None
    points: NDArray[np.float64] | None = None


class Tile(NamedTuple):
    """Where an image was cut from, for what is found in it to be put together again.

    Attributes:
        source: The picture that it was cut from.
        window: ``x1, y1, x2, y2`` in pixels of that picture.
    """

    source: str
    window: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One image of a data set, with its labels; pixels stay in the file.

    Attributes:
        image: The image file.
        image_id: The id of the image in its annotation file (COCO), else its file name.
        width: Pixels, upright (after the EXIF orientation).
        height: Pixels, upright.
        instances: Training labels in pixels of the upright original image, without crowd regions.
        truth: Evaluation labels.
        tile: Where it was cut from, if it was.
    """

    image: Path
    image_id: int | str
    width: int
    height: int
    instances: Instances
    truth: Truth
    tile: Tile | None = None


class SampleKey(NamedTuple):
    """All that a training sample depends on besides the data set and the recipe. It travels to the workers as data."""

    epoch: int
    position: int
    mosaic: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """One image as the network will see it, before it is collated.

    Attributes:
        image: ``(S, S, 3)`` uint8 RGB.
        instances: Labels in pixels of this image.
        index: The record it was made from.
        letterbox: ``(ratio, pad_x, pad_y)``; ``(1, 0, 0)`` for training samples.
        pasted: Rows of the objects that were pasted over all those before them, rising.
    """

    image: NDArray[np.uint8]
    instances: Instances
    index: int
    letterbox: tuple[float, float, float] = field(default=(1.0, 0.0, 0.0))
    pasted: Sequence[int] = ()

"""The whole image on a square canvas, and the way back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.geometry import affine
from lucid_core.data.mosaic import FILL
from lucid_core.data.recent import Source
from lucid_core.data.source import scaled_size
from lucid_core.data.types import Record, Sample

__all__ = ["Letterbox", "letterbox", "letterbox_sample", "to_canvas", "to_original"]

#: ``(ratio, pad_x, pad_y)``: canvas = ratio * original + pad.
Letterbox = tuple[float, float, float]


def letterbox(width: int, height: int, size: int) -> Letterbox:
    """Fit an image into a square, large or small.

    Args:
        width: Of the original image, pixels.
        height: Of the original image, pixels.
        size: Side of the canvas, pixels.

    Returns:
        The unrounded ratio and whole pads left and above; of an odd rest the larger half is right and below.
    """
    columns, rows = scaled_size(width, height, size)
    return size / max(width, height), float((size - columns) // 2), float((size - rows) // 2)


def to_canvas(points: NDArray[np.float64], box: Letterbox) -> NDArray[np.float64]:
    """Map ``(..., 2k)`` pairs of original pixels to pixels of the canvas."""
    ratio, *pad = box
    moved: NDArray[np.float64] = points * ratio + np.tile(pad, points.shape[-1] // 2)
    return moved


def to_original(points: NDArray[np.float64], box: Letterbox) -> NDArray[np.float64]:
    """Map ``(..., 2k)`` pairs of canvas pixels to pixels of the original image: the inverse of :func:`to_canvas`."""
    ratio, *pad = box
    moved: NDArray[np.float64] = (points - np.tile(pad, points.shape[-1] // 2)) / ratio
    return moved


def letterbox_sample(source: Source, records: Sequence[Record], index: int, size: int) -> Sample:
    """Make one evaluation sample.

    Args:
        source: Gives the image with its long side at ``size``.
        records: The split.
        index: Row of ``records``.
        size: Side of the canvas, pixels.

    Returns:
        The image in the middle of a grey canvas, with its labels.
    """
    record = records[index]
    pixels = source.source(index)
    ratio, left, top = box = letterbox(record.width, record.height, size)
    canvas = np.full((size, size, 3), FILL, np.uint8)
    rows, columns = pixels.shape[:2]
    canvas[int(top) : int(top) + rows, int(left) : int(left) + columns] = pixels
    matrix = np.array([[ratio, 0, left], [0, ratio, top]])
    return Sample(canvas, affine(record.instances, matrix), index, box)

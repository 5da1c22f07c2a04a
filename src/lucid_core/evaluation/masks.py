"""Masks of objects in pixels of the original image, from their factors to run lengths; a picture is never filled."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from lucid_core.data.letterbox import Letterbox
from lucid_core.data.types import Rle, Segment
from lucid_core.evaluation.original import Float64
from lucid_core.types import CELL

__all__ = ["encode", "masks_in", "rle_of"]

Float32 = NDArray[np.float32]


def masks_in(
    coefficients: Float32, prototypes: Float32, boxes: Float64, frame: Letterbox, width: int, height: int
) -> Iterator[Rle]:
    """Assemble the masks of one image, one after the other.

    The sum of the prototypes is taken between its cells, linearly, at the centre of each pixel of the original, and the
    mask is where it is positive, within the box: pixels whose centre lies in ``[x1, x2) x [y1, y2)``.

    Args:
        coefficients: ``(n, 32)``, factors.
        prototypes: ``(32, S/4, S/4)``, over the canvas.
        boxes: ``(n, 4)`` float64 ``x1, y1, x2, y2`` in pixels of the original, within it.
        frame: The letterbox of the image.
        width: Pixels of the original.
        height: Pixels of the original.

    Yields:
        Each mask, of the size of the original.
    """
    ratio, pad_x, pad_y = frame
    rows, columns = prototypes.shape[1:]
    # A pixel is inside from half its width before the border on.
    for factors, (left, top, right, bottom) in zip(
        coefficients, np.ceil(boxes - 0.5).astype(int).tolist(), strict=True
    ):
        if right <= left or bottom <= top:
            yield encode(np.zeros((0, 0), np.bool_), 0, 0, width, height)
            continue
        x, across = _between((np.arange(left, right) + 0.5) * ratio + pad_x, columns)
        y, down = _between((np.arange(top, bottom) + 0.5) * ratio + pad_y, rows)
        field = np.tensordot(factors, prototypes[:, y, x], 1)
        # Column by column, as run lengths count; a product of matrices is faster than picking neighbours.
        turned = across.T @ field.T @ down > 0
        yield encode(turned.T, left, top, width, height)


def _between(places: Float64, count: int) -> tuple[slice, Float32]:
    """Weigh cells linearly at rising places on the canvas; constant beyond the outer centres.

    Returns:
        The cells that count, and their weights ``(cells, places)``.
    """
    cells = np.clip(places / CELL - 0.5, 0, count - 1)
    before = np.minimum(cells.astype(np.intp), count - 2)
    first, end = int(before[0]), int(before[-1]) + 2
    weights = np.zeros((end - first, len(places)), np.float32)
    each = np.arange(len(places))
    weights[before - first, each] = 1 - (cells - before)
    weights[before - first + 1, each] = cells - before
    return slice(first, end), weights


def encode(window: NDArray[np.bool_], left: int, top: int, width: int, height: int) -> Rle:
    """Write a mask in run lengths, given the part of it outside of which it is empty.

    Args:
        window: ``(h, w)`` bool, within the picture.
        left: Its first column in the picture.
        top: Its first row in the picture.
        width: Of the picture, pixels.
        height: Of the picture, pixels.
    """
    # Pixels count column by column. A frame of empty ones gives every run in a column a start and an end.
    framed = np.zeros((window.shape[1], window.shape[0] + 2), np.bool_)
    framed[:, 1:-1] = window.T
    column, row = np.divmod(np.flatnonzero(framed[:, 1:] != framed[:, :-1]), window.shape[0] + 1)
    turns = (column + left) * height + row + top
    # A run at the bottom goes on at the top of the next column: its end there is the start of the other.
    joined = np.flatnonzero(turns[1:-1:2] == turns[2::2]) * 2 + 1
    turns = np.delete(turns, np.concatenate([joined, joined + 1]))
    end = [] if len(turns) and turns[-1] == width * height else [width * height]
    counts = np.diff(turns, prepend=0, append=end)
    packed: Rle = coco_mask.frPyObjects({"size": [height, width], "counts": counts.tolist()}, height, width)
    return packed


def rle_of(segment: Segment, width: int, height: int) -> Rle:
    """Give what an annotation states of an object as one mask, rasterised as COCO does: rings are joined."""
    if isinstance(segment, dict):
        return segment
    rings = [ring.astype(np.float64).ravel().tolist() for ring in segment if len(ring) > 2]
    if not rings:
        return encode(np.zeros((0, 0), np.bool_), 0, 0, width, height)
    merged: Rle = coco_mask.merge(coco_mask.frPyObjects(rings, height, width))
    return merged

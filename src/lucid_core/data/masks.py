"""Masks of the objects of a sample, on the grid of the prototypes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.types import Float32
from lucid_core.types import CELL

__all__ = ["rasterise"]


def rasterise(
    polygons: Sequence[tuple[Float32, ...]], size: int, stride: int = CELL, pasted: Sequence[int] = ()
) -> NDArray[np.bool_]:
    """Mark the cells whose centres lie inside polygons.

    An object covers what any of its rings does, each filled by the even-odd rule. A centre on a border belongs to the
    side right of it or below, and where two rings share an edge, to one of them.

    Args:
        polygons: For each of ``n`` objects its rings, ``(P, 2)`` pixels of the canvas; they may lead out of it.
        size: Side ``S`` of the canvas, pixels.
        stride: Pixels of the canvas along a side of a cell.
        pasted: Objects that were pasted over all those before them, whose masks they cover, by rising row.

    Returns:
        ``(n, S / stride, S / stride)`` bool, rows before columns.
    """
    cells = size // stride
    masks = np.zeros((len(polygons), cells, cells), np.bool_)
    rows = [row for row, rings in enumerate(polygons) for _ in rings]
    if not rows:
        return masks
    lengths = np.array([len(ring) for rings in polygons for ring in rings])
    # In units of cells, from the middle of the first one.
    starts = np.concatenate([ring for rings in polygons for ring in rings]).astype(np.float64) / stride - 0.5
    begins = lengths.cumsum() - lengths
    following = np.arange(1, len(starts) + 1)
    following[begins + lengths - 1] = begins
    ends = starts[following]
    low = _inner(np.minimum.reduceat(starts, begins), cells)
    high = _inner(np.maximum.reduceat(starts, begins), cells)
    # Downwards, so that an edge of two rings is rounded alike in both.
    rises = (starts[:, 1] > ends[:, 1])[:, None]
    starts, ends = np.where(rises, ends, starts), np.where(rises, starts, ends)
    # Each edge crosses the middle lines of some rows of cells; from there on to the right, inside and outside swap.
    first = _inner(starts[:, 1], cells)
    crossed = _inner(ends[:, 1], cells) - first
    edge = np.repeat(np.arange(len(starts)), crossed)
    line = np.arange(len(edge)) - np.repeat(crossed.cumsum() - crossed, crossed) + first[edge]
    share = (line - starts[edge, 1]) / (ends[edge, 1] - starts[edge, 1])
    column = np.ceil(starts[edge, 0] + share * (ends[edge, 0] - starts[edge, 0]))
    # Only the window about each ring is looked at. It has a column more, for swaps right of it.
    owner = np.repeat(np.arange(len(rows)), lengths)[edge]
    widths = high[:, 0] - low[:, 0] + 1
    areas = (high[:, 1] - low[:, 1]) * widths
    places = areas.cumsum() - areas
    place = places[owner] + (line - low[owner, 1]) * widths[owner]
    place += np.clip(column, low[owner, 0], high[owner, 0]).astype(np.intp) - low[owner, 0]
    inside = np.zeros(int(areas.sum()), np.uint8)
    np.bitwise_xor.at(inside, place, 1)
    # A closed ring crosses each line an even number of times, so that every row starts outside.
    np.bitwise_xor.accumulate(inside, out=inside)
    for row, (left, top), (right, bottom), place_of, area, width in zip(
        rows, low.tolist(), high.tolist(), places.tolist(), areas.tolist(), widths.tolist(), strict=True
    ):
        covered = inside[place_of : place_of + area].reshape(-1, width)[:, :-1].astype(np.bool_)
        masks[row, top:bottom, left:right] |= covered
    for row in pasted:
        masks[:row] &= ~masks[row]
    return masks


def _inner(values: NDArray[np.float64], cells: int) -> NDArray[np.intp]:
    return np.clip(np.ceil(values), 0, cells).astype(np.intp)

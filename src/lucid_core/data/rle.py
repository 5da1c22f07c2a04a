"""Masks in run lengths, as COCO json has them: checked, decoded, and outlined."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from lucid_core.data.coco_values import short
from lucid_core.data.problems import Fault, Kind
from lucid_core.data.types import Float32, Rle

__all__ = ["outline", "read_rle"]


def read_rle(stated: dict[str, Any], width: int, height: int) -> tuple[Rle, NDArray[np.bool_]]:
    """Read a mask, compressed or not.

    Args:
        stated: ``{"size": [height, width], "counts": [...] or "..."}``.
        width: Of the picture, pixels.
        height: Of the picture, pixels.

    Returns:
        The mask for evaluation, and ``(height, width)`` bool.

    Raises:
        Fault: It is no mask of a picture of that size.
    """
    size, counts = stated.get("size"), stated.get("counts")
    if size != [height, width]:
        seen = f"size {short(size)}" if "size" in stated else "no size"
        raise Fault(Kind.NO_MASK, f"segmentation has {seen}, not height and width [{height}, {width}]")
    runs = _compressed(counts) if isinstance(counts, str | bytes) else _listed(counts)
    if runs is None:
        seen = f"counts {short(counts)}" if "counts" in stated else "no counts"
        wanted = "neither a list of whole numbers of up to 31 bits nor text as pycocotools packs them"
        raise Fault(Kind.NO_MASK, f"segmentation has {seen}, {wanted}")
    if (runs < 0).any():
        raise Fault(Kind.NO_MASK, f"segmentation has run length {int(runs.min())}, which is negative")
    if (total := int(runs.sum())) != width * height:
        seen = f"run lengths that sum to {total}, not to the {width * height} of {height} x {width} pixels"
        raise Fault(Kind.NO_MASK, f"segmentation has {seen}")
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    packed: Rle = coco_mask.frPyObjects({"size": size, "counts": runs.tolist()}, height, width)
    return packed, flat.reshape(width, height).T


def pixels(mask: Rle) -> int:
    """Count the pixels of a mask."""
    return int(coco_mask.area(mask))


def _listed(counts: Any) -> NDArray[np.int64] | None:
    if not isinstance(counts, list) or not all(isinstance(run, int) and abs(run) < 2**31 for run in counts):
        return None
    return np.array(counts, np.int64)


def _compressed(counts: str | bytes) -> NDArray[np.int64] | None:
    """Decode run lengths: six bits a character, five of them digits; from the third on, less the one before last.

    pycocotools does not look where a text ends that was cut short.
    """
    runs: list[int] = []
    value = shift = 0
    for code in counts.encode() if isinstance(counts, str) else counts:
        digits = code - 48
        if not 0 <= digits < 64 or shift > 30:
            return None
        value |= (digits & 31) << shift
        shift += 5
        if not digits & 32:
            if digits & 16:
                value -= 1 << shift
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    # A text that was cut short lacks the last run, which shows in the sum.
    return np.array(runs, np.int64)


def outline(mask: NDArray[np.bool_]) -> tuple[Float32, ...]:
    """Trace the borders of a mask along the edges of its pixels.

    The rings together cover the mask and nothing else: nothing is lost. None goes around a hole, since an object covers
    all that its rings cover: a mask with holes is cut along the first row of each. Where two pixels touch at a corner
    alone, the rings may pass through it in either way.

    Args:
        mask: ``(h, w)`` bool.

    Returns:
        Rings ``(P, 2)`` float32 of the pixels' corners where the border turns, ``x, y``.
    """
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        return ()
    part = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    rings = _trace(part)
    # Every ring begins at its upper left: with a pixel of the mask, or of the hole that it goes around.
    tops = sorted({top for left, top in (ring[0].tolist() for ring in rings) if not part[top, left]})
    if tops:
        bands = zip([0, *tops], np.split(part, tops), strict=True)
        rings = [np.add(ring, (0, top)) for top, band in bands for ring in _trace(band)]
    return tuple(np.add(ring, (columns[0], rows[0])).astype(np.float32) for ring in rings)


def _trace(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Return the borders of a mask ``(h, w)`` as rings ``(P, 2)`` of corners of pixels."""
    framed = np.pad(mask, 1)
    # A corner of pixels is a vertex where an odd number of the four about it is set, and twice one where two that only
    # touch there are.
    upper, lower = framed[:-1], framed[1:]
    four = [upper[:, :-1], upper[:, 1:], lower[:, :-1], lower[:, 1:]]
    crossed = (four[0] == four[3]) & (four[1] == four[2]) & (four[0] != four[1])
    once = four[0] ^ four[1] ^ four[2] ^ four[3]
    y, x = np.nonzero(once | crossed)
    times = 1 + crossed[y, x].astype(np.intp)
    y, x = np.repeat(y, times), np.repeat(x, times)
    # Along every row of corners, and every column, the border runs from each other vertex to the next.
    across = np.arange(len(x)) ^ 1
    order = np.lexsort((y, x))
    down = np.empty_like(order)
    down[order] = order[np.arange(len(x)) ^ 1]
    vertices = np.stack([x, y], 1)
    return [vertices[ring] for ring in _cycles(across.tolist(), down.tolist())]


def _cycles(across: list[int], down: list[int]) -> list[list[int]]:
    rings, seen = [], bytearray(len(across))
    for start in range(len(across)):
        if seen[start]:
            continue
        ring, place = [], start
        while not seen[place]:
            other = across[place]
            seen[place] = seen[other] = 1
            ring += [place, other]
            place = down[other]
        rings.append(ring)
    return rings

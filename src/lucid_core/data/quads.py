"""From four corners as an annotation states them to an oriented box that can be taught."""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.geometry import WHOLE_SHARE, area, corners, cut, envelope, fit, refit
from lucid_core.data.problems import Fault, Kind
from lucid_core.data.types import Float32

__all__ = ["LEAST_SIDE", "Oriented", "from_rbox", "oriented"]

#: Overlap with its corners from which on an oriented box is what they state; what is far from a rectangle has less.
LEAST_OVERLAP = 0.8
#: Pixels. Float32 corners of a thinner box fall together once a training sample has moved them.
LEAST_SIDE = 1e-2


class Oriented(NamedTuple):
    """An oriented box within its picture.

    Attributes:
        quad: ``(4, 2)`` float64 corners, as stated, pixels.
        rbox: ``(5,)`` float32, see :mod:`lucid_core.types`; whole where most of it is inside the picture.
        box: ``x1, y1, x2, y2``, the envelope of what is inside.
        area: Pixels of the whole quadrilateral.
        notes: What was changed: kinds and messages.
    """

    quad: NDArray[np.float64]
    rbox: Float32
    box: tuple[float, float, float, float]
    area: float
    notes: tuple[tuple[Kind, str], ...]


def oriented(quad: NDArray[np.float64], width: int, height: int) -> Oriented:
    """Make an oriented box of four corners in order, from whichever corner and in whichever sense.

    A quadrilateral with a corner pushed in is replaced by the smallest rectangle about it. Of another that is far from
    a rectangle, the box has the lengths of its edges and the direction of the longer ones, and is told. One that
    crosses the border stays whole where at least 70 % of it is inside, as evaluation has it; else the box closes around
    what is inside, in its own direction.

    Args:
        quad: ``(4, 2)`` float64, pixels.
        width: Of the picture, pixels.
        height: Of the picture, pixels.

    Raises:
        Fault: A corner is not finite or there twice, edges cross, or a side inside the picture is under
            :data:`LEAST_SIDE`.
    """
    seen = "corners " + " ".join(f"{value:g}" for value in quad.ravel())
    if not np.isfinite(quad).all():
        raise Fault(Kind.NOT_FINITE, f"{seen} are not eight finite numbers")
    edges = np.roll(quad, -1, 0) - quad
    after = np.roll(edges, -1, 0)
    turns = edges[:, 0] * after[:, 1] - edges[:, 1] * after[:, 0]
    left, right = int((turns > 0).sum()), int((turns < 0).sum())
    # Of four turns, two each way make a bow tie, and one against three a corner that is pushed in.
    if left == right == 2:
        raise Fault(Kind.CROSSED, f"{seen} cross themselves; list them in order around the object")
    notes = []
    taken = quad
    if left and right:
        notes.append((Kind.CONCAVE, f"{seen} have one pushed in; the smallest rectangle about them is taken"))
        taken = _rectangle(quad)
    # Of edges that are not quite parallel the longer pair gives the direction, wherever the list of corners begins.
    lengths = np.hypot(*(np.roll(taken, -1, 0) - taken).T)
    taken = np.roll(taken, -1, 0) if lengths[0] + lengths[2] < lengths[1] + lengths[3] else taken
    rbox = fit(taken[None])[0]
    window = (0.0, 0.0, float(width), float(height))
    outer = envelope(taken)
    if (outer[:2] < 0).any() or (outer[2:] > (width, height)).any():
        visible = cut(taken, window)
        if not len(visible):
            raise Fault(Kind.NO_AREA, f"{seen} have no area inside the {width} x {height} image")
        outer = envelope(visible)
        if area(visible) < WHOLE_SHARE * area(taken):
            rbox = refit(visible, float(rbox[4]))
            text = f"{seen} reach outside the {width} x {height} image; clipped at the border"
            notes.append((Kind.CLIPPED, text))
    sides = np.float32(outer[2:]) - np.float32(outer[:2])
    # The area of a sheared sliver tells it from the rectangle that edges of its lengths would make.
    covered = area(quad)
    if covered < LEAST_SIDE * lengths.max() or min(rbox[2:4]) < LEAST_SIDE or (sides <= 0).any():
        raise Fault(Kind.NO_AREA, f"{seen} are less than {LEAST_SIDE:g} px across inside the {width} x {height} image")
    if len(np.unique(quad, axis=0)) < 4:
        raise Fault(Kind.NO_CORNERS, f"{seen} have one twice; an oriented box has four")
    if not (left and right) and (share := _overlap(taken)) < LEAST_OVERLAP:
        text = f"{seen} are far from a rectangle; the box that is taken overlaps them to {share:.2f}"
        notes.append((Kind.SKEWED, text))
    x1, y1, x2, y2 = outer.tolist()
    return Oriented(quad, rbox, (x1, y1, x2, y2), covered, tuple(notes))


def _overlap(quad: NDArray[np.float64]) -> float:
    """Return intersection over union of a convex quadrilateral and the oriented box that is fit to it."""
    # About its own centre, where float32 keeps a thin box far from the origin.
    around = quad - quad.mean(0)
    cx, cy, w, h, theta = map(float, fit(around[None])[0])
    cos, sin = np.cos(theta), np.sin(theta)
    turned = (around - (cx, cy)) @ np.array([[cos, -sin], [sin, cos]])
    shared = area(cut(turned, (-w / 2, -h / 2, w / 2, h / 2)))
    return shared / (area(quad) + w * h - shared)


def from_rbox(rbox: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the corners ``(4, 2)`` float64 of one oriented box ``cx, cy, w, h, angle``."""
    quad: NDArray[np.float64] = corners(rbox[None])[0]
    return quad


def _rectangle(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the corners of the smallest rectangle about a few points; one of its sides passes through two of them."""
    steps = [two - one for one, two in combinations(points, 2)]
    about = [refit(points, float(np.arctan2(step[1], step[0]))) for step in steps]
    return from_rbox(min(about, key=lambda rbox: float(rbox[2] * rbox[3])).astype(np.float64))

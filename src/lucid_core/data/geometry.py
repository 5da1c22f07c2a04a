"""What happens to the labels of an image when its pixels move: affine maps, clipping, mirroring, joining.

All functions return new :class:`~lucid_core.data.types.Instances` and leave their arguments untouched. Coordinates are
continuous, with the origin at the outer corner of the first pixel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.types import Float32, Instances

__all__ = [
    "WHOLE_SHARE",
    "affine",
    "area",
    "clip",
    "concatenate",
    "corners",
    "cut",
    "envelope",
    "fit",
    "flip",
    "refit",
    "select",
]

#: A clipped object stays if both its sides have this many pixels ...
MIN_SIDE = 2.0
#: ... and this share of its box is left.
MIN_SHARE = 0.1
#: An oriented box of which this share is seen stays whole.
WHOLE_SHARE = 0.7

Matrix = NDArray[np.float64]
Precision = TypeVar("Precision", np.float32, np.float64)
Window = tuple[float, float, float, float]


def affine(instances: Instances, matrix: Matrix) -> Instances:
    """Map all coordinates by an affine map.

    A box becomes the envelope of its polygon where the map turns or shears and there is one, else of its corners.

    Args:
        instances: Labels.
        matrix: ``(2, 3)`` float64, applied to ``(x, y, 1)``.

    Returns:
        The labels in the new coordinates, nothing clipped and nothing left out.
    """
    linear, offset = matrix[:, :2], matrix[:, 2]
    polygons = tuple(tuple(_map(ring, linear, offset) for ring in rings) for rings in instances.polygons)
    rboxes = instances.rboxes
    if rboxes is not None:
        rboxes = fit(_map(corners(rboxes), linear, offset))
    if rboxes is not None and len(rboxes):
        boxes = envelope(corners(rboxes))
    else:
        boxes = envelope(_map(_box_corners(instances.boxes), linear, offset))
        if linear[0, 1] or linear[1, 0]:
            for row, rings in enumerate(polygons):
                if rings:
                    boxes[row] = envelope(np.concatenate(rings))
    points = None if instances.points is None else _map(instances.points, linear, offset)
    return Instances(boxes, instances.labels, polygons, rboxes, points, instances.visibility)


def clip(instances: Instances, window: Window) -> Instances:
    """Cut objects at the border of a window and leave out those of which too little is left.

    The box of an object that crosses the border becomes the envelope of what is visible of its polygon (or rotated
    box), where it has one. The rotated box itself stays whole where at least 70 % of it is visible, as in tiles, and
    else closes around what is, in its own direction. An object stays if both sides of its clipped box are at least 2 px
    and the clipped box has at least a tenth of the area of the whole one. Key points are never clipped: where a point
    is stays true outside.

    Args:
        instances: Labels.
        window: ``(x1, y1, x2, y2)`` pixels.

    Returns:
        The visible labels.
    """
    low, high = np.array(window[:2] * 2, np.float32), np.array(window[2:] * 2, np.float32)
    boxes = np.clip(instances.boxes, low, high)
    crossing = np.flatnonzero((boxes != instances.boxes).any(1) & (boxes[:, 2:] > boxes[:, :2]).all(1))
    polygons = list(instances.polygons)
    rboxes = None if instances.rboxes is None else instances.rboxes.copy()
    for row in crossing:
        if polygons[row]:
            polygons[row] = tuple(ring for ring in (cut(ring, window) for ring in polygons[row]) if len(ring))
            visible = np.concatenate(polygons[row]) if polygons[row] else None
        elif rboxes is not None:
            whole = corners(rboxes[row : row + 1])[0]
            visible = cut(whole, window)
            if len(visible) and area(visible) < WHOLE_SHARE * area(whole):
                rboxes[row] = refit(visible, float(rboxes[row, 4]))
        else:
            continue
        boxes[row] = 0 if visible is None or not len(visible) else np.clip(envelope(visible), low, high)
    kept = ((boxes[:, 2:] - boxes[:, :2]) >= MIN_SIDE).all(1) & (_sizes(boxes) >= MIN_SHARE * _sizes(instances.boxes))
    cropped = Instances(boxes, instances.labels, tuple(polygons), rboxes, instances.points, instances.visibility)
    return cropped if kept.all() else select(cropped, np.flatnonzero(kept))


def flip(instances: Instances, width: float, pairs: Sequence[tuple[int, int]] = ()) -> Instances:
    """Mirror left and right: ``x' = width - x``.

    Args:
        instances: Labels.
        width: Of the image, pixels.
        pairs: Key points that change places, such as left and right eye.

    Returns:
        The labels of the mirrored image.
    """
    boxes = instances.boxes.copy()
    boxes[:, [0, 2]] = width - instances.boxes[:, [2, 0]]
    mirror = np.array([-1, 1], np.float32)
    shift = np.array([width, 0], np.float32)
    polygons = tuple(tuple(ring * mirror + shift for ring in rings) for rings in instances.polygons)
    rboxes, points, visibility = instances.rboxes, instances.points, instances.visibility
    if rboxes is not None:
        rboxes = rboxes.copy()
        rboxes[:, 0] = width - rboxes[:, 0]
        rboxes[:, 4] = -rboxes[:, 4]
        rboxes = _canonical(rboxes)
    if points is not None and visibility is not None:
        swapped = np.arange(points.shape[1])
        for left, right in pairs:
            swapped[[left, right]] = right, left
        points = (points * mirror + shift)[:, swapped]
        visibility = visibility[:, swapped]
    return Instances(boxes, instances.labels, polygons, rboxes, points, visibility)


def select(instances: Instances, rows: NDArray[np.intp]) -> Instances:
    """Return the objects at ``rows``, in that order."""
    return Instances(
        instances.boxes[rows],
        instances.labels[rows],
        tuple(instances.polygons[row] for row in rows),
        None if instances.rboxes is None else instances.rboxes[rows],
        None if instances.points is None else instances.points[rows],
        None if instances.visibility is None else instances.visibility[rows],
    )


def concatenate(parts: Sequence[Instances]) -> Instances:
    """Join the objects of several images. All parts that hold objects have the same kinds of labels."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    rboxes = [part.rboxes for part in parts if part.rboxes is not None]
    points = [part.points for part in parts if part.points is not None]
    visibility = [part.visibility for part in parts if part.visibility is not None]
    return Instances(
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.labels for part in parts]),
        tuple(rings for part in parts for rings in part.polygons),
        np.concatenate(rboxes) if rboxes else None,
        np.concatenate(points) if points else None,
        np.concatenate(visibility) if visibility else None,
    )


def _map(points: Float32, linear: Matrix, offset: NDArray[np.float64]) -> Float32:
    if linear[0, 1] or linear[1, 0]:
        return (points @ linear.T + offset).astype(np.float32)
    return (points * linear.diagonal() + offset).astype(np.float32)


def _sizes(boxes: Float32) -> Float32:
    sizes: Float32 = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return sizes


def _box_corners(boxes: Float32) -> Float32:
    return boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)


def envelope(points: NDArray[Precision]) -> NDArray[Precision]:
    """Return the boxes ``(..., 4)`` about points ``(..., P, 2)``."""
    boxes: NDArray[Precision] = np.concatenate([points.min(-2), points.max(-2)], -1)
    return boxes


def area(ring: NDArray[Precision]) -> float:
    """Return the area of a polygon ``(P, 2)``, in pixels; loops that run against each other cancel."""
    if len(ring) < 3:
        return 0.0
    # By the shoelace about the first corner, where large coordinates do not cancel and its own edges count nothing.
    x, y = (ring[1:] - ring[0]).astype(np.float64).T
    return abs(float(x[:-1] @ y[1:] - x[1:] @ y[:-1])) / 2


def corners(rboxes: NDArray[Precision]) -> NDArray[Precision]:
    """Return the corners ``(n, 4, 2)`` of oriented boxes ``(n, 5)``, along the first side first."""
    cos, sin = np.cos(rboxes[:, 4]), np.sin(rboxes[:, 4])
    along = np.stack([cos, sin], 1) * rboxes[:, 2:3] / 2
    across = np.stack([-sin, cos], 1) * rboxes[:, 3:4] / 2
    centre = rboxes[:, :2]
    quads: NDArray[Precision] = np.stack(
        [centre - along - across, centre + along - across, centre + along + across, centre - along + across], 1
    )
    return quads


def fit(quads: NDArray[Precision]) -> Float32:
    """Fit oriented boxes ``(n, 5)`` float32 to quadrilaterals ``(n, 4, 2)``; those of rectangles are exact.

    The centre is the mean of the corners, a side the mean of two opposite edges, the direction that of the first two.
    """
    edges = np.roll(quads, -1, 1) - quads
    lengths = np.hypot(edges[..., 0], edges[..., 1])
    direction = edges[:, 0] - edges[:, 2]
    fitted = np.empty((len(quads), 5), np.float32)
    fitted[:, :2] = quads.mean(1)
    fitted[:, 2] = (lengths[:, 0] + lengths[:, 2]) / 2
    fitted[:, 3] = (lengths[:, 1] + lengths[:, 3]) / 2
    fitted[:, 4] = np.arctan2(direction[:, 1], direction[:, 0])
    return _canonical(fitted)


def refit(points: NDArray[Precision], theta: float) -> Float32:
    """Return the smallest oriented box ``(5,)`` in direction ``theta`` about points ``(P, 2)``."""
    axes: Matrix = np.array([[math.cos(theta), math.sin(theta)], [-math.sin(theta), math.cos(theta)]])
    projected: Matrix = points @ axes.T
    low: Matrix = projected.min(0)
    high: Matrix = projected.max(0)
    refitted: Float32 = _canonical(np.array([[*((low + high) / 2 @ axes), *(high - low), theta]], np.float32))[0]
    return refitted


def _canonical(rboxes: Float32) -> Float32:
    """Make the first side the long one and the angle lie in ``[-pi/4, 3 pi/4)``; what is so already keeps its bits."""
    rboxes = rboxes.copy()
    tall = rboxes[:, 2] < rboxes[:, 3]
    rboxes[tall, 2:4] = rboxes[tall, 3:1:-1]
    theta = rboxes[:, 4].astype(np.float64)
    theta[tall] += math.pi / 2
    upper = np.where(rboxes[:, 2] == rboxes[:, 3], math.pi / 4, 3 * math.pi / 4)
    period = upper + math.pi / 4
    outside = (theta < -math.pi / 4) | (theta >= upper)
    theta[outside] = (theta[outside] + math.pi / 4) % period[outside] - math.pi / 4
    # float32 has neighbours of the bounds on their wrong side: step to the ones inside.
    below = np.nextafter(upper.astype(np.float32), np.float32(-1))
    rboxes[:, 4] = np.clip(theta.astype(np.float32), np.nextafter(np.float32(-math.pi / 4), np.float32(1)), below)
    return rboxes


def cut(ring: NDArray[Precision], window: Window) -> NDArray[Precision]:
    """Clip a polygon by a window (Sutherland and Hodgman 1974); empty where nothing of it is inside."""
    if (ring >= window[:2]).all() and (ring <= window[2:]).all():
        return ring
    for axis, bound, sign in ((0, window[0], 1), (0, window[2], -1), (1, window[1], 1), (1, window[3], -1)):
        depth = sign * (ring[:, axis] - bound)
        inside = depth >= 0
        if inside.all():
            continue
        if not inside.any():
            return ring[:0]
        crosses = inside != np.roll(inside, -1)
        step = depth - np.roll(depth, -1)
        share = np.divide(depth, step, out=np.zeros_like(depth), where=crosses)
        ends = np.stack([ring, ring + share[:, None] * (np.roll(ring, -1, 0) - ring)], 1)
        ends[:, 1, axis] = bound
        ring = ends[np.stack([inside, crosses], 1)].astype(ring.dtype)
    return ring

"""Putting one or four images on the canvas at their evaluation scale times a random one.

The canvas has the size of the network's input from the start. Of every image only the part that will be visible is
resized, and its labels follow the exact scale, per axis, that its pixels got.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid_core.data.geometry import affine, clip, concatenate
from lucid_core.data.types import Instances

__all__ = ["FILL", "Picture", "draw_centre", "draw_scale", "mosaic", "single", "warp"]

#: Grey of the canvas where no image lies.
FILL = 114


class Picture(NamedTuple):
    """One image to put on the canvas.

    Attributes:
        pixels: ``(h, w, 3)`` uint8 at evaluation scale. Only read.
        instances: Labels in pixels of the original image.
        width: Of the original image.
        height: Of the original image.
    """

    pixels: NDArray[np.uint8]
    instances: Instances
    width: int
    height: int


class Span(NamedTuple):
    """Along one axis, pixels ``[start, stop)`` of the image become pixels ``[low, high)`` of the canvas."""

    start: int
    stop: int
    low: int
    high: int

    @property
    def scale(self) -> float:
        return (self.high - self.low) / (self.stop - self.start)


def draw_scale(rng: np.random.Generator, spread: float, images: int) -> float:
    """Draw the scale of a sample, relative to evaluation.

    What a canvas shows of four images that go on beyond it falls with the square of their scale, so there the square
    is uniform, and objects of all scales are met equally often. One image can only be shown whole or in part, and
    half of that correction is right. In a mosaic many objects are cut short, which a tenth more scale makes up for.

    Args:
        rng: Draws one number.
        spread: The scale varies between ``1 / (1 + spread)`` and ``1 + spread``, times 1.1 in a mosaic.
        images: On the canvas, 4 or 1.
    """
    power, middle = (2, 1.1) if images == 4 else (1, 1.0)
    low, high = (1 + spread) ** -power, (1 + spread) ** power
    return float(middle * (low + rng.random() * (high - low)) ** (1 / power))


def draw_centre(rng: np.random.Generator, size: int, scale: float, translate: float) -> tuple[int, int]:
    """Draw the point where four images meet, uniformly about the middle of the canvas.

    Args:
        rng: Draws two numbers.
        size: Side of the canvas, pixels.
        scale: Of the images. The point moves as far as the canvas can move over the four images about their common
            corner, which for large scales is beyond its border.
        translate: Share of the canvas by which it moves further.

    Returns:
        ``(x, y)`` pixels; outside ``[0, size]`` the canvas shows one or two images only.
    """
    x, y = np.rint(size * (0.5 + (0.5 * scale + translate) * rng.uniform(-1, 1, 2))).astype(int)
    return int(x), int(y)


def mosaic(
    pictures: Sequence[Picture], size: int, scale: float, centre: tuple[int, int]
) -> tuple[NDArray[np.uint8], Instances]:
    """Lay four images around a point of the canvas, each with one corner at it.

    Args:
        pictures: Upper left, upper right, lower left, lower right.
        size: Side of the canvas, pixels.
        scale: Relative to the evaluation scale.
        centre: ``(x, y)`` of the point, pixels; may lie outside the canvas.

    Returns:
        ``(size, size, 3)`` uint8 and the labels on it.
    """
    canvas = np.full((size, size, 3), FILL, np.uint8)
    parts = []
    for picture, (right, lower) in zip(pictures, ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True):
        height, width = picture.pixels.shape[:2]
        columns = _quarter(width, scale, centre[0], size, bool(right))
        rows = _quarter(height, scale, centre[1], size, bool(lower))
        if columns and rows:
            parts.append(_place(canvas, picture, columns, rows))
        else:
            parts.append(clip(picture.instances, (0, 0, 0, 0)))
    return canvas, concatenate(parts)


def single(
    picture: Picture, size: int, scale: float, shift: tuple[float, float]
) -> tuple[NDArray[np.uint8], Instances]:
    """Lay one image on the middle of the canvas, moved by ``shift`` pixels.

    Returns:
        ``(size, size, 3)`` uint8 and the labels on it.
    """
    canvas = np.full((size, size, 3), FILL, np.uint8)
    height, width = picture.pixels.shape[:2]
    columns = _span(width, scale, round((size - width * scale) / 2 + shift[0]), 0, size)
    rows = _span(height, scale, round((size - height * scale) / 2 + shift[1]), 0, size)
    if not columns or not rows:
        return canvas, clip(picture.instances, (0, 0, 0, 0))
    return canvas, _place(canvas, picture, columns, rows)


def warp(
    image: NDArray[np.uint8], instances: Instances, degrees: float, shear: tuple[float, float]
) -> tuple[NDArray[np.uint8], Instances]:
    """Turn and shear a square sample about its centre.

    Args:
        image: ``(S, S, 3)`` uint8.
        instances: Its labels.
        degrees: Clockwise on the screen.
        shear: Along x and along y, degrees.
    """
    size = len(image)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    tangents = [math.tan(math.radians(angle)) for angle in shear]
    linear = np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, tangents[0]], [tangents[1], 1]])
    centre = np.full(2, size / 2)
    matrix = np.column_stack([linear, centre - linear @ centre])
    # OpenCV counts from the middle of the first pixel, labels from its corner.
    pixels = matrix.copy()
    pixels[:, 2] += linear @ np.full(2, 0.5) - 0.5
    turned = cv2.warpAffine(image, pixels, (size, size), borderMode=cv2.BORDER_CONSTANT, borderValue=(FILL,) * 3)
    return turned.astype(np.uint8, copy=False), clip(affine(instances, matrix), (0, 0, size, size))


def _quarter(length: int, scale: float, centre: int, size: int, after: bool) -> Span | None:
    border = min(max(centre, 0), size)
    if after:
        return _span(length, scale, centre, border, size)
    return _span(length, scale, centre - max(1, round(length * scale)), 0, border)


def _span(length: int, scale: float, offset: int, low: int, high: int) -> Span | None:
    """Cut the image that starts at ``offset`` to the window ``[low, high)``; None where nothing is visible."""
    whole = max(1, round(length * scale))
    low, high = max(low, offset), min(high, offset + whole)
    if high <= low:
        return None
    start = round((low - offset) * length / whole)
    stop = round((high - offset) * length / whole)
    start = min(start, length - 1)
    return Span(start, max(stop, start + 1), low, high)


def _place(canvas: NDArray[np.uint8], picture: Picture, columns: Span, rows: Span) -> Instances:
    visible = picture.pixels[rows.start : rows.stop, columns.start : columns.stop]
    target = canvas[rows.low : rows.high, columns.low : columns.high]
    if visible.shape == target.shape:
        target[:] = visible
    else:
        shrinks = target.size < visible.size
        target[:] = cv2.resize(
            visible, target.shape[1::-1], interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        )
    height, width = picture.pixels.shape[:2]
    matrix = np.zeros((2, 3))
    for axis, (span, sides) in enumerate(((columns, width / picture.width), (rows, height / picture.height))):
        matrix[axis, axis] = span.scale * sides
        matrix[axis, 2] = span.low - span.start * span.scale
    return clip(affine(picture.instances, matrix), (columns.low, rows.low, columns.high, rows.high))

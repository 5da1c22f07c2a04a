"""Canvas pixels -> pixels of the original image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.letterbox import Letterbox, to_original

__all__ = ["Float64", "original_boxes", "original_points", "original_rboxes"]

Float64 = NDArray[np.float64]


def original_boxes(boxes: Float64, letterbox: Letterbox, width: int, height: int) -> Float64:
    """Undo the letterbox of one image and clamp to it.

    Args:
        boxes: ``(n, 4)`` ``x1, y1, x2, y2`` in pixels of the canvas.
        letterbox: ``ratio, pad_x, pad_y``, where canvas = ratio * original + pad.
        width: Pixels of the original.
        height: Pixels of the original.

    Returns:
        ``(n, 4)`` within the image. An inverted box becomes an empty one: it can match nothing and counts as small.
    """
    inside: Float64 = to_original(boxes, letterbox).clip(0.0, (width, height, width, height))
    inside[:, 2:] = np.maximum(inside[:, :2], inside[:, 2:])
    return inside


def original_rboxes(rboxes: Float64, letterbox: Letterbox) -> Float64:
    """Undo the letterbox of oriented boxes ``(n, 5)``; nothing is cut at the border of the image."""
    return np.column_stack([to_original(rboxes[:, :2], letterbox), rboxes[:, 2:4] / letterbox[0], rboxes[:, 4]])


def original_points(points: Float64, letterbox: Letterbox) -> Float64:
    """Undo the letterbox of points ``(n, K, 2)``; those outside of the image stay there."""
    return to_original(points, letterbox)

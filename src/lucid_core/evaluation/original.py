"""Canvas pixels -> pixels of the original image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Float64", "to_original"]

Float64 = NDArray[np.float64]


def to_original(boxes: Float64, letterbox: Float64, width: int, height: int) -> Float64:
    """Undo the letterbox of one image and clamp to it.

    Args:
        boxes: ``(n, 4)`` ``x1, y1, x2, y2`` in pixels of the canvas.
        letterbox: ``(3,)`` ``ratio, pad_x, pad_y``, where canvas = ratio * original + pad, with the ratio as it was
            before sizes were rounded to whole pixels.
        width: Pixels of the original.
        height: Pixels of the original.

    Returns:
        ``(n, 4)`` within the image. An inverted box becomes an empty one: it can match nothing and counts as small.
    """
    ratio, pad = letterbox[0], letterbox[1:]
    corners: Float64 = ((boxes.reshape(-1, 2, 2) - pad) / ratio).clip(0.0, (width, height))
    corners[:, 1] = np.maximum(corners[:, 0], corners[:, 1])
    return corners.reshape(-1, 4)

"""Colour jitter as exact arithmetic: uint8 to uint8, the same bytes at every width, on every CPU and on a GPU.

The three gains make one matrix that acts on RGB. Its coefficients are multiples of 1/4096 and small enough that every
product and every partial sum of a pixel is a float32 without rounding, so neither the order of evaluation nor fused
multiply-add can show. The one rounding there is, at the end, is half to even.
"""

from __future__ import annotations

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid_core.data.types import Float32

__all__ = ["apply_colour", "colour_matrix"]

#: Coefficients are multiples of 1 / SCALE.
SCALE = 4096
#: float32 holds integers up to 2**24; a row whose coefficients add up to more than this could leave them.
ROW_LIMIT = 2**24 / (255 * SCALE)
#: Rows worked on at a time: the float copy of a strip stays in the cache.
STRIP = 64


def colour_matrix(gains: NDArray[np.float64]) -> Float32:
    """Make the matrix of a colour jitter.

    Hue turns colours about the grey axis by twice the angle whose tangent is ``pi * hue`` (close to ``2 pi hue`` for
    small gains; in this form the turn needs no trigonometric function, which libraries round differently). Saturation
    scales the distance from the grey axis, value everything. Grey stays grey: every row adds up to exactly the value.

    Args:
        gains: ``(3,)`` float64: hue in turns, saturation and value relative to what they are; all 0 is neutral.

    Returns:
        ``(3, 3)`` float32, multiples of 1/4096.

    Raises:
        ValueError: The gains are not finite or so large that the arithmetic would not be exact.
    """
    hue, saturation, value = (float(gain) for gain in gains)
    tangent = math.pi * hue
    norm = 1 + tangent * tangent
    cos, sin = (1 - tangent * tangent) / norm, 2 * tangent / norm
    chroma = (1 + saturation) * (1 + value)
    # Rodrigues' rotation about (1, 1, 1): circulant, and its action on the part off the grey axis scaled by chroma.
    grey = (1 + value) / 3
    lean = chroma * cos / 3
    turn = chroma * sin * 0.5773502691896258  # 1 / sqrt(3)
    following, preceding = grey - lean - turn, grey - lean + turn
    if not math.isfinite(following + preceding):
        raise ValueError(f"colour gains must be finite, not {gains}")
    a, b, total = (round(SCALE * entry) for entry in (following, preceding, 1 + value))
    if abs(a) + abs(b) + abs(total - a - b) > ROW_LIMIT * SCALE:
        raise ValueError(f"colour gains {gains} are too large for exact arithmetic; keep each within [-1, 1]")
    c = total - a - b
    return np.array([[c, a, b], [b, c, a], [a, b, c]], np.float32) / np.float32(SCALE)


def apply_colour(image: NDArray[np.uint8], matrix: Float32) -> NDArray[np.uint8]:
    """Apply a colour matrix: ``clamp(round_half_even(matrix @ pixel), 0, 255)``.

    Args:
        image: ``(h, w, 3)`` uint8.
        matrix: What :func:`colour_matrix` returns.

    Returns:
        A new image of that shape.
    """
    out = np.empty_like(image)
    for top in range(0, len(image), STRIP):
        strip = cv2.transform(image[top : top + STRIP].astype(np.float32), matrix)
        np.rint(strip, out=strip)
        np.clip(strip, 0, 255, out=strip)
        out[top : top + STRIP] = strip
    return out

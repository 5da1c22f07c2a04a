"""Oriented boxes that predictions mean, and the one form each of them is written in."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["canonical", "decode_rotated"]

#: Where the angle of a box begins; half a turn further it is the same box, and a square is so after a quarter.
LOW = -math.pi / 4


def canonical(boxes: Tensor) -> Tensor:
    """Return oriented boxes ``(..., 5)`` with the longer side first and the angle in its range.

    The range is ``[-pi/4, 3*pi/4)``, of squares ``[-pi/4, pi/4)``, with ends as the dtype rounds them. What is in this
    form already comes back bit for bit.
    """
    centre, w, h, angle = torch.split(boxes, [2, 1, 1, 1], -1)
    angle = torch.where(w < h, angle + math.pi / 2, angle)
    long, short = torch.where(w < h, h, w), torch.where(w < h, w, h)
    wrapped = torch.where(long == short, _wrap(angle, math.pi / 2), _wrap(angle, math.pi))
    return torch.cat((centre, long, short, wrapped), -1)


def _wrap(angle: Tensor, period: float) -> Tensor:
    high = LOW + period
    # Rounding may lead to the upper end itself; the number below it is half an epsilon away, relatively.
    below = high * (1 - torch.finfo(angle.dtype).eps / 2)
    wrapped = angle - ((angle - LOW) / period).floor() * period
    return torch.where((angle >= LOW) & (angle < high), angle, wrapped.clamp(LOW, below))


def decode_rotated(boxes: Tensor, angles: Tensor) -> Tensor:
    """Rotate decoded boxes about their own centres.

    Args:
        boxes: ``(..., 4)`` ``x1, y1, x2, y2``, pixels; may be inverted, which gives sides under 0.
        angles: ``(..., 1)`` radians, unbounded.

    Returns:
        ``(..., 5)`` oriented boxes in canonical form, in the dtype of ``boxes``.
    """
    low, high = torch.split(boxes, 2, -1)
    return canonical(torch.cat(((low + high) / 2, high - low, angles.to(boxes.dtype)), -1))

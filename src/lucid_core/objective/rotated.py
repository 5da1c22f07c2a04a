"""Arithmetic of oriented boxes on the device: what lies inside, and how far two are apart.

Boxes are compared as the normal distributions with the same centre, axes and variances (ProbIoU, arXiv 2106.06072).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lucid_core.objective.assign import REFERENCE, SMALL
from lucid_core.types import Anchors

__all__ = ["bhattacharyya", "hellinger", "rotated_candidates"]

#: Pixels. A shorter side counts as this long, and gets no gradient.
SHORTEST = 1e-4
#: Squares of distances up to this are 0, without a gradient: the root has none there.
COINCIDENT = 1e-20


def rotated_candidates(boxes: Tensor, valid: Tensor, anchors: Anchors) -> Tensor:
    """Return which anchor centres lie in which oriented box, edges included, as ``(B, N, A)`` bool.

    Small sides are widened about the centre, as those of upright boxes are.

    Args:
        boxes: ``(B, N, 5)`` pixels and radians.
        valid: ``(B, N)`` bool.
        anchors: The grid of the canvas.
    """
    centre, sides, angle = torch.split(boxes.unsqueeze(2), [2, 2, 1], -1)
    half = torch.where(sides < SMALL, REFERENCE, sides) / 2
    x, y = (anchors.centres - centre).unbind(-1)
    u, v = (part.squeeze(-1) for part in _direction(angle))
    along, across = x * u + y * v, y * u - x * v
    inside: Tensor = (along.abs() <= half[..., 0]) & (across.abs() <= half[..., 1])
    return inside & valid.unsqueeze(2)


def _direction(angle: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosine and sine, both perhaps with the other sign, by sums and products alone.

    Exact at right angles, so that the edges of an upright box are inside it however it is written. And a CPU may give
    the last few of many numbers another cosine than the rest, so that the room for targets would change bits.
    """
    quarter = (angle / (math.pi / 2)).round()
    x = angle - quarter * (math.pi / 2)
    square = x * x
    sine = cosine = torch.ones_like(x)
    for n in (4, 3, 2, 1):  # of the series, to a tenth of what float32 resolves
        sine = 1 - square * sine / (2 * n * (2 * n + 1))
    for n in (5, 4, 3, 2, 1):
        cosine = 1 - square * cosine / (2 * n * (2 * n - 1))
    sine = x * sine
    odd = quarter.remainder(2) != 0
    return torch.where(odd, -sine, cosine), torch.where(odd, cosine, sine)


def bhattacharyya(a: Tensor, b: Tensor) -> Tensor:
    """Return the Bhattacharyya distance of oriented boxes ``(..., 5)`` one by one (ProbIoU, equations 4 to 7).

    Written so that no close numbers are subtracted: the distance of equal boxes is exactly 0. Dtypes narrower than
    float32 are widened.
    """
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    (centre_a, sides_a, turn_a), (centre_b, sides_b, turn_b) = (torch.split(x.to(dtype), [2, 2, 1], -1) for x in (a, b))
    w1, h1 = sides_a.clamp(min=SHORTEST).unbind(-1)
    w2, h2 = sides_b.clamp(min=SHORTEST).unbind(-1)
    turn_a, turn_b = turn_a.squeeze(-1), turn_b.squeeze(-1)
    x, y = (centre_a - centre_b).unbind(-1)
    square_cos, square_sin = (turn_a - turn_b).cos().square(), (turn_a - turn_b).sin().square()

    moved = torch.zeros_like(x)
    for w, h, turn in ((w1, h1, turn_a), (w2, h2, turn_b)):
        cos, sin = turn.cos(), turn.sin()
        moved = moved + (h * (x * cos + y * sin)).square() + (w * (y * cos - x * sin)).square()
    same = (w1 * h1).square() + (w2 * h2).square()
    size = same + ((w1 * h2).square() + (h1 * w2).square()) * square_cos
    size = size + ((w1 * w2).square() + (h1 * h2).square()) * square_sin
    # Variances are squares of sides over 12: one such factor of the numerator and two of the denominator remain.
    apart = 3 * moved / size

    shape: Tensor = (w1 * h1 - w2 * h2).square()
    shape = shape + (w1 * h2 - h1 * w2).square() * square_cos + (w1 * w2 - h1 * h2).square() * square_sin
    return apart + torch.log1p(shape / (4 * w1 * h1 * w2 * h2)) / 2


def hellinger(a: Tensor, b: Tensor) -> Tensor:
    """Return the Hellinger distance of oriented boxes ``(..., 5)`` one by one, in ``[0, 1]``.

    Equal boxes have the distance 0 and no gradient. The result has the dtype of ``a``.
    """
    square = -torch.expm1(-bhattacharyya(a, b))
    apart = square > COINCIDENT
    return torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0).to(a.dtype)

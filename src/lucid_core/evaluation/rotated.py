"""How much oriented boxes overlap, exactly, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["areas", "corners", "envelope", "overlaps", "shared_areas"]


def corners(rboxes: Tensor) -> Tensor:
    """Return the corners ``(..., 4, 2)`` of oriented boxes ``(..., 5)``, along the first side first."""
    centre, w, h, angle = torch.split(rboxes, [2, 1, 1, 1], -1)
    cos, sin = angle.cos(), angle.sin()
    along, across = torch.cat((cos, sin), -1) * w / 2, torch.cat((-sin, cos), -1) * h / 2
    quads = (centre - along - across, centre + along - across, centre + along + across, centre - along + across)
    return torch.stack(quads, -2)


def envelope(quads: Tensor) -> Tensor:
    """Return the upright boxes ``(..., 4)`` about corners ``(..., 4, 2)``."""
    return torch.cat((quads.amin(-2), quads.amax(-2)), -1)


def areas(quads: Tensor) -> Tensor:
    """Return the areas ``(...)`` of quadrilaterals ``(..., 4, 2)`` whose edges do not cross."""
    # About the first corner, where large coordinates do not cancel; half the cross product of the diagonals.
    one, two = quads[..., 2, :] - quads[..., 0, :], quads[..., 3, :] - quads[..., 1, :]
    return (one[..., 0] * two[..., 1] - one[..., 1] * two[..., 0]).abs() / 2


def shared_areas(quads: Tensor, rboxes: Tensor) -> Tensor:
    """Return the areas that quadrilaterals share with oriented boxes, one by one.

    In the frame of the box, the part of a polygon inside ``|x| <= a`` and ``|y| <= b`` has by Green's theorem the area
    of the integral of ``clamp(y, -b, b)`` over ``x`` along its border, as far as ``|x| <= a``. Along an edge the
    integrand is linear between the places where it meets a border of the box, and the trapezoidal rule exact. Nothing
    depends on the order of the corners or on convexity, nothing jumps where edges touch, and no polygon has to be
    built. What is computed is measured from the centre of the box: large coordinates cost no digits.

    Args:
        quads: ``(..., 4, 2)`` corners in order, of a polygon whose edges do not cross.
        rboxes: ``(..., 5)``, with positive sides.

    Returns:
        ``(...)``, in the dtype of both.
    """
    centre, w, h, angle = torch.split(rboxes, [2, 1, 1, 1], -1)
    x, y = (quads - centre.unsqueeze(-2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    x, y = x * cos + y * sin, y * cos - x * sin
    step_x, step_y = x.roll(-1, -1) - x, y.roll(-1, -1) - y
    # As shares of an edge: between which its x is inside, and between which of these its y is.
    first, last = (share.clamp(0, 1) for share in _crossings(x, step_x, w / 2))
    low, high = (share.clamp(first, last) for share in _crossings(y, step_y, h / 2))
    shares = torch.stack((first, low, high, last), -1)
    bound = (h / 2).unsqueeze(-1)
    heights = (y.unsqueeze(-1) + shares * step_y.unsqueeze(-1)).clamp(-bound, bound)
    return (torch.trapezoid(heights, shares, dim=-1) * step_x).sum(-1).abs()


def overlaps(quads: Tensor, rboxes: Tensor) -> Tensor:
    """Return intersection over union of quadrilaterals and oriented boxes, one by one.

    Args:
        quads: ``(..., 4, 2)``; see :func:`shared_areas`.
        rboxes: ``(..., 5)``.

    Returns:
        ``(...)`` in ``[0, 1]``; 0 where anything is not finite, or a box has no area.
    """
    sides = rboxes[..., 2:4]
    sound = rboxes.isfinite().all(-1) & quads.flatten(-2).isfinite().all(-1) & (sides > 0).all(-1)
    shared = shared_areas(quads, rboxes)
    return torch.where(sound, shared / (areas(quads) + sides.prod(-1) - shared), 0.0).clamp(0, 1)


def _crossings(start: Tensor, step: Tensor, bound: Tensor) -> tuple[Tensor, Tensor]:
    """Where, as shares of the step, the bounds are met; anywhere if it does not move, since no height changes then."""
    step = torch.where(step == 0, 1.0, step)
    one, other = (-bound - start) / step, (bound - start) / step
    return torch.minimum(one, other), torch.maximum(one, other)

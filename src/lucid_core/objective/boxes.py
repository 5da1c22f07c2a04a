"""Box arithmetic on the device: overlap, and the complete IoU."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["complete_iou", "pairwise_iou"]


def _areas(boxes: Tensor) -> Tensor:
    sides = (boxes[..., 2:] - boxes[..., :2]).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def _intersection(a: Tensor, b: Tensor) -> Tensor:
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def pairwise_iou(a: Tensor, b: Tensor, eps: float = 1e-9) -> Tensor:
    """Return the IoU of every box of ``a`` ``(B, N, 4)`` with every box of ``b`` ``(B, A, 4)`` as ``(B, N, A)``.

    Inverted boxes count as empty. ``eps`` is added to the union.
    """
    shared = _intersection(a.unsqueeze(2), b.unsqueeze(1))
    return shared / (_areas(a).unsqueeze(2) + _areas(b).unsqueeze(1) - shared + eps)


def complete_iou(predicted: Tensor, target: Tensor, eps: float = 1e-7) -> Tensor:
    """Return the complete IoU of boxes one by one (Zheng et al., arXiv 1911.08287, equation 10).

    ``atan2`` of the sides, rather than ``atan`` of their ratio, gives the aspect of a point no gradient. That of a box
    of a millionth of a pixel is still steep; clipping the gradient is what bounds it.

    Args:
        predicted: ``(..., 4)`` pixels; may be inverted.
        target: ``(..., 4)`` pixels.
        eps: Added to denominators.

    Returns:
        ``(...)``, at most 1, equal to 1 for equal boxes.
    """
    shared = _intersection(predicted, target)
    iou = shared / (_areas(predicted) + _areas(target) - shared + eps)
    enclosing = torch.maximum(predicted[..., 2:], target[..., 2:]) - torch.minimum(predicted[..., :2], target[..., :2])
    offset = (predicted[..., :2] + predicted[..., 2:] - target[..., :2] - target[..., 2:]) / 2
    distance = offset.square().sum(-1) / (enclosing.square().sum(-1) + eps)
    p = (predicted[..., 2:] - predicted[..., :2]).clamp(min=0)
    t = (target[..., 2:] - target[..., :2]).clamp(min=0)
    aspect = (4 / math.pi**2) * (torch.atan2(t[..., 0], t[..., 1]) - torch.atan2(p[..., 0], p[..., 1])).square()
    with torch.no_grad():
        trade_off = aspect / (1 - iou + aspect + eps)
    return iou - distance - trade_off * aspect

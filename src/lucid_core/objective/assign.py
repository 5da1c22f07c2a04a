"""Which anchor learns which object: task-aligned assignment with a floor for small targets.

Task-aligned assignment is TOOD (arXiv 2108.07755, section 3.2); a second branch with a single anchor per object is
YOLOv10 (arXiv 2405.14458, section 3.1); the surrogate of small targets is YOLO26 (arXiv 2606.03748).

Everything here is dense over ``(B, N, A)`` and has no value-dependent shape. No float is summed over N, so padding
changes no bit. Ties go to the lowest anchor, then to the lowest target.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lucid_core.objective.boxes import pairwise_iou
from lucid_core.types import Anchors, Assignment, Targets

__all__ = ["REFERENCE", "SMALL", "Assigner", "candidates", "rank"]

#: Sides under ``SMALL`` pixels are widened to ``REFERENCE``: the strides of the two finest levels, so that even the
#: smallest object holds an anchor centre.
SMALL, REFERENCE = 8.0, 16.0


def candidates(targets: Targets, anchors: Anchors) -> Tensor:
    """Return which anchor centres lie in which target, edges included, as ``(B, N, A)`` bool.

    Sides of small targets are widened about their centre for this test alone.
    """
    low, high = targets.boxes[..., :2], targets.boxes[..., 2:]
    sides = high - low
    half = torch.where(sides < SMALL, REFERENCE, sides) / 2
    middle = (low + high) / 2
    low = torch.where(sides < SMALL, middle - half, low).unsqueeze(2)
    high = torch.where(sides < SMALL, middle + half, high).unsqueeze(2)
    inside = ((anchors.centres >= low) & (anchors.centres <= high)).all(-1)
    return inside & targets.valid.unsqueeze(2)


class Assigner:
    """Assign anchors to targets by how well they already predict them.

    The alignment of a target and an anchor is ``score**alpha * iou**beta``. A target takes its ``topk`` best
    candidates; an anchor wanted by several goes to the one it is best aligned with.

    Args:
        topk: Anchors per target.
        single: Keep only the best anchor of each target, after conflicts are settled.
        alpha: Exponent of the class score.
        beta: Exponent of the IoU.

    Raises:
        ValueError: ``topk`` is under 1, or an exponent is negative or not finite.
    """

    def __init__(self, topk: int, single: bool = False, alpha: float = 1.0, beta: int = 6) -> None:
        if topk < 1:
            raise ValueError(f"topk counts the anchors of a target and must be at least 1, got {topk}")
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is an exponent and must be finite and at least 0, got {value}")
        self.topk = topk
        self.single = single
        self.alpha = alpha
        self.beta = beta

    @torch.no_grad()
    def __call__(self, logits: Tensor, boxes: Tensor, targets: Targets, inside: Tensor) -> Assignment:
        """Assign the anchors of one branch.

        Args:
            logits: ``(B, A, C)`` class logits, float32.
            boxes: ``(B, A, 4)`` decoded boxes, pixels.
            targets: Ground truth, capacity N.
            inside: ``(B, N, A)`` bool from :func:`candidates`.

        Returns:
            The assignment. The weights of a target are its alignments, scaled so that its best anchor gets the IoU of
            the target's best overlap.
        """
        overlap, alignment = self._align(logits, boxes, targets)
        order = rank(alignment, inside)
        k = min(self.topk, order.shape[2])
        last = order.topk(k, dim=2, sorted=False).values.amin(2, keepdim=True)
        chosen = inside & (order >= last)

        rows = torch.arange(order.shape[1], device=order.device).view(1, -1, 1)
        owner = torch.where(chosen, alignment, -1.0).argmax(1)
        chosen = chosen & (rows == owner.unsqueeze(1))
        if self.single:
            columns = torch.arange(order.shape[2], device=order.device)
            best = torch.where(chosen, order, -1).argmax(2, keepdim=True)
            chosen = chosen & (columns == best)

        foreground = chosen.any(1)
        owner = torch.where(foreground, owner, 0)
        best_alignment = torch.where(chosen, alignment, 0.0).amax(2)
        best_overlap = torch.where(chosen, overlap, 0.0).amax(2)
        # An absolute floor would shrink the weights of poorly placed targets, whose alignment is of the order IoU**6.
        tiny = torch.finfo(alignment.dtype).tiny
        own = alignment.gather(1, owner.unsqueeze(1)).squeeze(1)
        weight = own * best_overlap.gather(1, owner) / best_alignment.gather(1, owner).clamp(min=tiny)
        return Assignment(foreground, owner, torch.where(foreground, weight, 0.0))

    def _align(self, logits: Tensor, boxes: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        overlap = pairwise_iou(targets.boxes, boxes)
        columns = targets.labels.unsqueeze(2).expand(-1, -1, logits.shape[1])
        # The tail of a vector may get another exp or pow from a CPU than its body, and where the tail is depends on N:
        # scores are made before N comes in, and over N there are only products, which are exact everywhere.
        scores = logits.sigmoid() if self.alpha == 1 else logits.sigmoid().pow(self.alpha)
        alignment = scores.transpose(1, 2).gather(1, columns) * _power(overlap, self.beta)
        return overlap.nan_to_num(0.0), alignment.nan_to_num(0.0)


def rank(value: Tensor, chosen: Tensor) -> Tensor:
    """Order anchors strictly: by ``value`` ``(..., A)``, then by the lowest anchor; those not ``chosen`` are -1.

    The bits of a float that is not negative, read as an integer, order as the float does. With the anchor below them no
    two chosen anchors are equal, so the top k do not depend on how a device breaks ties.

    Args:
        value: ``(..., A)`` float32, not negative.
        chosen: ``(..., A)`` bool.
    """
    count = value.shape[-1]
    reverse = torch.arange(count - 1, -1, -1, device=value.device)
    bits = value.contiguous().view(torch.int32).to(torch.int64)
    return torch.where(chosen, (bits << 32) | reverse, -1)


def _power(x: Tensor, exponent: int) -> Tensor:
    """Return ``x**exponent`` by products alone."""
    result = torch.ones_like(x) if exponent == 0 else x
    for bit in f"{exponent:b}"[1:]:
        result = result * result * x if bit == "1" else result * result
    return result

"""The three terms of one branch, dense over ``(B, A)``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from lucid_core.objective.boxes import complete_iou
from lucid_core.types import Anchors, Assignment, Targets, Terms

__all__ = ["branch_terms", "class_term"]


def class_term(logits: Tensor, targets: Targets, assignment: Assignment, total: Tensor) -> Tensor:
    """Return binary cross-entropy of ``logits`` ``(B, A, C)`` against the weight at the assigned class, over ``total``.

    Background takes part with nothing but zeros to learn.
    """
    foreground, owner, weight = assignment
    labels = torch.where(foreground, targets.labels.gather(1, owner), -1)
    classes = torch.arange(logits.shape[2], device=logits.device)
    soft = torch.where(labels.unsqueeze(2) == classes, weight.unsqueeze(2), 0.0)
    return functional.binary_cross_entropy_with_logits(logits, soft, reduction="sum") / total


def branch_terms(logits: Tensor, boxes: Tensor, anchors: Anchors, targets: Targets, assignment: Assignment) -> Terms:
    """Return class, box and L1 loss of one branch, before gains.

    All three are divided by the sum of the assignment's weights over the whole batch, at least 1; in a distributed run
    over the batch of this process, whose gradients are then averaged as everywhere. Background anchors
    take part as their own cell, which costs nothing, so shapes never depend on values and no gradient is absent or NaN.

    Args:
        logits: ``(B, A, C)`` class logits, float32.
        boxes: ``(B, A, 4)`` decoded boxes, pixels, float32.
        anchors: The grid of the canvas.
        targets: Ground truth.
        assignment: What :class:`~lucid_core.objective.assign.Assigner` returned for these predictions.

    Returns:
        ``cls``: binary cross-entropy against the weight at the assigned class. ``box``: ``1 - CIoU`` in pixels.
        ``l1``: distance of the four sides in strides of their level, because in pixels it would dwarf the others.
    """
    foreground, owner, weight = assignment
    total = weight.sum().clamp(min=1.0)

    cls = class_term(logits, targets, assignment, total)

    inside = foreground.unsqueeze(2)
    cell = torch.cat((anchors.centres, anchors.centres + anchors.strides), 1)
    wanted = torch.where(inside, targets.boxes.gather(1, owner.unsqueeze(2).expand(-1, -1, 4)), cell)
    given = torch.where(inside, boxes, cell)
    box = (weight * (1.0 - complete_iou(given, wanted))).sum() / total
    l1 = (weight * ((given - wanted).abs() / anchors.strides).sum(2)).sum() / total
    return Terms(box=box, cls=cls, l1=l1)

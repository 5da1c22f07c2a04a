"""Decode with class-wise non-maximum suppression, for branches that answer one object with many anchors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lucid_core.evaluation.decode import candidates, ranked, select
from lucid_core.types import Anchors, BranchOutput, Detections

__all__ = ["suppress", "with_nms"]

#: Boxes compared at once. Bounds memory to ``BLOCK * max(BLOCK, limit)`` overlaps, whatever the number of candidates.
BLOCK = 512


def with_nms(
    output: BranchOutput, anchors: Anchors, score: float = 0.001, iou: float = 0.7, limit: int = 300
) -> Detections:
    """Decode the one-to-many branch: greedy suppression within each class.

    Args:
        output: Raw output of the branch.
        anchors: The grid it refers to.
        score: Anchors below are not considered.
        iou: A box that overlaps a better one of its class by more than this is dropped.
        limit: ``D``, rows per image.

    Returns:
        Exactly ``limit`` rows per image, by falling score, equal scores by rising anchor. Boxes that are not finite, or
        without area (inverted ones), are dropped.
    """
    found = candidates(output, anchors)
    usable = (found.scores >= score) & (found.scores > 0) & (found.boxes[..., 2:] > found.boxes[..., :2]).all(dim=-1)
    scores, order = ranked(found.scores.masked_fill(~usable, 0.0))
    kept = []
    for boxes, labels, ranks, count in zip(found.boxes, found.labels, order, (scores > 0).sum(dim=1), strict=True):
        best = ranks[:count]
        kept.append(best[suppress(boxes[best], labels[best], iou, limit)])
    # The extra row sets the padded length; it holds nothing and is left out.
    rows = pad_sequence([*kept, order.new_empty(limit)], batch_first=True, padding_value=-1)[:-1]
    return select(found, rows)


def suppress(boxes: Tensor, labels: Tensor, iou: float, limit: int) -> Tensor:
    """Greedy class-wise suppression, exact, over any number of boxes.

    Works through the boxes block by block and stops once ``limit`` are kept. Within a block the greedy answer is the
    one fixed point of "a box lives if no better living box overlaps it", reached by iterating from all alive
    (Zheng et al., Cluster-NMS, arXiv:2005.03572), so that no step of it is a Python loop over boxes. Classes are
    compared, not moved apart by an offset, which would round the coordinates.

    Args:
        boxes: ``(n, 4)`` with positive sides, best first.
        labels: ``(n,)``.
        iou: Overlaps above this are suppressed.
        limit: Stop after so many.

    Returns:
        Positions of the kept boxes, rising, at most ``limit``.
    """
    kept = labels.new_empty(0)
    for block in torch.split(torch.arange(len(boxes), device=boxes.device), BLOCK):
        block = block[~_clash(boxes, labels, kept, block, iou).any(dim=0)]
        clash = _clash(boxes, labels, block, block, iou).triu(diagonal=1)
        alive = torch.ones_like(block, dtype=torch.bool)
        while True:
            survivors = ~(clash & alive.unsqueeze(1)).any(dim=0)
            if torch.equal(survivors, alive):
                break
            alive = survivors
        kept = torch.cat([kept, block[alive]])
        if len(kept) >= limit:
            break
    return kept[:limit]


def _clash(boxes: Tensor, labels: Tensor, first: Tensor, second: Tensor, iou: float) -> Tensor:
    """``(len(first), len(second))`` bool: same class and overlap above ``iou``."""
    a, b = boxes[first].unsqueeze(1), boxes[second].unsqueeze(0)
    inner = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    shared = inner.clamp(min=0).prod(dim=-1)
    union = (a[..., 2:] - a[..., :2]).prod(dim=-1) + (b[..., 2:] - b[..., :2]).prod(dim=-1) - shared
    return (shared > iou * union) & (labels[first].unsqueeze(1) == labels[second].unsqueeze(0))

"""Decode with class-wise non-maximum suppression, for branches that answer one object with many anchors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lucid_core.evaluation.decode import candidates, ranked, select
from lucid_core.evaluation.rotated import corners, envelope, overlaps
from lucid_core.types import Anchors, BranchOutput, Detections

__all__ = ["Clash", "oriented_clash", "suppress", "upright_clash", "with_nms"]

#: Says which of ``n`` boxes overlap which of ``m`` others by more than a share: ``(n, m)`` bool.
Clash = Callable[[Tensor, Tensor, float], Tensor]

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
        without area (inverted ones), are dropped. Oriented boxes are compared as such.
    """
    found = candidates(output, anchors)
    if found.rboxes is None:
        compared, clash = found.boxes, upright_clash
        sound = (compared[..., 2:] > compared[..., :2]).all(dim=-1)
    else:
        compared, clash = found.rboxes, oriented_clash
        sound = (compared[..., 2:4] > 0).all(dim=-1)
    usable = (found.scores >= score) & (found.scores > 0) & sound
    scores, order = ranked(found.scores.masked_fill(~usable, 0.0))
    kept = []
    for boxes, labels, ranks, count in zip(compared, found.labels, order, (scores > 0).sum(dim=1), strict=True):
        best = ranks[:count]
        kept.append(best[suppress(boxes[best], labels[best], iou, limit, clash)])
    # The extra row sets the padded length; it holds nothing and is left out.
    rows = pad_sequence([*kept, order.new_empty(limit)], batch_first=True, padding_value=-1)[:-1]
    return select(found, rows)


def suppress(boxes: Tensor, labels: Tensor, iou: float, limit: int, clash: Clash | None = None) -> Tensor:
    """Greedy class-wise suppression, exact, over any number of boxes.

    Works through the boxes block by block and stops once ``limit`` are kept. Within a block the greedy answer is the
    one fixed point of "a box lives if no better living box overlaps it", reached by iterating from all alive
    (Zheng et al., Cluster-NMS, arXiv:2005.03572), so that no step of it is a Python loop over boxes. Classes are
    compared, not moved apart by an offset, which would round the coordinates.

    Args:
        boxes: ``(n, 4)``, or what else ``clash`` compares, with positive sides, best first.
        labels: ``(n,)``.
        iou: Overlaps above this are suppressed.
        limit: Stop after so many.
        clash: Says which boxes overlap too much; :func:`upright_clash` unless given.

    Returns:
        Positions of the kept boxes, rising, at most ``limit``.
    """
    clash = clash or upright_clash

    def rivals(first: Tensor, second: Tensor) -> Tensor:
        same: Tensor = labels[first].unsqueeze(1) == labels[second].unsqueeze(0)
        return clash(boxes[first], boxes[second], iou) & same

    kept = labels.new_empty(0)
    for block in torch.split(torch.arange(len(boxes), device=boxes.device), BLOCK):
        block = block[~rivals(kept, block).any(dim=0)]
        clashes = rivals(block, block).triu(diagonal=1)
        alive = torch.ones_like(block, dtype=torch.bool)
        while True:
            survivors = ~(clashes & alive.unsqueeze(1)).any(dim=0)
            if torch.equal(survivors, alive):
                break
            alive = survivors
        kept = torch.cat([kept, block[alive]])
        if len(kept) >= limit:
            break
    return kept[:limit]


def upright_clash(first: Tensor, second: Tensor, iou: float) -> Tensor:
    """Return which of ``(n, 4)`` and ``(m, 4)`` boxes overlap by more than ``iou``, as ``(n, m)`` bool."""
    a, b = first.unsqueeze(1), second.unsqueeze(0)
    shared = _shared(a, b)
    union = (a[..., 2:] - a[..., :2]).prod(dim=-1) + (b[..., 2:] - b[..., :2]).prod(dim=-1) - shared
    return shared > iou * union


def oriented_clash(first: Tensor, second: Tensor, iou: float) -> Tensor:
    """Return which of ``(n, 5)`` and ``(m, 5)`` oriented boxes overlap by more than ``iou``, as ``(n, m)`` bool."""
    quads, others = corners(first), corners(second)
    near = _shared(envelope(quads).unsqueeze(1), envelope(others).unsqueeze(0)) > 0
    one, other = near.nonzero(as_tuple=True)
    # Exact overlaps cost much more than those of what encloses the boxes, and few boxes meet.
    near[one, other] = overlaps(quads[one], second[other]) > iou
    return near


def _shared(a: Tensor, b: Tensor) -> Tensor:
    inner = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    return inner.clamp(min=0).prod(dim=-1)

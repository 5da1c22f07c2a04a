"""Raw output of the head -> ``Detections``, without suppression."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lucid_core.network.anchors import decode
from lucid_core.types import Anchors, BranchOutput, Detections

__all__ = ["Candidates", "candidates", "end_to_end", "ranked", "select"]


class Candidates(NamedTuple):
    """One labelled box per anchor.

    Attributes:
        boxes: ``(B, A, 4)`` float32, pixels of the canvas; may be inverted.
        scores: ``(B, A)`` float32 in ``[0, 1]``; 0 where the box or the logit is not finite.
        labels: ``(B, A)`` int64, the best class.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor


def candidates(output: BranchOutput, anchors: Anchors) -> Candidates:
    """Decode one branch: each anchor gives its best class (the lowest of equal ones) and its box."""
    logits, labels = output.logits.float().max(dim=-1)
    boxes = decode(output.distances, anchors)
    finite = logits.isfinite() & boxes.isfinite().all(dim=-1)
    return Candidates(boxes, torch.where(finite, logits.sigmoid(), 0.0), labels)


def ranked(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Sort anchors by falling score, the lowest anchor first among equals (``topk`` leaves ties open).

    Args:
        scores: ``(..., A)`` float32.

    Returns:
        The sorted scores and the anchors they came from, both ``(..., A)``.
    """
    values, order = scores.sort(dim=-1, descending=True, stable=True)
    return values, order


def select(found: Candidates, chosen: Tensor) -> Detections:
    """Gather the chosen anchors into the fixed layout.

    Args:
        found: Candidates of every anchor.
        chosen: ``(B, D)`` int64 anchors, best first; -1 for a row that holds nothing.
    """
    empty = chosen < 0
    source = chosen.clamp(min=0)
    boxes = found.boxes.gather(1, source.unsqueeze(-1).expand(-1, -1, 4))
    return Detections(
        boxes=boxes.masked_fill(empty.unsqueeze(-1), 0.0),
        scores=found.scores.gather(1, source).masked_fill(empty, 0.0),
        labels=found.labels.gather(1, source).masked_fill(empty, 0),
        anchors=chosen,
    )


def end_to_end(output: BranchOutput, anchors: Anchors, limit: int = 300) -> Detections:
    """Decode the one-to-one branch: the ``limit`` best anchors over all levels, no suppression.

    One label per anchor, as trained: an anchor is never returned twice with two classes, unlike the two-stage
    selection over (anchor, class) pairs of YOLOv10 (Wang et al., arXiv:2405.14458).

    Args:
        output: Raw output of the branch.
        anchors: The grid it refers to.
        limit: ``D``, rows per image.

    Returns:
        Exactly ``limit`` rows per image, by falling score, equal scores by rising anchor. Anchors whose output is not
        finite or whose score is 0 give no row. Inverted boxes are kept: the network said them, and they count.
    """
    found = candidates(output, anchors)
    scores, order = ranked(found.scores)
    chosen = order.masked_fill(scores == 0, -1)[:, :limit]
    return select(found, pad(chosen, (0, limit - chosen.shape[1]), value=-1))

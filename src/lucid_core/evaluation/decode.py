"""Raw output of the head -> ``Detections``, without suppression."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lucid_core.evaluation.rotated import corners, envelope
from lucid_core.network.anchors import decode
from lucid_core.network.rotated import decode_rotated
from lucid_core.types import Anchors, BranchOutput, Detections

__all__ = ["Candidates", "candidates", "end_to_end", "ranked", "select"]


class Candidates(NamedTuple):
    """One labelled box per anchor, with what else the task predicts of it.

    Attributes:
        boxes: ``(B, A, 4)`` float32, pixels of the canvas; may be inverted. Of oriented boxes, what encloses them.
        scores: ``(B, A)`` float32 in ``[0, 1]``; 0 where anything said of the anchor is not finite.
        labels: ``(B, A)`` int64, the best class.
        coefficients: ``(B, A, 32)`` float32, or none.
        rboxes: ``(B, A, 5)`` float32, pixels and radians, or none; sides may be under 0.
        points: ``(B, A, K, 2)`` float32, pixels of the canvas, or none.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    coefficients: Tensor | None = None
    rboxes: Tensor | None = None
    points: Tensor | None = None


def candidates(output: BranchOutput, anchors: Anchors) -> Candidates:
    """Decode one branch: each anchor gives its best class (the lowest of equal ones) and its box."""
    logits, labels = output.logits.float().max(dim=-1)
    boxes, rboxes, points = decode(output.distances, anchors), None, None
    finite = logits.isfinite() & boxes.isfinite().all(dim=-1)
    coefficients = None if output.coefficients is None else output.coefficients.float()
    if output.angles is not None:
        rboxes = decode_rotated(boxes, output.angles)
        boxes = envelope(corners(rboxes))
    if output.points is not None:
        points = anchors.centres.unsqueeze(1) + output.points.float() * anchors.strides.unsqueeze(1)
    for extra in (coefficients, rboxes, points):
        if extra is not None:
            finite = finite & extra.flatten(2).isfinite().all(dim=-1)
    return Candidates(boxes, torch.where(finite, logits.sigmoid(), 0.0), labels, coefficients, rboxes, points)


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
    source = chosen.clamp(min=0)

    def take(field: Tensor) -> Tensor:
        beyond = (1,) * (field.ndim - 2)
        index = source.view(*source.shape, *beyond).expand(-1, -1, *field.shape[2:])
        return field.gather(1, index).masked_fill((chosen < 0).view(*chosen.shape, *beyond), 0)

    boxes, scores, labels, *extras = (None if field is None else take(field) for field in found)
    assert boxes is not None and scores is not None and labels is not None
    coefficients, rboxes, points = extras
    return Detections(boxes, scores, labels, chosen, coefficients, None, rboxes, points)


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

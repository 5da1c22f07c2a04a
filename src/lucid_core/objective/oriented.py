"""The objective of oriented boxes: the frame of detection, with box terms of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lucid_core.network.rotated import decode_rotated
from lucid_core.objective.objective import Factors, Objective
from lucid_core.objective.rotated import SHORTEST, hellinger, rotated_candidates
from lucid_core.objective.terms import class_term
from lucid_core.types import Anchors, Assignment, BranchOutput, OrientedTerms, Targets

__all__ = ["OrientedGains", "OrientedObjective", "angle_cost", "oriented_terms"]

#: How fast the angle stops to count as a box gets longer: at ``exp(ASPECT)`` times its width, to ``exp(-1)``.
ASPECT = 3.0


@dataclass(frozen=True)
class OrientedGains(Factors):
    """Factors of the terms of oriented boxes.

    Args:
        rbox: Of the Hellinger distance.
        cls: Of the classification term.
        rl1: Of the distance of centres and sides.
        angle: Of the angle term.
    """

    rbox: float = 7.5
    cls: float = 0.5
    rl1: float = 6.0
    angle: float = 0.25


class OrientedObjective(Objective):
    """Score classes and oriented boxes.

    Anchors within an oriented box may learn it. How well they predict it already, which decides the assignment and its
    weights, is the IoU of upright boxes: of the one that encloses the target, and of the predicted one before its
    rotation.

    Args:
        gains: Factors of the terms.
    """

    def __init__(self, gains: OrientedGains | None = None) -> None:
        super().__init__(gains or OrientedGains())

    def inside(self, targets: Targets, anchors: Anchors) -> Tensor:
        """Return which anchors lie in which oriented box.

        Raises:
            ValueError: There are no oriented boxes, or their shape is not ``(B, N, 5)``.
        """
        if targets.rboxes is None or targets.rboxes.shape != (*targets.valid.shape, 5):
            seen = "none" if targets.rboxes is None else f"shape {tuple(targets.rboxes.shape)}"
            raise ValueError(f"oriented boxes need targets.rboxes of shape {(*targets.valid.shape, 5)}, got {seen}")
        return rotated_candidates(targets.rboxes, targets.valid, anchors)

    def terms(
        self, branch: BranchOutput, boxes: Tensor, anchors: Anchors, targets: Targets, assignment: Assignment
    ) -> OrientedTerms:
        """Return the terms of one branch, before gains.

        Raises:
            ValueError: The branch predicts no angles.
        """
        if branch.angles is None:
            raise ValueError("oriented boxes need a network that predicts angles: make it of task obb")
        return oriented_terms(branch.logits, boxes, branch.angles.float(), anchors, targets, assignment)


def oriented_terms(
    logits: Tensor, boxes: Tensor, angles: Tensor, anchors: Anchors, targets: Targets, assignment: Assignment
) -> OrientedTerms:
    """Return the terms of one branch, dense over ``(B, A)`` and divided as those of upright boxes.

    Background anchors take part as their own cell, which costs nothing.

    Args:
        logits: ``(B, A, C)`` class logits, float32.
        boxes: ``(B, A, 4)`` decoded boxes before their rotation, pixels, float32.
        angles: ``(B, A, 1)`` radians, float32.
        anchors: The grid of the canvas.
        targets: Ground truth, with oriented boxes.
        assignment: Which anchor learns which target.

    Returns:
        ``rbox``: Hellinger distance. ``cls``: binary cross-entropy. ``rl1``: distance of centre and sides in strides,
        which pulls where a side collapsed and the Hellinger distance has no gradient. ``angle``: :func:`angle_cost` of
        the angle as it was predicted, before it is brought into its range.
    """
    foreground, owner, weight = assignment
    assert targets.rboxes is not None
    total = weight.sum().clamp(min=1.0)
    inside = foreground.unsqueeze(2)
    cell = torch.cat((anchors.centres, anchors.centres + anchors.strides), 1)
    angles = torch.where(inside, angles, 0.0)
    given = decode_rotated(torch.where(inside, boxes, cell), angles)
    rboxes = targets.rboxes.gather(1, owner.unsqueeze(2).expand(-1, -1, 5))
    wanted = torch.where(inside, rboxes, decode_rotated(cell, torch.zeros_like(anchors.strides)))
    l1 = ((given - wanted)[..., :4].abs() / anchors.strides).sum(2)
    return OrientedTerms(
        rbox=(weight * hellinger(given, wanted)).sum() / total,
        cls=class_term(logits, targets, assignment, total),
        rl1=(weight * l1).sum() / total,
        angle=(weight * angle_cost(angles.squeeze(2), wanted)).sum() / total,
    )


def angle_cost(angle: Tensor, wanted: Tensor) -> Tensor:
    """Return the squared sine of twice the error, which is the same every quarter turn, less for longer boxes.

    A quarter turn exchanges the sides of a box, and the other terms see that; of a long box they see the angle, too.

    Args:
        angle: ``(...)`` radians, unbounded.
        wanted: ``(..., 5)`` oriented boxes.
    """
    w, h = wanted[..., 2:4].clamp(min=SHORTEST).unbind(-1)
    return torch.exp(-((w / h).log() / ASPECT).square()) * (2 * (angle - wanted[..., 4])).sin().square()

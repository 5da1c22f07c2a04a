"""The training objective: both branches are assigned, scored and blended."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from lucid_core.network.anchors import decode
from lucid_core.objective.assign import Assigner, candidates
from lucid_core.objective.terms import branch_terms
from lucid_core.seams import seam
from lucid_core.types import (
    Anchors,
    Assignment,
    BranchOutput,
    Losses,
    MaskTerms,
    NoTerms,
    OrientedTerms,
    PointTerms,
    Predictions,
    Targets,
    Terms,
)

__all__ = ["Factors", "Gains", "Objective", "progressive_weight"]


@dataclass(frozen=True)
class Factors:
    """One finite factor, at least 0, for each term of an objective, by the name of the term."""

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"the gain {name!r} must be finite and at least 0, got {value}")


@dataclass(frozen=True)
class Gains(Factors):
    """Factors of the terms that boxes have.

    Args:
        box: Of the complete-IoU term.
        cls: Of the classification term.
        l1: Of the side-distance term.
    """

    box: float = 7.5
    cls: float = 0.5
    l1: float = 6.0


def progressive_weight(epoch: int, epochs: int | None, start: float = 0.8, end: float = 0.1) -> float:
    """Return the weight of the one-to-many branch in an epoch; the other branch gets the rest (YOLO26, 2606.03748).

    Args:
        epoch: From 0.
        epochs: Epochs of the whole run; ``None`` where the run is bounded by steps, which keeps 0.5 throughout.
        start: Weight in the first epoch.
        end: Weight in the last epoch.
    """
    if epochs is None:
        return 0.5
    return max(1.0 - epoch / max(epochs - 1, 1), 0.0) * (start - end) + end


class Objective(nn.Module):
    """Score raw predictions against padded targets: the objective of detection, and the frame of the other tasks.

    A task derives from it and says which anchors may learn a target (:meth:`inside`), which terms a branch has
    (:meth:`terms`), and what it adds to both branches (:meth:`task`). It reuses the assignments.

    The weight of the one-to-many branch is a 0-d tensor that :meth:`write_scalars` fills from the host, so that the
    arithmetic reads no Python number that changes in a run.

    Args:
        gains: Factors of the terms.
    """

    weight: Tensor

    def __init__(self, gains: Factors | None = None) -> None:
        super().__init__()
        self.gains = gains or Gains()
        self.assign_many = Assigner(topk=10)
        self.assign_one = Assigner(topk=7, single=True)
        self.register_buffer("weight", torch.tensor(0.5), persistent=False)

    def write_scalars(self, weight: float) -> None:
        """Set the weight of the one-to-many branch, in ``[0, 1]``."""
        self.weight.fill_(weight)

    @seam("step.objective")
    def forward(self, predictions: Predictions, targets: Targets) -> Losses:
        """Return the losses of a batch. Reads nothing back to the host; labels must lie in ``[0, C)``."""
        losses, many, one = self.detection(predictions, targets)
        with torch.autocast(losses.total.device.type, enabled=False):
            task = self.task(predictions, targets, many, one)
            return losses._replace(total=sum(self._gained(task), losses.total), task=task)

    @seam("step.objective.detection")
    def detection(self, predictions: Predictions, targets: Targets) -> tuple[Losses, Assignment, Assignment]:
        """Return the losses every task shares, and both assignments for the terms a task adds.

        The arithmetic is float32 whatever the precision of the predictions.
        """
        anchors = predictions.anchors
        with torch.autocast(predictions.one_to_many.logits.device.type, enabled=False):
            inside = self.inside(targets, anchors)
            terms: list[Terms | OrientedTerms] = []
            assignments: list[Assignment] = []
            for branch, assign in (
                (predictions.one_to_many, self.assign_many),
                (predictions.one_to_one, self.assign_one),
            ):
                branch, boxes = branch._replace(logits=branch.logits.float()), decode(branch.distances, anchors)
                assignment = assign(branch.logits, boxes, targets, inside)
                assignments.append(assignment)
                terms.append(self.terms(branch, boxes, anchors, targets, assignment))
            many, one = (sum(rest, first) for first, *rest in map(self._gained, terms))
            total = self.blend(many, one)
        return Losses(total, terms[0], terms[1]), assignments[0], assignments[1]

    def inside(self, targets: Targets, anchors: Anchors) -> Tensor:
        """Return which anchors may learn which target, ``(B, N, A)`` bool."""
        return candidates(targets, anchors)

    def terms(
        self, branch: BranchOutput, boxes: Tensor, anchors: Anchors, targets: Targets, assignment: Assignment
    ) -> Terms | OrientedTerms:
        """Return the terms of one branch, before gains.

        Args:
            branch: Its output, with logits in float32.
            boxes: ``(B, A, 4)`` its decoded boxes, pixels, float32.
            anchors: The grid of the canvas.
            targets: Ground truth.
            assignment: Which anchor learns which target.
        """
        return branch_terms(branch.logits, boxes, anchors, targets, assignment)

    def task(
        self, predictions: Predictions, targets: Targets, many: Assignment, one: Assignment
    ) -> NoTerms | MaskTerms | PointTerms:
        """Return the terms that the task adds, before gains, from the assignments of both branches."""
        return NoTerms()

    def blend(self, many: Tensor, one: Tensor) -> Tensor:
        """Return what both branches say, each by its weight."""
        return self.weight * many + (1.0 - self.weight) * one

    def _gained(self, terms: Terms | OrientedTerms | NoTerms | MaskTerms | PointTerms) -> list[Tensor]:
        return [getattr(self.gains, name) * term for name, term in terms._asdict().items() if term is not None]

"""The training objective: both branches are assigned, scored and blended."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lucid_core.network.anchors import decode
from lucid_core.objective.assign import Assigner, candidates
from lucid_core.objective.terms import branch_terms
from lucid_core.seams import seam
from lucid_core.types import Assignment, Losses, Predictions, Targets, Terms

__all__ = ["Gains", "Objective", "progressive_weight"]


@dataclass(frozen=True)
class Gains:
    """Factors of the terms in the objective.

    Args:
        box: Of the complete-IoU term.
        cls: Of the classification term.
        l1: Of the side-distance term.
    """

    box: float = 7.5
    cls: float = 0.5
    l1: float = 6.0

    def __post_init__(self) -> None:
        for name in ("box", "cls", "l1"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"the gain {name!r} must be finite and at least 0, got {value}")


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
    """Score raw predictions against padded targets.

    The weight of the one-to-many branch is a 0-d tensor that :meth:`write_scalars` fills from the host, so that the
    arithmetic reads no Python number that changes in a run.

    Args:
        gains: Factors of the terms.
    """

    weight: Tensor

    def __init__(self, gains: Gains | None = None) -> None:
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
        return self.detection(predictions, targets)[0]

    @seam("step.objective.detection")
    def detection(self, predictions: Predictions, targets: Targets) -> tuple[Losses, Assignment, Assignment]:
        """Return the losses every task shares, and both assignments for the terms a task adds.

        The arithmetic is float32 whatever the precision of the predictions.
        """
        anchors = predictions.anchors
        with torch.autocast(predictions.one_to_many.logits.device.type, enabled=False):
            inside = candidates(targets, anchors)
            terms: list[Terms] = []
            assignments: list[Assignment] = []
            for branch, assign in (
                (predictions.one_to_many, self.assign_many),
                (predictions.one_to_one, self.assign_one),
            ):
                logits, boxes = branch.logits.float(), decode(branch.distances, anchors)
                assignment = assign(logits, boxes, targets, inside)
                assignments.append(assignment)
                terms.append(branch_terms(logits, boxes, anchors, targets, assignment))
            many, one = (self._weigh(t) for t in terms)
            total = self.weight * many + (1.0 - self.weight) * one
        return Losses(total, *terms), assignments[0], assignments[1]

    def _weigh(self, terms: Terms) -> Tensor:
        gains = self.gains
        return gains.box * terms.box + gains.cls * terms.cls + gains.l1 * terms.l1

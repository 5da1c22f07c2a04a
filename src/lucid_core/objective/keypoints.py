"""The objective of key points: that of detection, and how likely the points of an object are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lucid_core.objective.flow import Flow
from lucid_core.objective.objective import Gains, Objective
from lucid_core.objective.positives import mean_of, rows_of, select_positives
from lucid_core.oks import oks_sigmas
from lucid_core.types import Anchors, Assignment, BranchOutput, PointTerms, Predictions, Targets

__all__ = ["KeypointGains", "KeypointObjective", "Pairs", "laplace", "oks_cost"]

#: Objects of an image that one branch learns points of.
CAPACITY = 128
#: Smallest spread of a coordinate, as a part of the side of the box.
SHARPEST = 1e-6


@dataclass(frozen=True)
class KeypointGains(Gains):
    """Factors of the terms of key points.

    Args:
        keypoint: Of the likelihood of the points.
        oks: Of object keypoint similarity. At 0 that term is still computed, and logged.
    """

    keypoint: float = 1.0
    oks: float = 0.0


class Pairs(NamedTuple):
    """Points of objects, as predicted and as labelled; zeros wherever there is no label.

    Attributes:
        given: ``(B, P, K, 2)`` float32, pixels of the canvas.
        wanted: ``(B, P, K, 2)`` float32, pixels of the canvas.
        sigmas: ``(B, P, K, 2)`` float32, logits of the spread.
        labelled: ``(B, P, K)`` bool.
        sides: ``(B, P, 2)`` float32, width and height of the objects' boxes in pixels, at least 0.
    """

    given: Tensor
    wanted: Tensor
    sigmas: Tensor
    labelled: Tensor
    sides: Tensor


class KeypointObjective(Objective):
    """Score boxes, classes and key points.

    Args:
        points: Key points of an object.
        gains: Factors of the terms.
        flow: Learn the density of residuals (RLE). Without it they are Laplace distributed.
        capacity: Anchors of an image that a branch learns points at, the best placed ones where there are more.
        sigmas: Spread of each point for object keypoint similarity; ``None`` for those of
            :func:`~lucid_core.oks.oks_sigmas`.

    Attributes:
        flow: The density, which trains with the network and is no part of it; ``None`` without.

    Raises:
        ValueError: ``points`` or ``capacity`` is under 1, or there are not as many spreads as points, or one is out
            of range.
    """

    spread: Tensor

    def __init__(
        self,
        points: int = 17,
        gains: KeypointGains | None = None,
        flow: bool = True,
        capacity: int = CAPACITY,
        sigmas: Sequence[float] | None = None,
    ) -> None:
        super().__init__(gains or KeypointGains())
        for name, value in (("points", points), ("capacity", capacity)):
            if value < 1:
                raise ValueError(f"key points need {name} of at least 1, got {value}")
        self.points = points
        self.capacity = capacity
        self.flow = Flow() if flow else None
        self.register_buffer("spread", torch.tensor(oks_sigmas(points, sigmas)), persistent=False)

    def task(self, predictions: Predictions, targets: Targets, many: Assignment, one: Assignment) -> PointTerms:
        """Return the likelihood of the points and their similarity.

        Raises:
            ValueError: Points are missing, or there are not as many of them as this objective was made for.
        """
        seen = {
            "predictions": predictions.one_to_many.points,
            "spreads of the predictions": predictions.one_to_many.sigmas,
            "targets": targets.points,
        }
        for name, tensor in seen.items():
            if tensor is None or tensor.shape[2:] != (self.points, 2):
                count = "none" if tensor is None else f"shape {tuple(tensor.shape)}"
                raise ValueError(f"the objective scores {self.points} key points of an object; {name}: {count}")
        branches = ((predictions.one_to_many, many), (predictions.one_to_one, one))
        found = [self._pairs(branch, a, predictions.anchors, targets) for branch, a in branches]
        # Both branches in one call of the flow, whose many small kernels cost the same for twice the points.
        pairs = Pairs(*(torch.cat(both) for both in zip(*found, strict=True)))
        cost, similarity = self.cost(pairs), oks_cost(pairs, self.spread)
        has_points = pairs.labelled.any(2)
        keypoint = map(mean_of, cost.chunk(2), pairs.labelled.chunk(2))
        oks = map(mean_of, similarity.chunk(2), has_points.chunk(2))
        return PointTerms(self.blend(*keypoint), self.blend(*oks))

    def cost(self, pairs: Pairs) -> Tensor:
        """Return the negative log-likelihood of each point, ``(B, P, K)``; something finite where there is no label.

        It is measured in sides of the object's box. In pixels it would dwarf the other terms, and overflow the flow.
        """
        spread = pairs.sigmas.sigmoid().clamp(min=SHARPEST)
        residual = (pairs.wanted - pairs.given) / pairs.sides.clamp(min=1).unsqueeze(2) / spread
        cost = laplace(residual) + spread.log().sum(-1)
        return cost if self.flow is None else cost - self.flow(residual)

    def _pairs(self, branch: BranchOutput, assignment: Assignment, anchors: Anchors, targets: Targets) -> Pairs:
        index, owner, real = select_positives(assignment, self.capacity)
        assert branch.points is not None
        assert branch.sigmas is not None
        assert targets.points is not None
        assert targets.visibility is not None
        labelled = (rows_of(targets.visibility, owner) > 0) & real.unsqueeze(2)
        chosen = labelled.unsqueeze(3)
        centres, strides = anchors.centres[index].unsqueeze(2), anchors.strides[index].unsqueeze(2)
        given = centres + rows_of(branch.points.float(), index) * strides
        low, high = torch.split(torch.where(real.unsqueeze(2), rows_of(targets.boxes, owner), 0.0), 2, 2)
        return Pairs(
            given=torch.where(chosen, given, 0.0),
            wanted=torch.where(chosen, rows_of(targets.points, owner), 0.0),
            sigmas=torch.where(chosen, rows_of(branch.sigmas.float(), index), 0.0),
            labelled=labelled,
            sides=(high - low).clamp(min=0),
        )


def laplace(residual: Tensor) -> Tensor:
    """Return the negative logarithm of the unit Laplace density of ``(..., 2)`` as ``(...)``."""
    return (residual.abs() + math.log(2)).sum(-1)


def oks_cost(pairs: Pairs, spread: Tensor) -> Tensor:
    """Return one minus the object keypoint similarity of each object, ``(B, P)``; 1 where no point has a label.

    Args:
        pairs: The points.
        spread: ``(K,)``, as a part of the root of the area of the object's box.
    """
    square = (pairs.given - pairs.wanted).square().sum(-1)
    area = pairs.sides.prod(2, keepdim=True).clamp(min=1)
    similar = torch.exp(-square / (2 * area * (2 * spread).square())) * pairs.labelled
    return 1 - similar.sum(2) / pairs.labelled.sum(2).clamp(min=1)

"""The dual head: two branches with their own weights over the same features (YOLOv10, arXiv 2405.14458).

The one-to-many branch only trains; the one-to-one branch is what is deployed. Features are not detached for either, so
both train the backbone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lucid_core.network.backbone import Features
from lucid_core.network.blocks import ConvNormAct, depthwise
from lucid_core.types import BranchOutput, Task

__all__ = ["PRIOR_LOGIT", "PROTOTYPES", "Branch", "Group", "Stem", "groups_of"]

#: Probability of a class before anything is learnt (RetinaNet, arXiv 1708.02002, section 4.1).
PRIOR = 0.01
PRIOR_LOGIT = -math.log((1 - PRIOR) / PRIOR)
#: Distances before anything is learnt, in strides. At zero every box would be a point, no anchor would overlap an
#: object, and the first assignments would be ties.
REACH = 1.0
#: Masks that the mask of every object is a sum of (YOLACT, arXiv 1904.02689).
PROTOTYPES = 32


class Group(NamedTuple):
    """A kind of output that every level of a branch has its own stem for.

    Attributes:
        name: Attribute of the branch that holds the stems.
        outputs: Channels per anchor.
        bias: Initial bias of the last convolution; ``None`` keeps the default initialisation.
        divisor: The hidden width is the level's width divided by this, at least 16.
    """

    name: str
    outputs: int
    bias: float | None = None
    divisor: int = 3


class Stem(nn.Sequential):
    """Depthwise and pointwise convolutions from one level ``(B, c, h, w)`` to the outputs ``(B, outputs, h, w)``."""

    def __init__(self, channels: int, group: Group) -> None:
        hidden = max(16, channels // group.divisor)
        predict = nn.Conv2d(hidden, group.outputs, 1)
        if group.bias is not None and predict.bias is not None:
            nn.init.constant_(predict.bias, group.bias)
        super().__init__(
            depthwise(channels), ConvNormAct(channels, hidden), depthwise(hidden), ConvNormAct(hidden, hidden), predict
        )


class Branch(nn.Module):
    """One branch of the head: for each group one stem per level.

    Args:
        widths: Channels of the three features.
        groups: The outputs, in the order their stems are made in.
    """

    def __init__(self, widths: tuple[int, int, int], groups: tuple[Group, ...]) -> None:
        super().__init__()
        self.groups = tuple(group.name for group in groups)
        for group in groups:
            self.add_module(group.name, nn.ModuleList(Stem(width, group) for width in widths))

    def forward(self, features: Features) -> BranchOutput:
        output = BranchOutput(logits=self.flat("classes", features), distances=self.flat("boxes", features))
        if "coefficients" in self.groups:
            output = output._replace(coefficients=self.flat("coefficients", features).tanh())
        if "angles" in self.groups:
            output = output._replace(angles=self.flat("angles", features))
        if "points" in self.groups:
            points, sigmas = torch.split(torch.unflatten(self.flat("points", features), 2, (-1, 4)), 2, 3)
            output = output._replace(points=points, sigmas=sigmas)
        return output

    def flat(self, name: str, features: Features) -> Tensor:
        """Return the outputs of a group as ``(B, A, outputs)``: levels in stride order, rows before columns."""
        stems = self.get_submodule(name).children()
        maps = [stem(feature) for stem, feature in zip(stems, features, strict=True)]
        return torch.cat([m.permute(0, 2, 3, 1).flatten(1, 2) for m in maps], 1)


def groups_of(task: Task, num_classes: int, points: int) -> tuple[Group, ...]:
    """Return the outputs of a branch: what every task has, then what is the task's own.

    A key point has four channels in a row: its two coordinates, then the spread of each.
    """
    own: dict[Task, tuple[Group, ...]] = {
        "detect": (),
        "segment": (Group("coefficients", PROTOTYPES),),
        "obb": (Group("angles", 1, divisor=2),),
        "keypoints": (Group("points", 4 * points),),
    }
    return Group("boxes", 4, bias=REACH), Group("classes", num_classes, bias=PRIOR_LOGIT), *own[task]

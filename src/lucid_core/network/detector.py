"""The network: backbone, neck and dual head."""

from __future__ import annotations

from typing import get_args

from torch import Tensor, nn

from lucid_core.network.anchors import STRIDES, make_anchors
from lucid_core.network.backbone import Backbone, Features
from lucid_core.network.head import Branch, groups_of
from lucid_core.network.masks import MaskHead
from lucid_core.network.neck import Neck
from lucid_core.network.variants import VARIANTS, Variant
from lucid_core.seams import seam
from lucid_core.types import Anchors, BranchOutput, Predictions, Task

__all__ = ["Network"]


class Network(nn.Module):
    """A detector without its training: images in, raw predictions out.

    Args:
        variant: Size of the network.
        num_classes: Classes, at least 1.
        task: What it finds besides classes and boxes.
        points: Key points of an object, read by the task ``keypoints`` alone, which needs at least 1.

    Raises:
        ValueError: There is no such task, or ``num_classes`` or ``points`` is not positive.
    """

    def __init__(self, variant: Variant, num_classes: int, task: Task = "detect", points: int = 17) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"a detector needs at least one class, got num_classes={num_classes}")
        if task not in get_args(Task):
            raise ValueError(f"no task is called {task!r}; tasks are {', '.join(get_args(Task))}")
        if task == "keypoints" and points < 1:
            raise ValueError(f"key points need at least one point, got points={points}")
        scale = VARIANTS[variant]
        self.backbone = Backbone(scale)
        self.neck = Neck(scale, self.backbone.widths)
        groups = groups_of(task, num_classes, points)
        self.one_to_one = Branch(self.neck.widths, groups)
        self.one_to_many = Branch(self.neck.widths, groups)
        self.masks = MaskHead(self.neck.widths, num_classes) if task == "segment" else None

    @seam("step.network")
    def forward(self, images: Tensor) -> Predictions:
        """Return what both branches see in ``images``, ``(B, 3, H, W)`` in ``[0, 1]``, H and W multiples of 32."""
        return self.heads(self.features(images))

    @seam("step.network.features")
    def features(self, images: Tensor) -> Features:
        """Return the neck's features at strides 8, 16 and 32."""
        features: Features = self.neck(self.backbone(images))
        return features

    @seam("step.network.heads")
    def heads(self, features: Features) -> Predictions:
        """Return the raw output of both branches, and what they share."""
        many, one = self.one_to_many(features), self.one_to_one(features)
        shared = (None, None) if self.masks is None else self.masks(features)
        return Predictions(many, one, anchors_of(features), *shared)

    def deployed(self, images: Tensor) -> tuple[BranchOutput, Anchors, Tensor | None]:
        """Return what remains after training: the one-to-one branch, its grid, and prototypes where there are any."""
        features = self.features(images)
        prototypes = None if self.masks is None else self.masks(features)[0]
        return self.one_to_one(features), anchors_of(features), prototypes


def anchors_of(features: Features) -> Anchors:
    """Return the anchors of the canvas that ``features`` were made from."""
    height, width = features[0].shape[2:]
    return make_anchors(height * STRIDES[0], width * STRIDES[0], features[0].device)

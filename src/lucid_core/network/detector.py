"""The network: backbone, neck and dual head."""

from __future__ import annotations

from torch import Tensor, nn

from lucid_core.network.anchors import STRIDES, make_anchors
from lucid_core.network.backbone import Backbone, Features
from lucid_core.network.head import Branch, detection_groups
from lucid_core.network.neck import Neck
from lucid_core.network.variants import VARIANTS, Variant
from lucid_core.seams import seam
from lucid_core.types import Anchors, BranchOutput, Predictions

__all__ = ["Network"]


class Network(nn.Module):
    """A detector without its training: images in, raw predictions out.

    Args:
        variant: Size of the network.
        num_classes: Classes, at least 1.

    Raises:
        ValueError: ``num_classes`` is not positive.
    """

    def __init__(self, variant: Variant, num_classes: int) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"a detector needs at least one class, got num_classes={num_classes}")
        scale = VARIANTS[variant]
        self.backbone = Backbone(scale)
        self.neck = Neck(scale, self.backbone.widths)
        groups = detection_groups(num_classes)
        self.one_to_one = Branch(self.neck.widths, groups)
        self.one_to_many = Branch(self.neck.widths, groups)

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
        """Return the raw output of both branches."""
        return Predictions(self.one_to_many(features), self.one_to_one(features), anchors_of(features))

    def deployed(self, images: Tensor) -> tuple[BranchOutput, Anchors]:
        """Return what the one-to-one branch alone sees: the computation that remains after training."""
        features = self.features(images)
        return self.one_to_one(features), anchors_of(features)


def anchors_of(features: Features) -> Anchors:
    """Return the anchors of the canvas that ``features`` were made from."""
    height, width = features[0].shape[2:]
    return make_anchors(height * STRIDES[0], width * STRIDES[0], features[0].device)

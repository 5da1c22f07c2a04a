"""The backbone: an image becomes three feature maps."""

from __future__ import annotations

from torch import Tensor, nn

from lucid_core.network.blocks import C2PSA, SPPF, C3k2, ConvNormAct, bottleneck, c3k
from lucid_core.network.variants import Scale

__all__ = ["Backbone"]

Features = tuple[Tensor, Tensor, Tensor]


class Backbone(nn.Module):
    """Map images ``(B, 3, H, W)`` to features at strides 8, 16 and 32 (P3, P4, P5).

    Args:
        scale: Compound scaling of the variant.

    Attributes:
        widths: Channels of the three features.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        c64, c128, c256, c512, c1024 = (scale.channels(base) for base in (64, 128, 256, 512, 1024))
        n = scale.repeats
        self.p3 = nn.Sequential(
            ConvNormAct(3, c64, 3, 2),
            ConvNormAct(c64, c128, 3, 2),
            C3k2(c128, c256, n, bottleneck, 0.25),
            ConvNormAct(c256, c256, 3, 2),
            C3k2(c256, c512, n, bottleneck, 0.25),
        )
        self.p4 = nn.Sequential(ConvNormAct(c512, c512, 3, 2), C3k2(c512, c512, n, c3k))
        self.p5 = nn.Sequential(
            ConvNormAct(c512, c1024, 3, 2),
            C3k2(c1024, c1024, n, c3k),
            SPPF(c1024),
            C2PSA(c1024, n),
        )
        self.widths = (c512, c512, c1024)

    def forward(self, images: Tensor) -> Features:
        p3 = self.p3(images)
        p4 = self.p4(p3)
        return p3, p4, self.p5(p4)

"""The neck: a path aggregation network that mixes the three levels, down and up again (PANet, arXiv 1803.01534)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lucid_core.network.backbone import Features
from lucid_core.network.blocks import C3k2, ConvNormAct, attention_inner, bottleneck, c3k
from lucid_core.network.variants import Scale

__all__ = ["Neck"]


class Neck(nn.Module):
    """Map backbone features to features of the same strides 8, 16 and 32.

    Args:
        scale: Compound scaling of the variant.
        widths: Channels of the backbone's features.

    Attributes:
        widths: Channels of the three outputs.
    """

    def __init__(self, scale: Scale, widths: tuple[int, int, int]) -> None:
        super().__init__()
        p3, p4, p5 = widths
        c256, c512, c1024 = (scale.channels(base) for base in (256, 512, 1024))
        n = scale.repeats
        self.top4 = C3k2(p5 + p4, c512, n, c3k)
        self.out3 = C3k2(c512 + p3, c256, n, bottleneck)
        self.down3 = ConvNormAct(c256, c256, 3, 2)
        self.out4 = C3k2(c256 + c512, c512, n, bottleneck)
        self.down4 = ConvNormAct(c512, c512, 3, 2)
        self.out5 = C3k2(c512 + p5, c1024, 1, attention_inner)
        self.widths = (c256, c512, c1024)

    def forward(self, features: Features) -> Features:
        p3, p4, p5 = features
        top4 = self.top4(torch.cat((double(p5), p4), 1))
        n3 = self.out3(torch.cat((double(top4), p3), 1))
        n4 = self.out4(torch.cat((self.down3(n3), top4), 1))
        n5 = self.out5(torch.cat((self.down4(n4), p5), 1))
        return n3, n4, n5


def double(x: Tensor) -> Tensor:
    """Repeat every cell twice in both directions."""
    # Autocast would widen the result to float32, and with it the concatenation it goes into.
    with torch.autocast(x.device.type, enabled=False):
        return functional.interpolate(x, scale_factor=2.0, mode="nearest")

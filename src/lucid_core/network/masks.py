"""What the masks of all objects are made from: prototypes over the whole image (YOLACT, arXiv 1904.02689)."""

from __future__ import annotations

from torch import Tensor, nn

from lucid_core.network.backbone import Features
from lucid_core.network.blocks import ConvNormAct
from lucid_core.network.head import PRIOR_LOGIT, PROTOTYPES
from lucid_core.network.neck import double

__all__ = ["MaskHead"]


class MaskHead(nn.Module):
    """Prototypes from all three levels at once, and the classes of each cell, which only training reads.

    Args:
        widths: Channels of the three features.
        num_classes: Classes.
    """

    def __init__(self, widths: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        width = widths[0]
        self.project4 = nn.Conv2d(widths[1], width, 1)
        self.project5 = nn.Conv2d(widths[2], width, 1)
        self.coarse = nn.Sequential(*(ConvNormAct(width, width, 3) for _ in range(3)))
        self.fine = ConvNormAct(width, width, 3)
        self.prototypes = nn.Conv2d(width, PROTOTYPES, 1)
        self.semantic = nn.Conv2d(width, num_classes, 1)
        if self.semantic.bias is not None:
            nn.init.constant_(self.semantic.bias, PRIOR_LOGIT)

    def forward(self, features: Features) -> tuple[Tensor, Tensor | None]:
        """Return prototypes ``(B, 32, H/4, W/4)`` and, in training mode, class logits ``(B, C, H/8, W/8)``.

        That follows the mode and not whether gradients are recorded, so that what a network returns depends on what it
        is set to, and not on who calls it.
        """
        n3, n4, n5 = features
        fused = n3 + double(self.project4(n4)) + double(double(self.project5(n5)))
        prototypes = self.prototypes(self.fine(double(self.coarse(fused))))
        return prototypes, self.semantic(fused) if self.training else None

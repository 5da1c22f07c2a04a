"""A density of residuals that is learnt while key points are (RLE, arXiv 2107.11291)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

__all__ = ["Flow"]

LAYERS = 6
HIDDEN = 64


class _Coupling(nn.Module):
    """Scale and shift of one coordinate, from the other one."""

    def __init__(self) -> None:
        super().__init__()
        last = nn.Linear(HIDDEN, 2)
        # Nothing is transformed before anything is learnt (Glow, arXiv 1807.03039, section 3.3).
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.layers = nn.Sequential(
            nn.Linear(1, HIDDEN), nn.LeakyReLU(), nn.Linear(HIDDEN, HIDDEN), nn.LeakyReLU(), last
        )
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithm of the scale, within the gain, and the shift, ``(..., 1)`` each, from ``(..., 1)``."""
        scale, shift = torch.split(self.layers(x), 1, -1)
        # Without a bound a scale overflows within a few steps.
        return self.gain * scale.tanh(), shift


class Flow(nn.Module):
    """A density over the plane: affine couplings over a standard normal one (RealNVP, arXiv 1605.08803).

    It begins as the standard normal density.
    """

    def __init__(self) -> None:
        super().__init__()
        self.couplings = nn.ModuleList(_Coupling() for _ in range(LAYERS))

    def forward(self, points: Tensor) -> Tensor:
        """Return the logarithm of the density at ``points`` ``(..., 2)`` as ``(...)``."""
        pair = list(torch.split(points, 1, -1))
        stretch = torch.zeros_like(pair[0])
        for number, coupling in enumerate(self.couplings):
            moved = number % 2
            scale, shift = coupling(pair[1 - moved])
            pair[moved] = (pair[moved] - shift) * torch.exp(-scale)
            stretch = stretch - scale
        normal: Tensor = -(pair[0].square() + pair[1].square()) / 2 - math.log(2 * math.pi)
        return (normal + stretch).squeeze(-1)

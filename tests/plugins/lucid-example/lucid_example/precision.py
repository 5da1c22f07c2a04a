"""A rule of clipping that the user chooses by name."""

from __future__ import annotations

import torch
from lightning.pytorch.plugins import Precision
from torch.optim import Optimizer

__all__ = ["PerTensorClip"]


class PerTensorClip(Precision):
    """Trains in 32 bits, and clips the gradient of each parameter by a norm of its own.

    ``gradient_clip_val`` of the Trainer is the largest norm.
    """

    @torch.no_grad()
    def clip_grad_by_norm(self, optimizer: Optimizer, clip_val: int | float) -> None:
        """Scale down each gradient that is longer than ``clip_val``, without waiting for the device."""
        for parameter in self.main_params(optimizer):
            if parameter.grad is not None:
                norm = torch.linalg.vector_norm(parameter.grad)
                parameter.grad.mul_((clip_val / norm).clamp(max=1.0))

"""An optimizer that does something to the gradients and leaves the rest to torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD
from torch.optim.optimizer import ParamsT

__all__ = ["CentredSGD"]


class CentredSGD(SGD):
    """SGD on centred gradients: the mean over the inputs of each output is taken off.

    Args:
        params: Parameters or groups.
        lr: Learning rate.
        momentum: Momentum.
        weight_decay: Decay.
    """

    def __init__(self, params: ParamsT, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step.

        Args:
            closure: Computes the loss and the gradients. Lightning always gives one.

        Returns:
            What the closure returns.
        """
        loss = None
        if closure is not None:
            # Not left to SGD: the gradients must be there before they are centred.
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.dim() > 1:
                    inputs = tuple(range(1, parameter.dim()))
                    parameter.grad.sub_(parameter.grad.mean(dim=inputs, keepdim=True))
        super().step()
        return loss

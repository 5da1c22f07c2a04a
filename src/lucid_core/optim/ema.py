"""An exponentially averaged copy of the network, used for validation and prediction."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from lucid_core.seams import seam

__all__ = ["AveragedNetwork", "check_average", "ema_decay"]


def ema_decay(updates: int, decay: float, tau: float) -> float:
    """Return the decay of update number ``updates`` (from 1): ``decay * (1 - exp(-updates / tau))``."""
    return decay * (1.0 - math.exp(-updates / tau))


def check_average(decay: float, tau: float) -> None:
    """Make sure that an average can be made with these settings.

    Raises:
        ValueError: ``decay`` is outside ``[0, 1)``, or ``tau`` is not above 0.
    """
    if not 0 <= decay < 1:
        raise ValueError(f"the decay of an average (ema_decay) must lie in [0, 1), got {decay}")
    if not tau > 0:
        raise ValueError(f"the time constant of an average (ema_tau) must be above 0, got {tau}")


class AveragedNetwork:
    """A second network in evaluation mode whose floating tensors follow those of the first.

    Parameters and float buffers (batch statistics) follow; before the first update the copy equals the network.

    Args:
        network: The network that trains, on its final device.
        decay: Limit of the decay, in ``[0, 1)``.
        tau: Updates over which the decay grows towards its limit, above 0.

    Attributes:
        network: The averaged copy.
        updates: How often it was updated.
        live: The tensors that are followed.
        averaged: Those of the copy, in the same order.

    Raises:
        ValueError: ``decay`` or ``tau`` is out of its range.
    """

    def __init__(self, network: nn.Module, decay: float = 0.9999, tau: float = 2000.0) -> None:
        check_average(decay, tau)
        self.decay = decay
        self.tau = tau
        self.updates = 0
        # A copy made while validating, under inference mode, could never be updated by a later fit.
        with torch.inference_mode(False):
            self.network = copy.deepcopy(network).eval().requires_grad_(False)
            self.live = list(_floats(network).values())
            self.averaged = list(_floats(self.network).values())
            self._step = torch.zeros((), device=self.averaged[0].device)

    def write_scalars(self) -> None:
        """Count one update, and write its step towards the live tensors to the device. Host work."""
        self.updates += 1
        self._step.fill_(1.0 - ema_decay(self.updates, self.decay, self.tau))

    @torch.no_grad()
    @seam("ema")
    def update(self) -> None:
        """Move the copy towards the network. Device work only."""
        moves = torch._foreach_sub(self.live, self.averaged)
        torch._foreach_mul_(moves, self._step)
        torch._foreach_add_(self.averaged, moves)

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Bring the copy to where its network went: a fit leaves its module on the CPU, the next run moves it back."""
        if self.averaged[0].device != device or self.averaged[0].dtype != dtype:
            with torch.inference_mode(False):
                self.network.to(device, dtype)
                self.averaged = list(_floats(self.network).values())
                self._step = self._step.to(device)

    def synchronize(self) -> None:
        """Take the averages of process 0, whose batch statistics are the ones that a checkpoint holds."""
        for tensor in self.averaged:
            torch.distributed.broadcast(tensor.data, 0)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of updates and the averaged tensors by name."""
        tensors = {name: tensor.detach() for name, tensor in _floats(self.network).items()}
        return {"updates": self.updates, "tensors": tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave; tensors keep the device and memory format they have here.

        Raises:
            ValueError: The names differ from those of this network.
        """
        own = _floats(self.network)
        if own.keys() != state["tensors"].keys():
            odd = sorted(own.keys() ^ state["tensors"].keys())
            raise ValueError(
                f"the averaged weights of the checkpoint belong to another network: {len(odd)} names differ, {odd[0]}"
            )
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state["tensors"][name])
        self.updates = state["updates"]


def _floats(network: nn.Module) -> dict[str, Tensor]:
    tensors = network.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}

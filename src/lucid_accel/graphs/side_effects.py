"""What a native call does beside its results, which a recording would leave out or freeze."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from lucid_accel.graphs.call import Call
from lucid_accel.graphs.certificate import Certificate
from lucid_accel.reasons import Reason

__all__ = ["SideEffects"]


class SideEffects:
    """The state before a call, to be compared with the state after it.

    Args:
        device: Where the region computes.
        certificate: Of the region's module.
        call: The call.
    """

    def __init__(self, device: torch.device, certificate: Certificate, call: Call) -> None:
        self._device, self._certificate, self._call = device, certificate, call
        self._host, self._written, self._inputs = _host_random_state(device), certificate.versions(), call.versions()

    def found(self) -> tuple[Reason, str] | None:
        """Say what the call did that no replay would do, if anything."""
        if not self._call.form.same_as(self._call.args, self._call.kwargs):
            return Reason.CAPTURE_FAILED, "it adds to its arguments, or takes from them, which a replay would not do"
        if _host_random_state(self._device) != self._host:
            return Reason.SCALARS, "it draws random numbers on the host, which a recording would freeze"
        if (change := self._certificate.whole_change()) is not None:
            return Reason.SCALARS, f"{change[1]} while it ran, which a recording would freeze"
        if self._call.versions() != self._inputs:
            return Reason.CAPTURE_FAILED, "it writes to its inputs, and a replay would write to copies of them"
        if self._certificate.versions() != self._written:
            return Reason.STORAGE, "it writes to a parameter, or to a tensor that is no buffer of it, while it runs"
        return None


def _host_random_state(device: torch.device) -> Any:
    """Return something that changes whenever a number is drawn on the host.

    Args:
        device: Where recorded work runs; torch's CPU generator is left out where that is the CPU.
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    assert not isinstance(keys, str)
    own = b"" if device.type == "cpu" else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), name, keys.tobytes(), rest, own

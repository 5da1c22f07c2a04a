"""The random generators of the host."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

__all__ = ["host_random_state"]


def host_random_state(device: torch.device) -> Any:
    """Return something that changes whenever a number is drawn on the host.

    Args:
        device: Where recorded work runs; torch's CPU generator is left out where that is the CPU.
    """
    name, keys, *rest = np.random.get_state(legacy=True)
    assert not isinstance(keys, str)
    own = b"" if device.type == "cpu" else torch.get_rng_state().numpy().tobytes()
    return random.getstate(), name, keys.tobytes(), rest, own

"""Equality in bits."""

from __future__ import annotations

import torch
from torch import Tensor

from lucid_accel.graphs.layout import Layout

__all__ = ["same_bits"]

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors have one layout and equal bits, so that -0.0 differs from 0.0 and NaN equals itself.

    Waits for the device.
    """
    if a is None or b is None:
        return a is b
    if Layout.of(a) != Layout.of(b):
        return False
    a, b = (
        torch.view_as_real(x) if x.is_complex() else x for x in (a.detach().resolve_conj(), b.detach().resolve_conj())
    )
    if a.is_floating_point():
        a, b = (x.view(_INTEGERS[x.element_size()]) for x in (a, b))
    return torch.equal(a, b)

"""The grid that predictions refer to, and the boxes they mean on it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lucid_core.types import Anchors

__all__ = ["STRIDES", "decode", "make_anchors"]

#: Pixels of the canvas per cell of the three levels.
STRIDES = (8, 16, 32)


@lru_cache(maxsize=16)
def make_anchors(height: int, width: int, device: torch.device) -> Anchors:
    """Return the anchors of a canvas, the same tensors at every call.

    A canvas size has to be seen once outside a recording: tensors made inside one hold nothing before it is replayed.

    Args:
        height: Pixels, a multiple of 32.
        width: Pixels, a multiple of 32.
        device: Where the tensors live.

    Returns:
        ``centres (A, 2)`` at ``((j + 0.5) * s, (i + 0.5) * s)`` for column ``j`` and row ``i``, ``strides (A, 1)``.
    """
    # The first call may come from a validation under inference mode; training must be able to save these tensors.
    with torch.inference_mode(False), torch.no_grad():
        centres, strides = [], []
        for stride in STRIDES:
            rows = (torch.arange(height // stride, device=device, dtype=torch.float32) + 0.5) * stride
            columns = (torch.arange(width // stride, device=device, dtype=torch.float32) + 0.5) * stride
            y, x = torch.meshgrid(rows, columns, indexing="ij")
            centres.append(torch.stack((x, y), -1).flatten(0, 1))
            strides.append(torch.full((x.numel(), 1), float(stride), device=device))
        return Anchors(torch.cat(centres), torch.cat(strides))


def decode(distances: Tensor, anchors: Anchors) -> Tensor:
    """Turn distances from the anchor centres into boxes.

    Args:
        distances: ``(B, A, 4)`` left, top, right, bottom in strides, unbounded, any float dtype.
        anchors: The grid of the canvas.

    Returns:
        ``(B, A, 4)`` float32 ``x1, y1, x2, y2`` in pixels. Nothing is clamped: an untrained head gives inverted boxes.
    """
    reach = distances.float() * anchors.strides
    return torch.cat((anchors.centres - reach[..., :2], anchors.centres + reach[..., 2:]), -1)

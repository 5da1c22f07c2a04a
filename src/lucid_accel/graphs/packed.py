"""Many tensors in one piece of memory, so that handing out copies of all costs one copy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lucid_accel.graphs.layout import Layout

__all__ = ["Packed"]

#: As the caching allocator aligns: a kernel may pick another order of summation for another alignment.
_ALIGNMENT = 512


class Packed:
    """Room for copies of ``tensors``, with their strides, and owned copies of what the room holds.

    Args:
        tensors: What to make room for. Their values are not read.

    Raises:
        ValueError: A tensor does not fill its memory without overlap, so that a copy would have other strides.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._plan: list[tuple[torch.dtype, torch.Size, tuple[int, ...], int]] = []
        sizes: dict[torch.dtype, int] = {}
        for tensor in tensors:
            if not Layout.of(tensor).is_dense():
                raise ValueError(f"a result of shape {tuple(tensor.shape)} has strides {tensor.stride()}, with gaps")
            start = sizes.get(tensor.dtype, 0)
            self._plan.append((tensor.dtype, tensor.shape, tensor.stride(), start))
            step = _ALIGNMENT // tensor.element_size()
            sizes[tensor.dtype] = start + -(-tensor.numel() // step) * step
        device = tensors[0].device if tensors else None
        self._room = {dtype: torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self._slots = self._views(self._room)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy ``tensors`` in: device work, to be recorded."""
        if tensors:
            torch._foreach_copy_(self._slots, list(tensors))

    def owned(self) -> list[Tensor]:
        """Return copies that the next :meth:`fill` does not touch, with the strides of the originals."""
        return self._views({dtype: room.clone() for dtype, room in self._room.items()})

    def _views(self, room: dict[torch.dtype, Tensor]) -> list[Tensor]:
        return [torch.as_strided(room[dtype], shape, stride, start) for dtype, shape, stride, start in self._plan]

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
        ValueError: A tensor overlaps itself, so that a copy would have other strides.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._plan: list[tuple[Layout, int]] = []
        sizes: dict[torch.dtype, int] = {}
        for tensor in tensors:
            layout = Layout.of(tensor)
            if layout.overlaps():
                raise ValueError(f"a result of shape {layout.shape} overlaps itself, with strides {layout.stride}")
            start = sizes.get(tensor.dtype, 0)
            self._plan.append((layout, start))
            step = _ALIGNMENT // tensor.element_size()
            sizes[tensor.dtype] = start + -(-layout.extent // step) * step
        device = tensors[0].device if tensors else None
        self._room = {dtype: torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self._slots = self._views(self._room)

    def fill(self, tensors: Sequence[Tensor]) -> None:
        """Copy ``tensors`` in: device work, to be recorded."""
        self._copy(self._slots, [layout.reduced(x) for (layout, _), x in zip(self._plan, tensors, strict=True)])

    def restore(self, tensors: Sequence[Tensor]) -> None:
        """Copy what the room holds back into ``tensors``."""
        self._copy([layout.reduced(x) for (layout, _), x in zip(self._plan, tensors, strict=True)], self._slots)

    def owned(self) -> list[Tensor]:
        """Return copies that the next :meth:`fill` does not touch, with the strides of the originals."""
        owned = self._views({dtype: room.clone() for dtype, room in self._room.items()})
        pairs = zip(owned, self._plan, strict=True)
        return [x if x.shape == layout.shape else x.expand(layout.shape) for x, (layout, _) in pairs]

    def _copy(self, into: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        # One tensor of another type, or with gaps, would make all the others be copied one by one.
        alike: dict[tuple[torch.dtype, bool], tuple[list[Tensor], list[Tensor]]] = {}
        for (layout, _), target, source in zip(self._plan, into, kept, strict=True):
            targets, sources = alike.setdefault((layout.dtype, layout.extent == target.numel()), ([], []))
            targets.append(target)
            sources.append(source)
        for targets, sources in alike.values():
            torch._foreach_copy_(targets, sources)

    def _views(self, room: dict[torch.dtype, Tensor]) -> list[Tensor]:
        return [torch.as_strided(room[x.dtype], x.kept, x.stride, start) for x, start in self._plan]

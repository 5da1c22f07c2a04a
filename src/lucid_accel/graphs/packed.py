"""Many tensors in one piece of memory, so that handing out copies of all costs one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
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
        self._cuts: list[tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]] = []
        sizes: dict[torch.dtype, int] = {}
        for tensor in tensors:
            layout = Layout.of(tensor)
            if layout.overlaps():
                raise ValueError(f"a result of shape {layout.shape} overlaps itself, with strides {layout.stride}")
            start = sizes.get(tensor.dtype, 0)
            self._plan.append((layout, start))
            self._cuts.append((layout.dtype, layout.kept, layout.stride, start))
            step = _ALIGNMENT // tensor.element_size()
            sizes[tensor.dtype] = start + -(-layout.extent // step) * step
        device = tensors[0].device if tensors else None
        self._room = {dtype: torch.empty(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self._slots = self._views(self._room)
        self._offsets = np.array([start for _, start in self._plan]) * (tensors[0].element_size() if tensors else 0)
        self._placed = [(dtype, (start, shape, stride)) for dtype, shape, stride, start in self._cuts]
        self._repeats = [index for index, (layout, _) in enumerate(self._plan) if layout.kept != layout.shape]
        # One tensor of another type, or with gaps, would make all the others be copied one by one.
        alike: dict[tuple[torch.dtype, bool], list[int]] = {}
        for index, (layout, _) in enumerate(self._plan):
            alike.setdefault((layout.dtype, layout.extent == self._slots[index].numel()), []).append(index)
        self._alike = list(alike.values())

    @property
    def slots(self) -> list[Tensor]:
        """The room itself, tensor by tensor, where nothing repeats itself."""
        return self._slots

    def fill(self, tensors: Sequence[Tensor], addresses: NDArray[np.int64] | None = None) -> None:
        """Copy ``tensors`` in: device work, to be recorded.

        Args:
            tensors: Of the layouts that there is room for.
            addresses: Where they lie, if known: what lies as it does in another room is copied as one piece.
        """
        if addresses is not None and (piece := self._piece(tensors, addresses)) is not None:
            self._room[piece.dtype][: len(piece)].copy_(piece)
        else:
            self._copy(self._slots, self._reduced(tensors))

    def restore(self, tensors: Sequence[Tensor]) -> None:
        """Copy what the room holds back into ``tensors``."""
        self._copy(self._reduced(tensors), self._slots)

    def copy_(self, other: Packed) -> None:
        """Take over all that another room of the same plan holds, at once."""
        for dtype, room in self._room.items():
            room.copy_(other._room[dtype])

    def add_(self, other: Packed) -> None:
        """Add all that another room of the same plan holds, at once."""
        for dtype, room in self._room.items():
            room.add_(other._room[dtype])

    def owned(self) -> list[Tensor]:
        """Return copies that the next :meth:`fill` does not touch, with the strides of the originals.

        They are views of one tensor.
        """
        return self._repeated(self._views(self._cloned()))

    def apart(self) -> list[Tensor]:
        """Return copies as :meth:`owned` does, each a tensor of its own, so that any one may be written to."""
        return self._repeated(self._tensors(self._cloned()))

    def within(self) -> list[Tensor]:
        """Return the room itself, as :meth:`slots` does, each a tensor of its own."""
        return self._tensors(self._room)

    def _copy(self, into: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
        if len(self._alike) == 1:
            torch._foreach_copy_(list(into), list(kept))
            return
        for places in self._alike:
            torch._foreach_copy_([into[i] for i in places], [kept[i] for i in places])

    def _piece(self, tensors: Sequence[Tensor], addresses: NDArray[np.int64]) -> Tensor | None:
        """Return the memory that all ``tensors`` lie in just as they would here, ``None`` where they do not."""
        if len(self._room) != 1 or not np.array_equal(addresses - addresses[0], self._offsets):
            return None
        first, memory = tensors[0], tensors[0].untyped_storage()
        layout, start = self._plan[-1]
        length = start + layout.extent
        # Neighbours by chance have other owners, and each may give its memory back.
        if first.data_ptr() + length * first.element_size() > memory.data_ptr() + memory.nbytes():
            return None
        return first.new_empty(0).set_(memory, first.storage_offset(), (length,), (1,))

    def _reduced(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if not self._repeats:
            return tensors
        whole = list(tensors)
        for index in self._repeats:
            whole[index] = self._plan[index][0].reduced(whole[index])
        return whole

    def _cloned(self) -> dict[torch.dtype, Tensor]:
        return {dtype: room.clone() for dtype, room in self._room.items()}

    def _tensors(self, rooms: dict[torch.dtype, Tensor]) -> list[Tensor]:
        storages = {dtype: room.untyped_storage() for dtype, room in rooms.items()}
        return [rooms[dtype].new_empty(0).set_(storages[dtype], *cut) for dtype, cut in self._placed]

    def _views(self, room: dict[torch.dtype, Tensor]) -> list[Tensor]:
        return [torch.as_strided(room[dtype], shape, stride, start) for dtype, shape, stride, start in self._cuts]

    def _repeated(self, tensors: list[Tensor]) -> list[Tensor]:
        for index in self._repeats:
            tensors[index] = tensors[index].expand(self._plan[index][0].shape)
        return tensors

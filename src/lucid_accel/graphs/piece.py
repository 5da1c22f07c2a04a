"""One piece of memory that many tensors lie in, so that copying all of them is one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lucid_accel.graphs.layout import Layout

__all__ = ["Piece"]


class Piece:
    """How tensors of one dtype lie, none of them on another, in one piece of memory.

    Args:
        offsets: For each one how many bytes it begins after the first one in memory.
        itemsize: Bytes of an element.
        length: Elements from the first to the last one.
    """

    def __init__(self, offsets: NDArray[np.int64], itemsize: int, length: int) -> None:
        self._offsets, self._itemsize, self._length = offsets, itemsize, length

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> Piece | None:
        """Return how ``tensors`` lie, ``None`` where not so, or where half of the piece would be none of them."""
        kinds = {(x.dtype, x.untyped_storage().data_ptr()) for x in tensors}
        if len(kinds) != 1 or not all(x.numel() for x in tensors):
            return None
        itemsize = tensors[0].element_size()
        starts = np.array([x.storage_offset() for x in tensors])
        extents = np.array([Layout.of(x).extent for x in tensors])
        order = starts.argsort()
        apart = (starts[order][1:] >= (starts + extents)[order][:-1]).all()
        length = int((starts + extents).max() - starts.min())
        if not apart or length > 2 * extents.sum():
            return None
        return cls((starts - starts.min()) * itemsize, itemsize, length)

    def start(self, index: int) -> int:
        """Return where a tensor begins, in elements."""
        return int(self._offsets[index]) // self._itemsize

    def find(self, one: Tensor, addresses: NDArray[np.int64]) -> Tensor | None:
        """Return the piece that tensors lie in just so, ``None`` if they do not.

        Args:
            one: Any of them; they are alike in all but their place.
            addresses: Of all of them.
        """
        memory, first = one.untyped_storage(), int(addresses.min())
        start, length = first - memory.data_ptr(), self._length * self._itemsize
        # Neighbours by chance, in memory of other owners, may be given back one by one.
        if start < 0 or start + length > memory.nbytes() or not np.array_equal(addresses - first, self._offsets):
            return None
        return one.new_empty(0).set_(memory, start // self._itemsize, (self._length,), (1,))

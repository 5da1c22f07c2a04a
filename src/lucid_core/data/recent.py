"""The images a worker looked at last, so that the sixteen samples of a group decode each file once."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.plan import GROUP

__all__ = ["RecentSources", "Source"]


class Source(Protocol):
    """Whatever gives the image of a record at evaluation scale: ``(h, w, 3)`` uint8, read-only."""

    def source(self, index: int) -> NDArray[np.uint8]:
        """Return the image of record ``index``."""
        ...


class RecentSources:
    """Keeps the most recent images of a source.

    It holds no more than one group, a few tens of megabytes, and every worker has its own.

    Args:
        inner: Where images come from.
        limit: Images to keep.
        max_bytes: Bytes to keep at most.
    """

    def __init__(self, inner: Source, limit: int = GROUP, max_bytes: int = 128 * 2**20) -> None:
        self.inner = inner
        self.limit = limit
        self.max_bytes = max_bytes
        self._kept: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self._bytes = 0

    def source(self, index: int) -> NDArray[np.uint8]:
        """Return the image of record ``index``, read anew only if it is not among the last."""
        pixels = self._kept.get(index)
        if pixels is not None:
            self._kept.move_to_end(index)
            return pixels
        pixels = self.inner.source(index)
        self._kept[index] = pixels
        self._bytes += pixels.nbytes
        while len(self._kept) > self.limit or self._bytes > self.max_bytes:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.nbytes
        return pixels

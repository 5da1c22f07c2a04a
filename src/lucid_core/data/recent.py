"""The images a worker read last, so that the sixteen samples of a group decode each file once."""

from __future__ import annotations

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
    """Keeps the images that were read last.

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
        self._kept: dict[int, NDArray[np.uint8]] = {}
        self._bytes = 0

    def source(self, index: int) -> NDArray[np.uint8]:
        """Return the image of record ``index``, read anew only if it is not among the last."""
        kept = self._kept.get(index)
        if kept is not None:
            return kept
        pixels = self._kept[index] = self.inner.source(index)
        self._bytes += pixels.nbytes
        while len(self._kept) > self.limit or self._bytes > self.max_bytes:
            self._bytes -= self._kept.pop(next(iter(self._kept))).nbytes
        return pixels

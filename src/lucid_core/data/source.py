"""The picture at training scale: all that augmentation ever reads of a file."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from lucid_core.data.images import ImageReader
from lucid_core.data.types import DataError, Record
from lucid_core.seams import seam

__all__ = ["SourceReader", "scaled", "scaled_size"]


def scaled_size(width: int, height: int, size: int) -> tuple[int, int]:
    """Scale a picture so that its long side becomes ``size``; no side falls below one pixel.

    Args:
        width: Pixels.
        height: Pixels.
        size: The long side to reach, in pixels.

    Returns:
        ``(width, height)``; labels scale by the unrounded ratio ``size / max(width, height)``.
    """
    ratio = size / max(width, height)
    return max(1, round(width * ratio)), max(1, round(height * ratio))


def scaled(pixels: NDArray[np.uint8], width: int, height: int, size: int) -> NDArray[np.uint8]:
    """Bring the long side of a decoded picture to ``size``: shrink by area averaging, grow bilinearly.

    Args:
        pixels: ``(H, W, 3)`` uint8, of the picture's size or decoded at a part of it.
        width: Of the picture, pixels.
        height: Of the picture, pixels.
        size: The long side to reach, in pixels.
    """
    target = scaled_size(width, height, size)
    if target == pixels.shape[1::-1]:
        return pixels
    interpolation = cv2.INTER_LINEAR if size > max(width, height) else cv2.INTER_AREA
    result: NDArray[np.uint8] = np.asarray(cv2.resize(pixels, target, interpolation=interpolation), dtype=np.uint8)
    return result


class SourceReader:
    """Gives each picture of a split at one scale.

    The result depends on the file and the size alone, so that it may be kept and handed out any number of times
    without changing a byte of what follows.

    Args:
        records: The split.
        size: Long side of the result in pixels.
        reader: Decodes the files; one of its own when left out.
    """

    def __init__(self, records: Sequence[Record], size: int, reader: ImageReader | None = None) -> None:
        self.records = records
        self.size = size
        self.reader = ImageReader() if reader is None else reader

    def __len__(self) -> int:
        return len(self.records)

    @seam("data.source")
    def source(self, index: int) -> NDArray[np.uint8]:
        """Read one picture and bring its long side to ``size``.

        Args:
            index: Row of ``records``.

        Returns:
            ``(H, W, 3)`` uint8 RGB, upright, read-only, of the size that :func:`scaled_size` gives.

        Raises:
            DataError: The file cannot be decoded, or is not of the size that its labels were made for.
        """
        record = self.records[index]
        pixels = self.reader.decode(record.image, self.size)
        height, width = pixels.shape[:2]
        if (width, height) != (record.width, record.height):
            self._check_size(record)
        pixels = scaled(pixels, record.width, record.height, self.size)
        pixels.setflags(write=False)
        return pixels

    def _check_size(self, record: Record) -> None:
        """Tell a picture decoded at reduced scale from one that is not what its labels say."""
        width, height = self.reader.probe(record.image)
        if (width, height) != (record.width, record.height):
            raise DataError(
                f"{record.image}: is {width} x {height} pixels upright, but its labels are for {record.width} x "
                f"{record.height}; correct the size and the boxes in the annotations, or restore the picture"
            )

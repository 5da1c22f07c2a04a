"""From a picture in a file or in memory to what the network sees, by the way that validation takes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lucid_core.data.images import ImageReader, upright_rgb
from lucid_core.data.letterbox import letterbox_sample
from lucid_core.data.records import make_truth
from lucid_core.data.source import SourceReader, scaled
from lucid_core.data.types import DataError, Instances, Record, Sample

__all__ = ["Input", "Picture", "pixels_of", "read_ahead"]

#: A file, a picture of Pillow's, or uint8 pixels: ``(H, W, 3)`` RGB, ``(H, W, 4)`` RGBA, ``(H, W)`` grey.
Picture: TypeAlias = str | os.PathLike[str] | Image.Image | NDArray[np.uint8]

_READER = ImageReader()
#: Two threads that load one and the same picture of Pillow's would read its file across each other.
_LOADING = Lock()
_NO_OBJECTS = Instances(np.empty((0, 4), np.float32), np.empty(0, np.int64), ())
_NO_TRUTH = make_truth([], [], [], [])


class Input(NamedTuple):
    """A picture made ready.

    Attributes:
        record: Its file and size; without labels.
        sample: Its canvas.
    """

    record: Record
    sample: Sample


class _Pixels(NamedTuple):
    """The source of one picture in memory."""

    pixels: NDArray[np.uint8]
    size: int

    def source(self, index: int) -> NDArray[np.uint8]:
        height, width = self.pixels.shape[:2]
        return scaled(self.pixels, width, height, self.size)


def pixels_of(picture: Picture, name: str) -> NDArray[np.uint8]:
    """Give the upright RGB pixels of a picture, ``(H, W, 3)`` uint8.

    Transparency is dropped and grey repeated, as :class:`lucid_core.data.images.ImageReader` does with files.

    Args:
        picture: The picture.
        name: What to call it in an error, if it is no file.

    Raises:
        DataError: It cannot be read, or is no picture.
    """
    if isinstance(picture, (str, os.PathLike)):
        return _READER.decode(Path(picture))
    if isinstance(picture, Image.Image):
        try:
            with _LOADING:
                return upright_rgb(picture)
        # Decoders of foreign bytes raise whatever they stumble on.
        except Exception as error:
            raise DataError(f"{name}: cannot be decoded ({error or type(error).__name__})") from error
    if not isinstance(picture, np.ndarray):
        raise DataError(
            f"{name}: is a {type(picture).__name__}; give a path, a picture of Pillow's or a uint8 array of RGB pixels"
        )
    pixels = picture[..., None] if picture.ndim == 2 else picture
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise DataError(f"{name}: is {picture.dtype} {picture.shape}; give uint8 RGB pixels of shape (H, W, 3)")
    return np.ascontiguousarray(np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels[..., :3])


def read_ahead(pictures: Sequence[Picture], size: int, threads: int, ahead: int) -> Iterator[Input | DataError]:
    """Make pictures ready, in their order, some ahead of the one that is asked for.

    Args:
        pictures: What to read.
        size: Side of the canvas, pixels.
        threads: That read at the same time.
        ahead: Pictures to hold at most.

    Yields:
        For each picture, itself or why it cannot be read.
    """
    with ThreadPoolExecutor(threads) as pool:
        tasks = (pool.submit(_read, picture, f"picture {index}", size) for index, picture in enumerate(pictures))
        pending: deque[Future[Input | DataError]] = deque(islice(tasks, max(1, ahead)))
        try:
            while pending:
                yield pending.popleft().result()
                pending.extend(islice(tasks, 1))
        finally:
            for task in pending:
                task.cancel()


def _read(picture: Picture, name: str, size: int) -> Input | DataError:
    # A fault is a value: raised, it would end the pictures that come after it.
    try:
        if isinstance(picture, (str, os.PathLike)):
            width, height = _READER.probe(path := Path(picture))
            records = [Record(path, str(path), width, height, _NO_OBJECTS, _NO_TRUTH)]
            return Input(records[0], letterbox_sample(SourceReader(records, size, _READER), records, 0, size))
        pixels = pixels_of(picture, name)
        records = [Record(Path(name), name, pixels.shape[1], pixels.shape[0], _NO_OBJECTS, _NO_TRUTH)]
        return Input(records[0], letterbox_sample(_Pixels(pixels, size), records, 0, size))
    except DataError as error:
        return error

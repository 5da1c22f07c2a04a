"""Looks at every picture of a split before the first one is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from lucid_core.data.images import ImageReader
from lucid_core.data.types import DataError, UnreadableNow

__all__ = ["PictureScan", "Progress", "Size", "show_progress"]

#: Width and height of the upright picture, pixels.
Size = tuple[int, int]
#: Hands on what it is given and shows how far it is, as ``tqdm(items, total=count)`` does.
Progress = Callable[[Iterable["Size | DataError"], int], Iterable["Size | DataError"]]

#: Pictures that are handed to the threads at a time: a future for each of millions would fill memory.
SLICE = 256


class PictureScan:
    """Reads the sizes of pictures and finds the files that cannot be decoded, in parallel.

    Every scan reads the files anew, so that nothing is taken for what it was before. Threads do for that: reading and
    check sums, where the time goes, do not hold each other up.

    Args:
        workers: Threads.
        decode: Decode every picture in full. Else that is done only with those whose structure does not tell; damage
            within the pixels then shows when training decodes them.
        progress: Shows how far it is.
    """

    def __init__(self, workers: int = 4, decode: bool = False, progress: Progress | None = None) -> None:
        self.workers = workers
        self.decode = decode
        self.progress = progress
        self._reader = ImageReader()

    def __call__(self, pictures: Sequence[Path]) -> dict[Path, Size | DataError]:
        """Look at pictures.

        Args:
            pictures: Files.

        Returns:
            The size of each, or why it cannot be used.

        Raises:
            UnreadableNow: A file could not be read for a reason that lies outside it.
        """
        files = list(dict.fromkeys(pictures))
        pool = ThreadPoolExecutor(self.workers)
        try:
            seen: Iterable[Size | DataError] = self._all(pool, files)
            if self.progress is not None:
                seen = self.progress(seen, len(files))
            return dict(zip(files, seen, strict=True))
        finally:
            # An interrupt does not wait for the rest.
            pool.shutdown(cancel_futures=True)

    def _all(self, pool: ThreadPoolExecutor, files: Sequence[Path]) -> Iterator[Size | DataError]:
        for start in range(0, len(files), SLICE):
            yield from pool.map(self._look, files[start : start + SLICE])

    def _look(self, file: Path) -> Size | DataError:
        try:
            return self._reader.inspect(file, self.decode)
        except UnreadableNow:
            raise
        except DataError as error:
            return error


def show_progress(seen: Iterable[Size | DataError], count: int) -> Iterable[Size | DataError]:
    """Show a bar on a terminal, once it has lasted for some seconds."""
    bar: Iterable[Size | DataError] = tqdm(
        seen, "looking at pictures", count, unit=" pictures", delay=2, leave=False, disable=None
    )
    return bar

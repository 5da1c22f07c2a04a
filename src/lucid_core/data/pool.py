"""Worker processes that turn lists of keys into batches."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import cv2
import torch
from torch.utils.data import DataLoader, Dataset

from lucid_core.data.collate import collate
from lucid_core.data.types import DETECT, DataError, Record, Sample, Wanted
from lucid_core.data.workers import PREFETCH
from lucid_core.types import Batch

__all__ = ["Pool"]

Key = TypeVar("Key")


class Pool(Generic[Key]):
    """Makes batches, in worker processes or in this one.

    Args:
        make: Makes one sample from its key.
        records: The split, to name files in errors.
        classes: Number of classes, to check labels.
        workers: Processes; 0 works in this one.
        persistent: Workers live on from one run to the next.
        pin_memory: Copy batches to page-locked memory, for the transfer to a GPU.
        wanted: Which labels a batch has.
    """

    def __init__(
        self,
        make: Callable[[Key], Sample],
        records: Sequence[Record],
        classes: int,
        workers: int,
        persistent: bool = True,
        pin_memory: bool = False,
        wanted: Wanted = DETECT,
    ) -> None:
        self._batches = _Batches(make, records, classes, wanted)
        self._options: dict[str, Any] = {"num_workers": workers, "pin_memory": pin_memory}
        if workers:
            self._options |= {"prefetch_factor": PREFETCH, "persistent_workers": persistent}
        self._keys: _Keys[Key] = _Keys()
        self._loader: DataLoader[Batch | DataError] | None = None
        self._open: Generator[Batch, None, None] | None = None

    def run(self, keys: Iterable[list[Key]]) -> Iterator[Batch]:
        """Yield one batch for each list of keys, in that order. A run that is still open ends.

        Raises:
            DataError: A sample could not be made.
        """
        self._end()
        self._open = self._run(keys)
        return self._open

    def close(self) -> None:
        """End the workers. The pool may run again."""
        self._end()
        # As Lightning does. Letting go of the iterator is not enough: the traceback of a worker's error holds it, too.
        iterator: Any = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
        self._loader = None

    def _end(self) -> None:
        # Whoever iterates may stop early and keep the iterator, and with it the workers.
        if self._open is not None:
            self._open.close()
            self._open = None

    def _run(self, keys: Iterable[list[Key]]) -> Generator[Batch, None, None]:
        if self._loader is None:
            self._loader = DataLoader(
                self._batches, batch_sampler=self._keys, collate_fn=_as_is, worker_init_fn=_start, **self._options
            )
        self._keys.batches = keys
        for batch in self._loader:
            if isinstance(batch, DataError):
                raise batch
            yield batch


class _Keys(Generic[Key]):
    """The sampler that persistent workers' loader was built with; each run puts its own keys in."""

    def __init__(self) -> None:
        self.batches: Iterable[list[Key]] = ()

    def __iter__(self) -> Iterator[list[Key]]:
        return iter(self.batches)


class _Batches(Dataset["Batch | DataError"], Generic[Key]):
    def __init__(self, make: Callable[[Key], Sample], records: Sequence[Record], classes: int, wanted: Wanted) -> None:
        self.make = make
        self.records = records
        self.classes = classes
        self.wanted = wanted

    def __getitems__(self, keys: list[Key]) -> Batch | DataError:
        # A fault of the data travels as a value: raised here, it would reach the user as a worker's traceback.
        try:
            return collate([self.make(key) for key in keys], self.records, self.classes, self.wanted)
        except DataError as error:
            return error


def _as_is(batch: Any) -> Any:
    return batch


def _start(worker: int) -> None:
    torch.set_num_threads(1)
    # 0, not 1: a count makes OpenCV wait for threads that a forked process does not have.
    cv2.setNumThreads(0)

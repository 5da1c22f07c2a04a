"""Loaders: worker processes turn keys into batches; the main process decides which keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lucid_core.data.augment import Augmenter
from lucid_core.data.letterbox import letterbox_sample
from lucid_core.data.plan import BatchPlan
from lucid_core.data.pool import Pool
from lucid_core.data.recent import Source
from lucid_core.data.types import DETECT, Record, Sample, SampleKey, Wanted
from lucid_core.seams import seam
from lucid_core.types import Batch

__all__ = ["EvaluationLoader", "TrainLoader"]


class TrainLoader:
    """Delivers the training batches of one process, epoch after epoch.

    It is no :class:`torch.utils.data.DataLoader`, so Lightning takes it as it is and adds no sampler. The epoch and all
    that changes with it travel to the workers inside the keys, so workers may live as long as the loader. What has
    been delivered is counted here, in the main process, so that a resumed epoch can go on with the next batch.

    Args:
        augmenter: Makes samples.
        plan: Which samples form which batch.
        classes: Number of classes, to check labels.
        workers: Processes; 0 works in this one.
        persistent: Workers live on between epochs.
        pin_memory: Deliver page-locked memory, for the transfer to a GPU.
        wanted: Which labels a batch has.

    Attributes:
        batch_sampler: The plan; Lightning tells it the epoch.
        batch_size: Samples per batch.
    """

    def __init__(
        self,
        augmenter: Augmenter,
        plan: BatchPlan,
        classes: int,
        workers: int = 0,
        persistent: bool = True,
        pin_memory: bool = False,
        wanted: Wanted = DETECT,
    ) -> None:
        self.augmenter = augmenter
        self.batch_sampler = plan
        self.batch_size = plan.batch_size
        self._pool: Pool[SampleKey] = Pool(
            augmenter.sample, augmenter.records, classes, workers, persistent, pin_memory, wanted
        )
        self._delivered = (0, 0)
        self._resume: dict[str, int] | None = None

    def __len__(self) -> int:
        """Return the number of batches of a whole epoch."""
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        # Lightning asks for an iterator before it says which epoch: everything below happens at the first batch.
        epoch = self.batch_sampler.epoch
        start = self._start(epoch)
        for number, batch in enumerate(self.batches(epoch, start), start + 1):
            # Counted before it is handed over: Lightning leaves the iterator at the last batch and never comes back.
            self._delivered = (epoch, number) if number < len(self) else (epoch + 1, 0)
            yield batch

    @seam("data.loader")
    def batches(self, epoch: int, start: int) -> Iterator[Batch]:
        """Yield the batches of one epoch.

        Args:
            epoch: From 0.
            start: Number of the first batch to deliver.

        Raises:
            DataError: A file or its labels cannot be used.
        """
        return self._pool.run(self.batch_sampler.batches(epoch, start))

    def progress(self) -> dict[str, int]:
        """Return how many batches of the epoch were delivered, and of how many samples in all processes.

        A complete epoch counts as the next one's start.
        """
        epoch, batches = self._delivered
        return {"epoch": epoch, "batches": batches, "global_batch": self.batch_sampler.global_batch}

    def resume(self, progress: dict[str, int]) -> None:
        """Go on where ``progress`` was taken.

        The next iteration raises a ``ValueError`` where that is in the middle of an epoch of another global batch.
        """
        self._delivered = progress["epoch"], progress["batches"]
        self._resume = progress

    def close(self) -> None:
        """End the workers. The loader may be used again."""
        self._pool.close()

    def _start(self, epoch: int) -> int:
        """The first batch to deliver of the epoch."""
        progress, self._resume = self._resume, None
        if progress is None or progress["epoch"] != epoch or not progress["batches"]:
            return 0
        then, now = progress["global_batch"], self.batch_sampler.global_batch
        if then != now:
            raise ValueError(
                f"the checkpoint lies in the middle of an epoch of {then} images per step (batch size times "
                f"processes), which now would be {now}: resume with {then}, or from the end of an epoch"
            )
        return progress["batches"]


class EvaluationLoader:
    """Delivers a split in order, letterboxed, each process its own contiguous part.

    Every process has equally many batches; where images do not suffice, the last one is repeated, and the evaluator,
    which collects by record, counts it once.

    Args:
        source: Gives images at evaluation scale.
        records: The split.
        size: Side of the canvas, pixels.
        batch_size: Images per batch.
        classes: Number of classes, to check labels.
        workers: Processes; 0 works in this one.
        rank: This process, in ``[0, world)``.
        world: Number of processes.
        pin_memory: Deliver page-locked memory, for the transfer to a GPU.
        wanted: Which labels a batch has.
    """

    def __init__(
        self,
        source: Source,
        records: Sequence[Record],
        size: int,
        batch_size: int,
        classes: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
        pin_memory: bool = False,
        wanted: Wanted = DETECT,
    ) -> None:
        self.source = source
        self.records = records
        self.size = size
        self.batch_size = batch_size
        share = math.ceil(len(records) / world)
        self.indices = [min(rank * share + place, len(records) - 1) for place in range(share)]
        self._pool: Pool[int] = Pool(self._sample, records, classes, workers, pin_memory=pin_memory, wanted=wanted)

    def __len__(self) -> int:
        return math.ceil(len(self.indices) / self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        starts = range(0, len(self.indices), self.batch_size)
        return self._pool.run(self.indices[start : start + self.batch_size] for start in starts)

    def close(self) -> None:
        """End the workers. The loader may be used again."""
        self._pool.close()

    def _sample(self, index: int) -> Sample:
        return letterbox_sample(self.source, self.records, index, self.size)

"""The order of an epoch and its division into batches: pure functions of (seed, epoch), the same in every process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.random import Stream, sample_rng
from lucid_core.data.types import SampleKey

__all__ = ["GROUP", "BatchPlan", "EpochPlan"]

#: Consecutive positions whose samples draw their partners from each other.
GROUP = 16


class EpochPlan:
    """Which image stands at which position of an epoch, and whether the epoch uses mosaic.

    Args:
        length: Images in the data set.
        seed: Seed of the run.
        epochs: Epochs of the whole run, or ``None`` where it has no such limit; then mosaic never closes.
        close_mosaic: Mosaic is off in that many last epochs; 0 keeps it on.
        shuffle: Permute the images anew each epoch; otherwise keep their order.
    """

    def __init__(self, length: int, seed: int, epochs: int | None, close_mosaic: int, shuffle: bool = True) -> None:
        self.length = length
        self.seed = seed
        self.epochs = epochs
        self.close_mosaic = close_mosaic
        self.shuffle = shuffle
        self._latest: tuple[int, NDArray[np.int64]] | None = None

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the record at each position of the epoch: ``(length,)`` int64, read-only."""
        if self._latest is None or self._latest[0] != epoch:
            order = np.arange(self.length)
            if self.shuffle:
                order = sample_rng(self.seed, epoch, 0, Stream.ORDER).permutation(order)
            order.flags.writeable = False
            self._latest = epoch, order
        return self._latest[1]

    def mosaic(self, epoch: int) -> bool:
        """Tell whether samples of the epoch may be mosaics."""
        return self.epochs is None or self.close_mosaic == 0 or epoch < self.epochs - self.close_mosaic

    def keys(self, epoch: int) -> list[SampleKey]:
        """Return the keys of the epoch's samples, by position."""
        mosaic = self.mosaic(epoch)
        return [SampleKey(epoch, position, mosaic) for position in range(self.length)]

    def group(self, position: int) -> range:
        """Return the positions among which the sample at ``position`` finds its partners; the last may be fewer."""
        first = position - position % GROUP
        return range(first, min(first + GROUP, self.length))


class BatchPlan:
    """The batches of one process, and the sampler that Lightning tells the epoch.

    A global batch is ``batch_size * world`` consecutive positions, of which each process takes one contiguous part.
    What is left at the end of the epoch is shared as evenly as possible, or left out where it is too short to give
    every process a sample. Every process has the same number of batches.

    Args:
        plan: Order of the epochs.
        batch_size: Samples per batch and process.
        rank: This process, in ``[0, world)``.
        world: Number of processes.
        repeat: Every epoch repeats the samples of epoch 0.

    Attributes:
        epoch: The epoch that the next iteration delivers.
        global_batch: Samples per batch of all processes.
    """

    def __init__(self, plan: EpochPlan, batch_size: int, rank: int = 0, world: int = 1, repeat: bool = False) -> None:
        self.plan = plan
        self.batch_size = batch_size
        self.global_batch = batch_size * world
        self.rank = rank
        self.world = world
        self.repeat = repeat
        self.epoch = 0

    @property
    def sampler(self) -> BatchPlan:
        """Itself: Lightning looks for ``set_epoch`` at ``loader.batch_sampler.sampler``."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. Lightning calls this at each epoch's start."""
        self.epoch = epoch

    def __len__(self) -> int:
        whole, tail = divmod(self.plan.length, self.global_batch)
        return whole + (tail >= self.world)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        return self.batches(self.epoch)

    def batches(self, epoch: int, start: int = 0) -> Iterator[list[SampleKey]]:
        """Yield the keys of each batch of this process.

        Args:
            epoch: From 0.
            start: Batches to leave out at the beginning, when an epoch is resumed in its middle.
        """
        keys = self.plan.keys(0 if self.repeat else epoch)
        for batch in range(start, len(self)):
            positions = self._positions(batch)
            yield keys[positions.start : positions.stop]

    def _positions(self, batch: int) -> range:
        first = batch * self.global_batch
        share, extra = divmod(min(self.global_batch, self.plan.length - first), self.world)
        begin = first + self.rank * share + min(self.rank, extra)
        return range(begin, begin + share + (self.rank < extra))

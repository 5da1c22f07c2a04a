"""How many worker processes load images, within one budget of processors and shared memory."""

from __future__ import annotations

import os
import shutil
from typing import Literal, NamedTuple

from lightning.pytorch.utilities import rank_zero_warn

from lucid_core.types import CELL

__all__ = ["PREFETCH", "Workers", "allot", "free_shared_memory"]

#: Batches that each worker prepares ahead.
PREFETCH = 2
#: Workers of both pools for each processor, at most.
PER_PROCESSOR = 4


class Workers(NamedTuple):
    """Worker processes of the two pools that live at the same time."""

    train: int
    val: int


def free_shared_memory() -> int | None:
    """Return the free bytes of ``/dev/shm``, through which workers hand batches over; None where there is none."""
    try:
        return shutil.disk_usage("/dev/shm").free
    except OSError:
        return None


def allot(
    workers: int | Literal["auto"],
    val_workers: int | Literal["auto"],
    batch_size: int,
    size: int,
    processes: int = 1,
    masks: int = 0,
) -> Workers:
    """Choose the worker counts of one training process.

    Both pools together may fill half of the shared memory that is free now: when it is full, writing a batch ends the
    process with a bus error that nothing can catch. Nor may they have more than :data:`PER_PROCESSOR` processes for
    each processor, which would only wait for each other.

    Args:
        workers: Of the training loader; ``"auto"`` is the smaller of batch size and processors.
        val_workers: Of the evaluation loader; ``"auto"`` is the smaller of 4 and the training count.
        batch_size: Images per batch.
        size: Side of an image, pixels.
        processes: Training processes on this machine, which share its processors and memory.
        masks: Room for masks of an image, as many as there are objects.

    Returns:
        Counts within the budget; 0 loads in the training process. Counts asked for by name are lowered with a warning.
    """
    share = max(1, processors() // processes)
    train = min(batch_size, share) if workers == "auto" else workers
    val = min(train, 4) if val_workers == "auto" else val_workers
    room, limit = PER_PROCESSOR * share, f"would be more than {PER_PROCESSOR} per processor"
    free = free_shared_memory()
    ahead = PREFETCH * batch_size * (3 * size * size + masks * (size // CELL) ** 2)
    if free is not None and free // 2 // processes // ahead < room:
        room = free // 2 // processes // ahead
        limit = (
            f"could hold {(train + val) * ahead / 2**20:.0f} MiB of batches in /dev/shm, of which {free / 2**20:.0f} "
            "MiB are free and half may be used (enlarge it, docker: --shm-size, or make batches smaller)"
        )
    if train + val <= room:
        return Workers(train, val)
    # Evaluation gives way first: its pool works for a fraction of the time.
    fewer_val = min(val, max(room - train, room // 4))
    granted = Workers(min(train, room - fewer_val), fewer_val)
    if workers != "auto" or val_workers != "auto":
        rank_zero_warn(
            f"{train} training and {val} evaluation workers {limit}: going on with {granted.train} and {granted.val}"
        )
    return granted


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""The random numbers of one training sample, as a pure function of what the sample is.

Every draw comes from a counter-based generator (Philox, Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3") whose key is ``(seed, epoch)`` and whose counter starts at ``(position, stream)``. Nothing is carried from one
sample to the next, so no worker, batch size or rank can change a draw.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

__all__ = ["Stream", "sample_rng"]


class Stream(IntEnum):
    """One step of the pipeline each, so that switching one step off leaves the draws of the others as they were."""

    ORDER = 0
    GEOMETRY = 1
    PASTE = 2
    MIXUP = 3
    COLOUR = 4
    FLIP = 5


def sample_rng(seed: int, epoch: int, position: int, stream: Stream) -> np.random.Generator:
    """Make the generator of one step of one sample.

    Args:
        seed: Seed of the run, in ``[0, 2**64)``.
        epoch: From 0.
        position: Place in the epoch plan, from 0.
        stream: The step that draws.

    Returns:
        A fresh generator. Two generators that differ in any argument never share a number of their sequences.
    """
    key = np.array([seed, epoch], np.uint64)
    # The low words count the draws, the high ones say whose draws they are: sequences cannot run into each other.
    counter = np.array([0, 0, position, stream], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))

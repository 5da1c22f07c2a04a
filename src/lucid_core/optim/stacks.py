"""Matrices of many shapes, packed into few stacks.

A detector has over a hundred small matrices of some forty shapes. One matrix product at a time, or one shape at a time,
the GPU spends its time on launches. Zero rows and columns stay zero under the Newton-Schulz iteration and change no
other entry but by rounding, so shapes of similar size share a stack, padded to the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Stack", "pack", "plan_stacks", "unpack"]

#: A stack's rows are a power of two, at least this.
LEAST_ROWS = 16
#: Matrices share a stack while their columns differ by at most this factor.
SPREAD = 2


class Slot(NamedTuple):
    """The matrices of one shape within a stack.

    Attributes:
        members: Positions in the list of matrices.
        rows: Of the matrix as it lies in the stack, at most its columns.
        columns: Of the matrix as it lies in the stack.
        tall: The matrix lies transposed.
    """

    members: tuple[int, ...]
    rows: int
    columns: int
    tall: bool


class Stack(NamedTuple):
    """A stack ``(count, rows, columns)`` and what lies in it, slot after slot."""

    slots: tuple[Slot, ...]
    rows: int
    columns: int


@lru_cache(maxsize=64)
def plan_stacks(shapes: tuple[tuple[int, int], ...]) -> tuple[Stack, ...]:
    """Return the stacks for matrices of these shapes ``(rows, columns)``, in a fixed order."""
    members: dict[tuple[int, int, bool], list[int]] = {}
    for i, (rows, columns) in enumerate(shapes):
        members.setdefault((min(rows, columns), max(rows, columns), rows > columns), []).append(i)
    classes: dict[int, list[Slot]] = {}
    for (rows, columns, tall), positions in sorted(members.items(), key=lambda item: -item[0][1]):
        power = max(LEAST_ROWS, 1 << (rows - 1).bit_length())
        classes.setdefault(power, []).append(Slot(tuple(positions), rows, columns, tall))
    stacks = []
    for _, slots in sorted(classes.items()):
        while slots:
            columns = slots[0].columns
            together = [slot for slot in slots if slot.columns * SPREAD >= columns]
            slots = slots[len(together) :]
            stacks.append(Stack(tuple(together), max(slot.rows for slot in together), columns))
    return tuple(stacks)


def pack(matrices: Sequence[Tensor], stack: Stack) -> Tensor:
    """Return the members of ``stack`` as one tensor ``(count, rows, columns)``, float32 or wider, padded with zeros."""
    first = matrices[stack.slots[0].members[0]]
    count = sum(len(slot.members) for slot in stack.slots)
    dtype = torch.promote_types(first.dtype, torch.float32)
    packed = torch.zeros(count, stack.rows, stack.columns, dtype=dtype, device=first.device)
    start = 0
    for slot in stack.slots:
        stop = start + len(slot.members)
        part = torch.stack([matrices[i] for i in slot.members])
        packed[start:stop, : slot.rows, : slot.columns] = part.mT if slot.tall else part
        start = stop
    return packed


def unpack(packed: Tensor, stack: Stack, into: list[Tensor]) -> None:
    """Put the members of ``stack`` at their positions in ``into``, contiguous, in the dtype of what stands there."""
    start = 0
    for slot in stack.slots:
        stop = start + len(slot.members)
        part = packed[start:stop, : slot.rows, : slot.columns]
        part = (part.mT if slot.tall else part).to(into[slot.members[0]].dtype).contiguous()
        for i, matrix in zip(slot.members, part.unbind(), strict=True):
            into[i] = matrix
        start = stop

"""The anchors that learn something, gathered into a fixed number of places for each image.

For terms that cost too much to be evaluated at every anchor. How many places there are follows from shapes alone, so
nothing waits for the host; places without an anchor that learns hold a background anchor, and are told apart.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lucid_core.objective.assign import rank
from lucid_core.types import Assignment

__all__ = ["Positives", "mean_of", "rows_of", "select_positives"]


class Positives(NamedTuple):
    """Anchors of a batch, ``P`` of each image, best first.

    Attributes:
        anchors: ``(B, P)`` int64.
        owner: ``(B, P)`` int64, row of the target that an anchor learns; 0 where it learns none.
        real: ``(B, P)`` bool, whether it learns one.
    """

    anchors: Tensor
    owner: Tensor
    real: Tensor


def select_positives(assignment: Assignment, capacity: int) -> Positives:
    """Return the anchors of each image that learn something, at most ``capacity`` of them.

    Where there are more, those of the smallest weight are left out, the highest anchors among equals.
    """
    foreground, owner, weight = assignment
    count = weight.shape[1]
    order = rank(weight, foreground)
    # Background is ordered as well, so that no device has a choice.
    order = torch.where(foreground, order, torch.arange(-1, -1 - count, -1, device=order.device))
    anchors = order.topk(min(capacity, count), dim=1).indices
    return Positives(anchors, owner.gather(1, anchors), foreground.gather(1, anchors))


def rows_of(values: Tensor, index: Tensor) -> Tensor:
    """Return the rows ``index`` ``(B, P)`` of ``values`` ``(B, R, ...)`` as ``(B, P, ...)``.

    Rows that are not taken get a gradient of zeros.
    """
    flat = values.flatten(2)
    taken = flat.gather(1, index.unsqueeze(2).expand(-1, -1, flat.shape[2]))
    return torch.unflatten(taken, 2, values.shape[2:])


def mean_of(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of the finite ``values`` that are ``counted``, a bool of the same shape; 0 where none is."""
    return (values * counted).sum() / counted.sum().clamp(min=1)

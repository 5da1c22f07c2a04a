"""What a part of the step hands out beside its result, such as values that it logs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

__all__ = ["Aside", "Nothing", "Taken"]


@dataclass(slots=True)
class Taken:
    """What one call handed out: tensors, detached, and what else is known of each."""

    tensors: list[Tensor] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)


class Aside(Protocol):
    """Takes what is handed out while a part is recorded, and hands it out where the part is replayed."""

    def kept_back(self) -> AbstractContextManager[Taken]:
        """Take what is handed out while the context is open; nobody else gets it."""

    def noted(self) -> AbstractContextManager[Taken]:
        """Take it; it is handed out as ever."""

    def hand_out(self, labels: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """Hand out what a replay made."""


class Nothing:
    """A part that hands out nothing."""

    def kept_back(self) -> AbstractContextManager[Taken]:
        """Take nothing."""
        return nullcontext(Taken())

    noted = kept_back

    def hand_out(self, labels: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        """Hand out nothing."""

"""Options that have a few values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["one_of"]

T = TypeVar("T")


def one_of(name: str, value: T, choices: Sequence[T]) -> T:
    """Return ``value``, which the option ``name`` has.

    Raises:
        ValueError: It is none of ``choices``. The command line checks that itself, a Trainer of one's own does not.
    """
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
    return value

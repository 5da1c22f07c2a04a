"""The key points that all objects of a data set have: how many, their names, and which are left and right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["NOT_MIRRORED", "Pairs", "PointTable", "mirror_pairs"]

#: What follows where left and right are not known.
NOT_MIRRORED = "images are not mirrored, or left would be taught as right"

Pairs = tuple[tuple[int, int], ...]

_OTHER_SIDE = {"left": "right", "right": "left", "l": "r", "r": "l"}


@dataclass(frozen=True, slots=True)
class PointTable:
    """The key points of every object of a data set.

    Attributes:
        count: ``K``.
        names: ``K`` names; empty where the data set has none.
        pairs: Points that change places in a mirrored image, each pair once. ``None`` where that is not known: images
            must not be mirrored then, since left would be taught as right.
        skeleton: Points that a drawing joins.
    """

    count: int
    names: tuple[str, ...] = ()
    pairs: Pairs | None = None
    skeleton: Pairs = ()


def mirror_pairs(names: Sequence[str]) -> Pairs | None:
    """Find by name the points that change places in a mirror.

    A name says its side by a word of its own: ``left_eye``, ``Eye.L``, ``leftEye``.

    Args:
        names: Of the points.

    Returns:
        Indices, lower first. ``None`` where a name says a side and no other name says the opposite one, or where names
        cannot be told apart.
    """
    words = [
        tuple(re.findall(r"[a-z]+|[0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower())) for name in names
    ]
    if len(set(words)) < len(words):
        return None
    mirrored = [tuple(_OTHER_SIDE.get(word, word) for word in name) for name in words]
    if not set(mirrored) <= set(words):
        return None
    others = [words.index(name) for name in mirrored]
    return tuple((one, other) for one, other in enumerate(others) if one < other)

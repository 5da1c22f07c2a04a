"""The key points that all objects of a data set have: how many, their names, and which are left and right."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.coco_values import short
from lucid_core.data.problems import Kind

__all__ = ["Pairs", "PointTable", "mirror_pairs", "mirror_remark", "show_points"]

_NOT_MIRRORED = "images are not mirrored, or left would be taught as right"

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

    A name says its side by a word of its own: ``left_eye``, ``Eye.L``, ``leftEye``, ``LEye``. A side that is grown
    together with another word, as in ``lshoulder`` or ``eyeright``, counts only beside its partner: ``lip`` is no left
    ``ip``.

    Args:
        names: Of the points.

    Returns:
        Indices, lower first. ``None`` where a name says a side and no other name says the opposite one, or where names
        cannot be told apart: numbers alone, or one name with many numbers, are none.
    """
    words = [_words(name) for name in names]
    place = {name: index for index, name in enumerate(words)}
    if len(place) < len(words) or (len(words) > 1 and len(set(map(_unnumbered, words))) == 1):
        return None
    others = []
    for index, name in enumerate(words):
        mirrored = tuple(_OTHER_SIDE.get(word, word) for word in name)
        if mirrored != name:
            others.append(place.get(mirrored))
        else:
            others.append(next((place[one] for one in _grown_together(name) if one in place), index))
    if any(other is None or others[other] != one for one, other in enumerate(others)):
        return None
    return tuple((one, other) for one, other in enumerate(others) if other is not None and one < other)


def mirror_remark(table: PointTable, unread: str = "") -> tuple[Kind, str] | None:
    """Say what is not sure about mirrored images, where left and right are known by the names of points alone.

    Args:
        table: The key points, with the pairs that their names give.
        unread: Why names that are stated were not taken.

    Returns:
        A kind of problem, and what to say of the key points; ``None`` where nothing is to be said.
    """
    if table.pairs is None:
        named = f"named {', '.join(table.names)}" if table.names else f"without names{unread and f' ({unread})'}"
        return (
            Kind.NO_MIRROR,
            f"its {table.count} key points are {named}, which pairs no left with a right: {_NOT_MIRRORED}",
        )
    paired = {index for pair in table.pairs for index in pair}
    single = [name for index, name in enumerate(table.names) if index not in paired]
    # Beside pairs, a nose or a tail is no surprise; points that only a number tells apart may be anywhere.
    stems = [_unnumbered(_words(name)) for name in single]
    unsure = [name for name, stem in zip(single, stems, strict=True) if not paired or stems.count(stem) > 1]
    if len(unsure) < 2:
        return None
    return Kind.NO_SIDES, f"none of {', '.join(unsure)} says left or right, so mirrored images swap none of them"


def show_points(bad: NDArray[np.bool_], stated: Sequence[Any], limit: int = 3) -> str:
    """Show in a message what a label states of the first of the points ``bad``."""
    rows = np.flatnonzero(bad).tolist()
    return ", ".join(short(stated[row]) for row in rows[:limit]) + (", ..." if len(rows) > limit else "")


def _words(name: str) -> tuple[str, ...]:
    """Take a name apart at marks, at numbers, and where small and capital letters meet."""
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return tuple(re.findall(r"[a-z]+|[0-9]+", apart.lower()))


def _unnumbered(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if not word.isdecimal())


def _grown_together(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """List what a name would be on the other side, if one of its words began or ended with a side."""
    for index, word in enumerate(words):
        for side, other in _OTHER_SIDE.items():
            if word.startswith(side):
                yield (*words[:index], other + word.removeprefix(side), *words[index + 1 :])
            if word.endswith(side):
                yield (*words[:index], word.removesuffix(side) + other, *words[index + 1 :])

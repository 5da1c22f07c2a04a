"""What can be wrong with a data set and what is then done: one list for the check and for training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Effect", "Fault", "Kind", "Problem", "first_fault", "summarise"]


class Effect(Enum):
    """What is done about a problem."""

    IMAGE_LEFT_OUT = "image left out"
    OBJECT_LEFT_OUT = "object left out"
    CHANGED = "changed"
    KEPT = "kept as it is"

    @property
    def is_fault(self) -> bool:
        """Whether something is not used as the data set states it."""
        return self is not Effect.KEPT


class Kind(Enum):
    """Every kind of problem: what is seen, and what is done."""

    PICTURE_MISSING = "picture missing", Effect.IMAGE_LEFT_OUT
    PICTURE_OUTSIDE = "picture outside the data set", Effect.IMAGE_LEFT_OUT
    PICTURE_UNREADABLE = "picture unreadable", Effect.IMAGE_LEFT_OUT
    PICTURE_SIZE = "picture of another size than its labels", Effect.IMAGE_LEFT_OUT
    IMAGE_ENTRY = "image entry unusable", Effect.IMAGE_LEFT_OUT
    LABEL_FILE = "label file unreadable", Effect.IMAGE_LEFT_OUT
    NO_USABLE_LABEL = "image without any usable label", Effect.IMAGE_LEFT_OUT
    IMAGE_UNLISTED = "annotation of an image that is not listed", Effect.OBJECT_LEFT_OUT
    UNKNOWN_CLASS = "unknown class", Effect.OBJECT_LEFT_OUT
    MALFORMED = "label malformed", Effect.OBJECT_LEFT_OUT
    NOT_FINITE = "box not finite", Effect.OBJECT_LEFT_OUT
    NO_AREA = "box without area in the image", Effect.OBJECT_LEFT_OUT
    OUT_OF_RANGE = "coordinate out of range", Effect.OBJECT_LEFT_OUT
    NO_MASK = "object without a usable mask", Effect.OBJECT_LEFT_OUT
    NO_CORNERS = "object without the four corners of its box", Effect.OBJECT_LEFT_OUT
    CROSSED = "four corners that cross themselves", Effect.OBJECT_LEFT_OUT
    DIALECT = "row of another kind of labels", Effect.OBJECT_LEFT_OUT
    CLIPPED = "object partly outside the image, clipped", Effect.CHANGED
    NO_BOX = "no box, taken from the polygons", Effect.CHANGED
    POLYGON = "polygon unusable, box kept", Effect.CHANGED
    KEY_POINTS = "key points unusable, box kept", Effect.CHANGED
    CONCAVE = "four corners with one pushed in, rectangle taken", Effect.CHANGED
    SKEWED = "four corners far from a rectangle, a box of their edges taken", Effect.CHANGED
    NO_MIRROR = "key points without left and right, images are not mirrored", Effect.KEPT
    NO_SIDES = "key points of which no name says a side, mirrored as they are", Effect.KEPT
    NO_CLASS_TABLE = "no list of classes, taken from the labels", Effect.KEPT
    EXTENT = "box and mask of different extents", Effect.KEPT
    NO_POLYGON = "segmentation empty", Effect.KEPT
    REPEATED_OBJECT = "object twice", Effect.KEPT
    REPEATED_ID = "annotation id twice", Effect.KEPT
    REPEATED_IMAGE = "image twice", Effect.KEPT
    SHARED_LABELS = "label file of two pictures", Effect.KEPT
    NO_LABELS = "no label at all", Effect.KEPT

    def __init__(self, seen: str, effect: Effect) -> None:
        self.seen = seen
        self.effect = effect


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a data set.

    Attributes:
        kind: What it is.
        message: One line that names file and place, what was seen and, where it is not plain, what is done.
        file: The annotation, label or picture file.
        where: The place in it: ``line 3``, ``annotation 17``, ``image 4``, or nothing.
    """

    kind: Kind
    message: str
    file: Path
    where: str = ""

    def __str__(self) -> str:
        return self.message


class Fault(ValueError):
    """Why one object or image is left out; readers turn it into a :class:`Problem`."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def first_fault(problems: Iterable[Problem]) -> str:
    """Return the first fault as the end of a message, ``; ...``; remarks explain no refusal. Without one, nothing."""
    return next((f"; {problem}" for problem in problems if problem.kind.effect.is_fault), "")


def summarise(problems: Iterable[Problem], limit: int | None = None) -> list[str]:
    """Group problems by kind.

    Args:
        problems: The problems.
        limit: How many of each kind to tell; the rest is counted. ``None`` tells all.

    Returns:
        For each kind that occurs, a line with its count and then its messages, indented.
    """
    grouped: defaultdict[Kind, list[Problem]] = defaultdict(list)
    for problem in problems:
        grouped[problem.kind].append(problem)
    lines = []
    for kind in (kind for kind in Kind if kind in grouped):
        found = grouped[kind]
        lines.append(f"{len(found)} x {kind.seen} ({kind.effect.value})")
        lines += [f"  {problem}" for problem in found[:limit]]
        if limit is not None and len(found) > limit:
            lines.append(f"  ... and {len(found) - limit} more")
    return lines

"""Which key points the objects of a YOLO folder have, as its yaml says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lucid_core.data.points import Pairs, PointTable, mirror_pairs
from lucid_core.data.types import DataError

__all__ = ["read_points"]


def read_points(config: dict[str, Any], file: Path) -> tuple[PointTable, int]:
    """Read ``kpt_shape``, ``flip_idx`` and ``kpt_names`` of a yaml.

    Returns:
        The table, and how many numbers of a row a point has: ``x y`` or ``x y visibility``.

    Raises:
        DataError: ``kpt_shape`` is missing or no shape, or ``flip_idx`` does not fit it.
    """
    shape = config.get("kpt_shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int for n in shape):
        raise DataError(
            f"{file}: key points are the task, and 'kpt_shape' is {shape!r}; state it as [points, 2] or [points, 3]"
        )
    count, numbers = shape
    if count < 1 or numbers not in (2, 3):
        raise DataError(f"{file}: kpt_shape {shape} is not at least one point of 2 or 3 numbers")
    names = _names(config.get("kpt_names"), count)
    if config.get("flip_idx") is not None:
        pairs: Pairs | None = _pairs(config["flip_idx"], count, file)
    else:
        pairs = () if count == 1 else mirror_pairs(names) if names else None
    return PointTable(count, names, pairs), numbers


def _names(stated: Any, count: int) -> tuple[str, ...]:
    """Take the names where all classes have the same ones, as many as there are points."""
    tables = list(stated.values()) if isinstance(stated, dict) else [stated]
    fits = all(isinstance(table, list) and len(table) == count and table == tables[0] for table in tables)
    return tuple(map(str, tables[0])) if tables and fits else ()


def _pairs(stated: Any, count: int, file: Path) -> Pairs:
    whole = isinstance(stated, list) and sorted(stated, key=str) == sorted(range(count), key=str)
    if not whole or any(stated[stated[one]] != one for one in range(count)):
        raise DataError(
            f"{file}: flip_idx {stated!r} does not say for each of the {count} points of kpt_shape which one takes its "
            f"place in a mirror; list {count} indices from 0, where two points that change places name each other"
        )
    return tuple((one, other) for one, other in enumerate(stated) if one < other)

"""Which key points the objects of a YOLO folder have, as its yaml says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lucid_core.data.coco_values import short
from lucid_core.data.points import Pairs, PointTable, mirror_pairs
from lucid_core.data.types import DataError

__all__ = ["names_fault", "read_points"]


def read_points(config: dict[str, Any], file: Path) -> tuple[PointTable, int]:
    """Read ``kpt_shape``, ``flip_idx`` and ``kpt_names`` of a yaml.

    Returns:
        The table, and how many numbers of a row a point has: ``x y`` or ``x y visibility``.

    Raises:
        DataError: ``kpt_shape`` is missing or no shape, or ``flip_idx`` does not fit it.
    """
    shape = config.get("kpt_shape")
    count, numbers = map(_whole, shape) if isinstance(shape, list) and len(shape) == 2 else (None, None)
    if count is None or numbers is None:
        raise DataError(
            f"{file}: key points are the task, and 'kpt_shape' is {shape!r}; state it as [points, 2] or [points, 3]"
        )
    if count < 1 or numbers not in (2, 3):
        raise DataError(f"{file}: kpt_shape {shape} is not at least one point of 2 or 3 numbers")
    names = _names(config, count)
    if config.get("flip_idx") is not None:
        pairs: Pairs | None = _pairs(config["flip_idx"], count, file)
    else:
        pairs = () if count == 1 else mirror_pairs(names) if names else None
    return PointTable(count, names, pairs), numbers


def names_fault(config: dict[str, Any], count: int) -> str:
    """Say why ``kpt_names`` of a yaml are not taken: their kind, their number, or several tables; else nothing."""
    stated = config.get("kpt_names")
    tables: list[Any] = list(stated.values()) if isinstance(stated, dict) else [stated]
    if stated is None:
        return ""
    if not tables or not all(isinstance(table, list) for table in tables):
        return f"kpt_names {short(stated)} is neither a list nor one list for each class"
    other = next((len(table) for table in tables if len(table) != count), count)
    if other != count:
        return f"kpt_names {short(stated)} lists {other} names for {count} points"
    if any(table != tables[0] for table in tables):
        return f"kpt_names {short(stated)} differ between classes"
    return ""


def _names(config: dict[str, Any], count: int) -> tuple[str, ...]:
    """Take the names where all classes have the same ones, as many as there are points."""
    stated = config.get("kpt_names")
    if stated is None or names_fault(config, count):
        return ()
    return tuple(map(str, next(iter(stated.values())) if isinstance(stated, dict) else stated))


def _pairs(stated: Any, count: int, file: Path) -> Pairs:
    places = [_whole(one) for one in stated] if isinstance(stated, list) else []
    whole = set(places) == set(range(count)) and len(places) == count
    if not whole or any(places[place] != one for one, place in enumerate(places) if place is not None):
        raise DataError(
            f"{file}: flip_idx {stated!r} does not say for each of the {count} points of kpt_shape which one takes its "
            f"place in a mirror; list {count} indices from 0, where two points that change places name each other"
        )
    return tuple((one, other) for one, other in enumerate(places) if other is not None and one < other)


def _whole(value: Any) -> int | None:
    """Accept whole numbers, also written as floats; truth values are none."""
    is_whole = type(value) is int or (type(value) is float and value.is_integer())
    return int(value) if is_whole else None

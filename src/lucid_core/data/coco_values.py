"""Single values of a COCO json, read strictly or not at all."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from lucid_core.data.types import DataError, Tile

__all__ = [
    "Box",
    "Row",
    "as_id",
    "as_number",
    "as_number_id",
    "as_tile",
    "clamp_box",
    "load_json",
    "matching_id",
    "read_categories",
    "short",
]

Row = dict[str, Any]
#: ``x1, y1, x2, y2`` in pixels.
Box = tuple[float, float, float, float]


def load_json(file: Path) -> Row:
    """Read a COCO json, with the three lists that it must have.

    Raises:
        DataError: The file is missing, no json, or lacks one of the lists.
    """
    try:
        content: Row = json.loads(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise DataError(f"{file}: no such annotation file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: cannot be read as json ({error}); is it cut short?") from None
    for key in ("images", "annotations", "categories"):
        if not isinstance(content, dict) or not isinstance(content.get(key), list):
            raise DataError(f"{file}: has no list {key!r}, which a COCO instances file has")
    return content


def read_categories(rows: list[Any], file: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Read the class table: names and ids, in the order of the ids.

    Raises:
        DataError: A category without id or name, an id twice, or no category at all.
    """
    names: dict[int, str] = {}
    for row in rows:
        key = as_number_id(row.get("id")) if isinstance(row, dict) else None
        if key is None or not isinstance(row.get("name"), str):
            raise DataError(f"{file}: category {short(row)} has no whole number as id and text as name")
        if key in names:
            raise DataError(f"{file}: category id {key} is {names[key]!r} and {row['name']!r}; give each its own id")
        names[key] = row["name"]
    if not names:
        raise DataError(f"{file}: lists no categories")
    ids = tuple(sorted(names))
    return tuple(names[key] for key in ids), ids


def as_id(value: Any) -> int | str | None:
    """Accept whole numbers and text as an id."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def as_number_id(value: Any) -> int | None:
    """Accept whole numbers, also written as text, as an id."""
    key = as_id(value)
    try:
        return None if key is None else int(key)
    except ValueError:
        return None


def matching_id(value: Any, images: dict[int | str, Row]) -> int | str | None:
    """Find an image id that may be a number on one side and text on the other."""
    key = as_id(value)
    if key is None or key in images:
        return key
    other = str(key) if isinstance(key, int) else as_number_id(key)
    return other if other in images else None


def as_number(value: Any) -> float:
    """Read a number, also written as text; anything else is NaN."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def as_tile(image: Row) -> Tile | None:
    """Read where an image was cut from, as ``lucid data tiles`` notes it."""
    window = image.get("window")
    if not isinstance(image.get("source_image"), str) or not isinstance(window, list) or len(window) != 4:
        return None
    x1, y1, x2, y2 = map(as_number_id, window)
    if x1 is None or y1 is None or x2 is None or y2 is None:
        return None
    return Tile(image["source_image"], (x1, y1, x2, y2))


def clamp_box(box: Box, width: int, height: int) -> Box:
    """Cut a box at the borders of its image."""
    x1, y1, x2, y2 = box
    return min(max(x1, 0.0), width), min(max(y1, 0.0), height), min(max(x2, 0.0), width), min(max(y2, 0.0), height)


def short(value: Any, limit: int = 60) -> str:
    """Show a value in a message, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."

"""Which key points the objects of a COCO json have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lucid_core.data.coco_values import Row, as_number_id, short
from lucid_core.data.points import Pairs, PointTable, mirror_pairs
from lucid_core.data.types import DataError

__all__ = ["names_fault", "point_count", "read_points"]


def point_count(content: Row) -> tuple[int | None, list[int]]:
    """Find the one number of key points that all objects of a json have.

    Returns:
        The number, or ``None`` where there is none; and all numbers that occur.
    """
    stated = [row["keypoints"] for row in content["annotations"] if isinstance(row, dict) and row.get("keypoints")]
    named = {len(row["keypoints"]) for row in content["categories"] if isinstance(row.get("keypoints"), list)}
    counts = sorted((named - {0}) or {len(flat) // 3 for flat in stated if isinstance(flat, list)}) if stated else []
    return (counts[0] or None if len(counts) == 1 else None), counts


def read_points(content: Row, file: Path) -> PointTable:
    """Read the table of key points: that of the categories, else as many as the annotations have.

    Categories without ``keypoints`` may stand beside those that have them; the points of their objects are absent.

    Raises:
        DataError: Categories, or annotations, disagree, or there are no key points.
    """
    tables = {
        str(row["name"]): row
        for row in content["categories"]
        if isinstance(row.get("keypoints"), list) and row["keypoints"]
    }
    if not tables:
        count, counts = point_count(content)
        if count is None:
            seen = f"annotations have {counts} of them" if counts else "neither categories nor annotations have any"
            raise DataError(
                f"{file}: key points are the task, but {seen}; name them in the categories, each the same number, or "
                f"give files that have them, such as person_keypoints_*.json, with --train_images and "
                f"--train_annotations (lucid data check) or --data.train_images and --data.train_annotations; so too "
                f"for val"
            )
        return PointTable(count, (), () if count == 1 else None)
    (first, row), *others = tables.items()
    for name, other in others:
        if other["keypoints"] != row["keypoints"]:
            raise DataError(
                f"{file}: category {first!r} has {len(row['keypoints'])} key points ({_listed(row)}), category "
                f"{name!r} has {len(other['keypoints'])} ({_listed(other)}); a data set has the same ones for all"
            )
    names = tuple(str(name) for name in row["keypoints"])
    pairs = () if len(names) == 1 else mirror_pairs(names)
    return PointTable(len(names), names, pairs, _skeleton(row.get("skeleton"), len(names)))


def names_fault(content: Row) -> str:
    """Say which ``keypoints`` of a category are no list of names; else nothing."""
    odd = [row for row in content["categories"] if row.get("keypoints") and not isinstance(row["keypoints"], list)]
    return f"keypoints {short(odd[0]['keypoints'])} of category {odd[0]['name']!r} are no list" if odd else ""


def _listed(row: Row) -> str:
    return ", ".join(map(str, row["keypoints"]))


def _skeleton(stated: Any, count: int) -> Pairs:
    """Read the pairs of points that are joined, counted from 1; what is no such pair is not drawn."""
    found = []
    for pair in stated if isinstance(stated, list) else []:
        ends = [as_number_id(end) for end in pair] if isinstance(pair, list) else []
        if len(ends) == 2 and all(end is not None and 1 <= end <= count for end in ends):
            found.append((int(ends[0]) - 1, int(ends[1]) - 1))  # type: ignore[arg-type]
    return tuple(found)

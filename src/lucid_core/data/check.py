"""What a data set holds and what is wrong with it: the verdicts of training, without training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, get_args

import numpy as np

from lucid_core.data.layout import Layout, Split, open_split
from lucid_core.data.problems import Effect, summarise
from lucid_core.data.records import DataSet, match_classes
from lucid_core.data.scan import PictureScan
from lucid_core.data.types import DataError, NoSplit, Task

__all__ = ["Check", "Verdict", "check"]

#: Rows of a table on screen that have no natural end.
ROWS = 20

Cells = Sequence[object]


class Verdict(IntEnum):
    """What a check came to; the number is the exit status of the command."""

    CLEAN = 0
    FAULTS = 3
    UNUSABLE = 4


@dataclass(slots=True)
class Check:
    """What a check found.

    Attributes:
        root: The data set.
        splits: The splits that can be used, by name, labels in the order of the first one.
        errors: Why splits cannot be used, one line each.
        refused: Those splits.
    """

    root: Path
    splits: dict[str, DataSet] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    refused: list[Split] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """Whether training would use the data set as it states itself, with something left out or changed, or not."""
        if self.errors:
            return Verdict.UNUSABLE
        faults = any(one.kind.effect.is_fault for data in self.splits.values() for one in data.problems)
        return Verdict.FAULTS if faults else Verdict.CLEAN

    def text(self, limit: int) -> str:
        """Put it in tables and lines.

        Args:
            limit: Problems of each kind and split to tell; the rest is counted.
        """
        parts = [str(self.root)]
        if self.splits:
            parts += [_table(self._counts()), _table(self._classes()), _table(self._sizes())]
        for split, data in self.splits.items():
            if data.problems:
                parts.append("\n  ".join([f"{split}: {len(data.problems)} problems", *summarise(data.problems, limit)]))
        parts += [f"error: {error}" for error in self.errors]
        return "\n\n".join([*parts, self._conclusion()])

    def as_json(self) -> dict[str, Any]:
        """Give everything as values that json has, all problems included."""
        return {
            "root": str(self.root),
            "verdict": self.verdict.name.lower(),
            "errors": self.errors,
            "splits": {split: _as_json(data) for split, data in self.splits.items()},
        }

    def _counts(self) -> list[Cells]:
        columns = [_counts(data) for data in self.splits.values()]
        return [["", *self.splits], *([name, *(column[name] for column in columns)] for name in columns[0])]

    def _classes(self) -> list[Cells]:
        names = next(iter(self.splits.values())).class_names
        counts = np.array([_per_class(data) for data in self.splits.values()])
        totals = counts.sum(axis=0)
        order = [label for label in np.argsort(-totals, kind="stable") if totals[label]]
        rows: list[Cells] = [["objects by class", *self.splits]]
        rows += [[names[label], *counts[:, label]] for label in order[:ROWS]]
        if len(order) > ROWS:
            rows.append([f"{len(order) - ROWS} more classes", *counts[:, order[ROWS:]].sum(axis=1)])
        return rows

    def _sizes(self) -> list[Cells]:
        sizes = [Counter((one.width, one.height) for one in data.records) for data in self.splits.values()]
        total = sum(sizes, Counter())
        rows: list[Cells] = [["images by size", *self.splits]]
        shown = [size for size, _ in total.most_common(5)]
        rows += [[f"{w} x {h}", *(count[w, h] for count in sizes)] for w, h in shown]
        if len(total) > len(shown):
            rest = [count.total() - sum(count[size] for size in shown) for count in sizes]
            rows.append([f"{len(total) - len(shown)} more sizes", *rest])
        return rows

    def _conclusion(self) -> str:
        if self.verdict is Verdict.UNUSABLE:
            # Training does without a test split.
            if self.refused == ["test"]:
                return "unusable: split 'test' cannot be read"
            return "unusable: training would not start"
        if self.verdict is Verdict.CLEAN:
            return "clean: training uses all of it, as it is"
        count = Counter(one.kind.effect for data in self.splits.values() for one in data.problems)
        return (
            f"usable with faults: training leaves out {count[Effect.IMAGE_LEFT_OUT]} images, "
            f"{count[Effect.OBJECT_LEFT_OUT]} objects of other images, and changes {count[Effect.CHANGED]} objects"
        )


def check(
    root: Path,
    splits: Sequence[Split] = (),
    layout: Layout = "auto",
    places: dict[str, tuple[str | None, str | None]] | None = None,
    scan: PictureScan | None = None,
    task: Task = "detect",
) -> Check:
    """Read splits as training does.

    Args:
        root: The folder, or a YOLO yaml file itself.
        splits: What to read; train, val and, where there is one, test, unless given.
        layout: Which kind of data set to look for.
        places: For splits that are not found by themselves, the folder of the pictures and the COCO json.
        scan: Looks at the pictures.
        task: What would be learnt.

    Returns:
        What was found; faults of the data are in it, not raised.
    """
    result = Check(root)
    refused: dict[str, list[Split]] = {}
    # In this order whatever the order asked: classes are matched to those of the first, as in training.
    for split in get_args(Split):
        if splits and split not in splits:
            continue
        try:
            images, annotations = (places or {}).get(split, (None, None))
            data = open_split(root, split, layout, images, annotations, scan, task)
            first = next(iter(result.splits.values()), data)
            result.splits[split] = match_classes(first, data)
        except DataError as error:
            if not (isinstance(error, NoSplit) and split == "test" and not splits):
                refused.setdefault(str(error), []).append(split)
    # What is wrong with the data set as a whole is said once.
    result.errors = [f"{', '.join(names)}: {error}" for error, names in refused.items()]
    result.refused = [split for names in refused.values() for split in names]
    return result


def _counts(data: DataSet) -> dict[str, int]:
    effects = Counter(one.kind.effect for one in data.problems)
    return {
        "images": len(data),
        "  without objects": sum(not len(one.truth.boxes) for one in data.records),
        "  left out": effects[Effect.IMAGE_LEFT_OUT],
        "objects": sum(len(one.instances) for one in data.records),
        "  crowd or ignored": sum(int(one.truth.crowd.sum()) for one in data.records),
        **{f"  {name}": count for name, count in _of_task(data).items()},
        "  left out of these images": effects[Effect.OBJECT_LEFT_OUT],
        "classes": len(data.class_names),
        "  without objects here": int((_per_class(data) == 0).sum()),
    }


def _of_task(data: DataSet) -> dict[str, int]:
    """What is counted of oriented boxes and of key points alone."""
    counts = {}
    if any(one.truth.difficult is not None for one in data.records):
        flags = [one.truth.difficult for one in data.records if one.truth.difficult is not None]
        counts["difficult"] = sum(int(one.sum()) for one in flags)
    if data.points is not None:
        seen = [one.instances.visibility for one in data.records if one.instances.visibility is not None]
        counts["with key points"] = sum(int((one > 0).any(1).sum()) for one in seen)
    return counts


def _per_class(data: DataSet) -> Any:
    labels = [np.empty(0, np.int64), *(one.instances.labels for one in data.records)]
    return np.bincount(np.concatenate(labels), minlength=len(data.class_names))


def _as_json(data: DataSet) -> dict[str, Any]:
    counts = dict(zip(data.class_names, _per_class(data).tolist(), strict=True))
    sizes = Counter((one.width, one.height) for one in data.records)
    problems = [
        {
            "kind": one.kind.name.lower(),
            "effect": one.kind.effect.name.lower(),
            "file": str(one.file),
            "where": one.where,
            "message": one.message,
        }
        for one in data.problems
    ]
    return {
        "images": len(data),
        "images_without_objects": sum(not len(one.truth.boxes) for one in data.records),
        "objects": sum(len(one.instances) for one in data.records),
        "crowd": sum(int(one.truth.crowd.sum()) for one in data.records),
        **{name.replace(" ", "_"): count for name, count in _of_task(data).items()},
        "classes": counts,
        "sizes": [{"width": w, "height": h, "images": count} for (w, h), count in sizes.most_common()],
        "problems": problems,
    }


def _table(rows: Sequence[Cells]) -> str:
    cells = [[f"{cell:,}" if isinstance(cell, int | np.integer) else str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        for row in cells
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)

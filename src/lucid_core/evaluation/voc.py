"""Average precision of oriented boxes as DOTA scores it (arXiv 1711.10398): difficult objects need not be found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lucid_core.evaluation.oriented_metrics import OrientedMetrics, summarize_oriented
from lucid_core.evaluation.original import Float64
from lucid_core.evaluation.rotated import areas, envelope, overlaps

__all__ = ["THRESHOLDS", "Unit", "measure"]

#: Overlaps from which a detection is right.
THRESHOLDS = np.arange(50, 100, 5) / 100
#: Pairs of detections and objects looked at together: bounds memory, whatever a picture holds.
PAIRS = 1 << 18


class Unit(NamedTuple):
    """What is matched with each other: a tile, or a whole picture.

    Attributes:
        quads: ``(m, 4, 2)`` float64, corners of the objects, pixels.
        labels: ``(m,)`` int64, their classes.
        difficult: ``(m,)`` bool, objects that need not be found.
        rboxes: ``(n, 5)`` float64, oriented boxes that were detected.
        scores: ``(n,)`` float64.
        classes: ``(n,)`` int64, classes of the detections.
    """

    quads: Float64
    labels: NDArray[np.int64]
    difficult: NDArray[np.bool_]
    rboxes: Float64
    scores: Float64
    classes: NDArray[np.int64]


def measure(units: Sequence[Unit], names: Sequence[str]) -> OrientedMetrics:
    """Match and average.

    By falling score, a detection takes the object of its class that it overlaps most among those that are not taken and
    not difficult. If none overlaps enough, it is wrong, unless a difficult object does: then it does not count. Each
    overlap threshold has its own matches. Precision is interpolated at 101 recalls.

    Args:
        units: What is matched with each other.
        names: Of the classes, in label order.
    """
    scores = np.concatenate([np.empty(0), *(unit.scores for unit in units)])
    classes = np.concatenate([np.empty(0, np.int64), *(unit.classes for unit in units)])
    labels = np.concatenate([np.empty(0, np.int64), *(unit.labels for unit in units)])
    difficult = np.concatenate([np.empty(0, np.bool_), *(unit.difficult for unit in units)])
    # Equal scores stay in the order of the units, and in a unit in that of its rows.
    order = np.argsort(-scores, kind="stable")
    right, spared = _match(units, order, difficult)
    objects = np.bincount(labels[~difficult], minlength=len(names))
    images = np.zeros(len(names), np.int64)
    for unit in units:
        images[np.unique(unit.labels[~unit.difficult])] += 1
    precision, recall = (np.full((len(THRESHOLDS), len(names)), np.nan) for _ in range(2))
    for label in np.flatnonzero(objects):
        own = order[classes[order] == label]
        for level in range(len(THRESHOLDS)):
            counted = right[own[spared[own] >> level & 1 == 0]] >> level & 1
            precision[level, label], recall[level, label] = _curve(counted, int(objects[label]))
    rows = zip(names, images.tolist(), objects.tolist(), strict=True)
    return summarize_oriented(precision, recall, len(units), list(rows))


def _curve(right: NDArray[np.int64], objects: int) -> tuple[float, float]:
    """Average precision and recall of detections by falling score."""
    found = right.cumsum()
    precision = found / np.arange(1, len(found) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    # Recalls are compared as integers: found / objects >= k / 100.
    reached = np.searchsorted(100 * found, np.arange(101) * objects)
    return float(best[reached].mean()), (int(found[-1]) / objects if len(found) else 0.0)


def _match(
    units: Sequence[Unit], order: NDArray[np.intp], difficult: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Say of every detection at which thresholds it is right, and at which it does not count: bits, lowest first."""
    right, spared = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    rows, objects, overlap = _overlapping(units)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    walk = np.lexsort((objects, -overlap, rank[rows]))
    reached = (1 << np.searchsorted(THRESHOLDS, overlap, side="right")) - 1
    taken: dict[int, int] = {}
    for row, one, bits, hard in zip(
        *(field[walk].tolist() for field in (rows, objects, reached, difficult[objects])), strict=True
    ):
        if hard:
            spared[row] |= bits
        else:
            free = bits & ~taken.get(one, 0) & ~int(right[row])
            taken[one] = taken.get(one, 0) | free
            right[row] |= free
    return right, spared & ~right


def _overlapping(units: Sequence[Unit]) -> tuple[NDArray[np.intp], NDArray[np.intp], Float64]:
    """Give detections and objects of one class that overlap by the lowest threshold or more, and by how much."""
    rboxes = np.concatenate([np.empty((0, 5)), *(unit.rboxes for unit in units)])
    quads = torch.from_numpy(np.concatenate([np.empty((0, 4, 2)), *(unit.quads for unit in units)]))
    cos, sin = np.abs(np.cos(rboxes[:, 4:])), np.abs(np.sin(rboxes[:, 4:]))
    reach = (rboxes[:, 2:4] * cos + rboxes[:, 3:1:-1] * sin) / 2
    boxes = np.concatenate([rboxes[:, :2] - reach, rboxes[:, :2] + reach, rboxes[:, 2:3] * rboxes[:, 3:4]], 1)
    others = torch.cat([envelope(quads), areas(quads).unsqueeze(1)], 1).numpy()
    parts = [np.empty((2, 0), np.intp), *_likely(units, boxes, others)]
    rows, objects = np.concatenate(parts, 1)
    exact = [
        overlaps(quads[objects[part]], torch.from_numpy(rboxes[rows[part]])).numpy()
        for part in (slice(start, start + PAIRS) for start in range(0, len(rows), PAIRS))
    ]
    overlap = np.concatenate([np.empty(0), *exact])
    enough = overlap >= THRESHOLDS[0]
    return rows[enough], objects[enough], overlap[enough]


def _likely(units: Sequence[Unit], boxes: Float64, others: Float64) -> Iterator[NDArray[np.intp]]:
    """Give pairs ``(2, n)`` of one unit and class that may overlap enough.

    Args:
        units: What is matched with each other.
        boxes: ``(N, 5)``, upright boxes about all detections, and the areas of these.
        others: ``(M, 5)``, the same of all objects.
    """
    first, begin = 0, 0
    for unit in units:
        for label in np.unique(unit.labels):
            objects = np.flatnonzero(unit.labels == label) + begin
            mine = np.flatnonzero(unit.classes == label) + first
            x1, y1, x2, y2, size = others[objects].T
            step = max(1, PAIRS // len(objects))
            for rows in (mine[start : start + step] for start in range(0, len(mine), step)):
                left, top, right, bottom, area = boxes[rows].T[..., None]
                # An overlap is at most the ratio of the areas.
                near = (left <= x2) & (right >= x1) & (top <= y2) & (bottom >= y1)
                near &= np.minimum(area, size) >= THRESHOLDS[0] * np.maximum(area, size)
                row, one = np.nonzero(near)
                yield np.stack([rows[row], objects[one]])
        first, begin = first + len(unit.scores), begin + len(unit.labels)

"""The numbers of oriented boxes, from precision and recall at each threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lucid_core.evaluation.metrics import AT_50, AT_75, ClassMetrics, numbers_of
from lucid_core.evaluation.original import Float64

__all__ = ["OrientedMetrics", "summarize_oriented"]


@dataclass(frozen=True, slots=True)
class OrientedMetrics:
    """Four numbers over oriented boxes, each in ``[0, 1]`` and a mean over the classes that have objects; else nan.

    Attributes:
        map: AP over IoU 0.50:0.05:0.95.
        map_50: AP at IoU 0.50.
        map_75: AP at IoU 0.75.
        mar: AR over IoU 0.50:0.95, of all detections.
        images: Images that were evaluated.
        classes: One row per class of the data set, in label order. Difficult objects are not counted.
    """

    map: float
    map_50: float
    map_75: float
    mar: float
    images: int
    classes: tuple[ClassMetrics, ...]

    @property
    def totals(self) -> tuple[float, float, float]:
        """AP, AP at IoU 0.50 and AR."""
        return self.map, self.map_50, self.mar

    def scalars(self) -> dict[str, float]:
        """Name the four numbers for the logger."""
        return numbers_of(self)


def summarize_oriented(
    precision: Float64, recall: Float64, images: int, classes: Sequence[tuple[str, int, int]]
) -> OrientedMetrics:
    """Average over thresholds and classes.

    Args:
        precision: ``(T, K)`` average precision at each threshold; nan for a class without objects.
        recall: ``(T, K)``, likewise.
        images: Images that were evaluated.
        classes: Name, images and objects of each class, in the order of the columns.
    """
    rows = tuple(
        ClassMetrics(
            name, seen, objects, *map(float, (precision[:, k].mean(), precision[AT_50, k], recall[:, k].mean()))
        )
        for k, (name, seen, objects) in enumerate(classes)
    )
    known = ~np.isnan(precision[0])

    def mean(values: Float64) -> float:
        return float(values[..., known].mean()) if known.any() else math.nan

    return OrientedMetrics(mean(precision), mean(precision[AT_50]), mean(precision[AT_75]), mean(recall), images, rows)

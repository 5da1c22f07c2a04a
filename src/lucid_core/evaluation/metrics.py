"""What the metrics of every task have, and the twelve COCO numbers of boxes and masks, from accumulated curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from lucid_core.evaluation.engines import Curves
from lucid_core.evaluation.original import Float64

__all__ = ["AT_50", "AT_75", "ClassMetrics", "Measured", "Metrics", "class_rows", "mean_of", "numbers_of", "summarize"]

#: Where 0.50 and 0.75 stand among the thresholds 0.50:0.05:0.95.
AT_50, AT_75 = 0, 5
_ALL, _SMALL, _MEDIUM, _LARGE = range(4)
_AT_1, _AT_10, _AT_100 = range(3)


@dataclass(frozen=True, slots=True)
class ClassMetrics:
    """One class over the evaluated images.

    Attributes:
        name: The class.
        images: Images with at least one of its objects.
        objects: Its objects, crowd regions left out.
        ap: AP over IoU 0.50:0.95 at 100 detections; nan for a class without objects.
        ap_50: AP at IoU 0.50; nan likewise.
        ar: AR over IoU 0.50:0.95 at 100 detections; nan likewise.
    """

    name: str
    images: int
    objects: int
    ap: float
    ap_50: float
    ar: float


class Measured(Protocol):
    """What the metrics of every task have."""

    @property
    def images(self) -> int:
        """Images that were evaluated."""

    @property
    def classes(self) -> tuple[ClassMetrics, ...]:
        """One row per class of the data set, in label order."""

    @property
    def totals(self) -> tuple[float, float, float]:
        """AP, AP at the lowest threshold, and AR: means over the classes that have objects."""

    def scalars(self) -> dict[str, float]:
        """Name the numbers for the logger."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The twelve COCO numbers, each in ``[0, 1]`` and a mean over the classes that have objects.

    A number with nothing to be measured on (no object in its size bucket) is nan, never -1: Lightning's checkpoints
    take nan for the worst value, and a mean over it shows.

    Attributes:
        map: AP over IoU 0.50:0.05:0.95, at most 100 detections per image and class.
        map_50: AP at IoU 0.50.
        map_75: AP at IoU 0.75.
        map_small: AP of objects with an area up to 32**2 pixels of the original image.
        map_medium: AP of objects from 32**2 to 96**2.
        map_large: AP of objects from 96**2.
        mar_1: AR over IoU 0.50:0.95 with one detection per image and class.
        mar_10: AR with ten.
        mar_100: AR with a hundred.
        mar_small: AR of small objects.
        mar_medium: AR of medium objects.
        mar_large: AR of large objects.
        images: Images that were evaluated.
        classes: One row per class of the data set, in label order.
    """

    map: float
    map_50: float
    map_75: float
    map_small: float
    map_medium: float
    map_large: float
    mar_1: float
    mar_10: float
    mar_100: float
    mar_small: float
    mar_medium: float
    mar_large: float
    images: int
    classes: tuple[ClassMetrics, ...]

    @property
    def totals(self) -> tuple[float, float, float]:
        """AP, AP at IoU 0.50 and AR at 100 detections."""
        return self.map, self.map_50, self.mar_100

    def scalars(self) -> dict[str, float]:
        """Name the twelve numbers for the logger."""
        return numbers_of(self)


def summarize(curves: Curves, images: int, classes: Sequence[tuple[str, int, int]]) -> Metrics:
    """Average the curves.

    Args:
        curves: What an engine accumulated.
        images: Images that were evaluated.
        classes: Name, images and objects of each class, in the order of the curves.
    """
    precision, recall = curves

    def ap(area: int = _ALL, iou: slice | int = slice(None)) -> float:
        return mean_of(precision[iou, ..., area, _AT_100])

    def ar(area: int = _ALL, detections: int = _AT_100) -> float:
        return mean_of(recall[..., area, detections])

    return Metrics(
        map=ap(),
        map_50=ap(iou=AT_50),
        map_75=ap(iou=AT_75),
        map_small=ap(_SMALL),
        map_medium=ap(_MEDIUM),
        map_large=ap(_LARGE),
        mar_1=ar(detections=_AT_1),
        mar_10=ar(detections=_AT_10),
        mar_100=ar(),
        mar_small=ar(_SMALL),
        mar_medium=ar(_MEDIUM),
        mar_large=ar(_LARGE),
        images=images,
        classes=class_rows(curves, classes),
    )


def class_rows(curves: Curves, classes: Sequence[tuple[str, int, int]]) -> tuple[ClassMetrics, ...]:
    """Return one row for each class, of all areas and at the highest number of detections."""
    precision, recall = curves.precision[..., _ALL, -1], curves.recall[..., _ALL, -1]
    return tuple(
        ClassMetrics(
            name,
            seen,
            objects,
            ap=mean_of(precision[:, :, k]),
            ap_50=mean_of(precision[AT_50, :, k]),
            ar=mean_of(recall[:, k]),
        )
        for k, (name, seen, objects) in enumerate(classes)
    )


def mean_of(values: Float64) -> float:
    """Return the mean of what was measured: of values that are not -1; nan where there is none."""
    measured = values[values > -1]
    return float(measured.mean()) if measured.size else math.nan


def numbers_of(metrics: Any) -> dict[str, float]:
    """Name the numbers of a dataclass of metrics: all but the images and the classes, which are the last two fields."""
    return {field.name: getattr(metrics, field.name) for field in fields(metrics)[:-2]}

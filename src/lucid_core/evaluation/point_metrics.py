"""The ten COCO numbers of key points, from accumulated curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lucid_core.evaluation.engines import Curves
from lucid_core.evaluation.metrics import AT_50, AT_75, ClassMetrics, class_rows, mean_of, numbers_of

__all__ = ["PointMetrics", "summarize_points"]


@dataclass(frozen=True, slots=True)
class PointMetrics:
    """The ten COCO numbers of key points, each in ``[0, 1]`` and a mean over the classes that have objects; else nan.

    Attributes:
        map: AP over object keypoint similarity 0.50:0.05:0.95, at most 20 detections per image and class.
        map_50: AP at similarity 0.50.
        map_75: AP at similarity 0.75.
        map_medium: AP of objects with an area from 32**2 to 96**2 pixels of the original image.
        map_large: AP of objects from 96**2.
        mar: AR over similarity 0.50:0.95.
        mar_50: Recall at similarity 0.50.
        mar_75: Recall at similarity 0.75.
        mar_medium: AR of medium objects.
        mar_large: AR of large objects.
        images: Images that were evaluated.
        classes: One row per class of the data set, in label order. Objects without a labelled point are not counted.
    """

    map: float
    map_50: float
    map_75: float
    map_medium: float
    map_large: float
    mar: float
    mar_50: float
    mar_75: float
    mar_medium: float
    mar_large: float
    images: int
    classes: tuple[ClassMetrics, ...]

    @property
    def totals(self) -> tuple[float, float, float]:
        """AP, AP at similarity 0.50 and AR."""
        return self.map, self.map_50, self.mar

    def scalars(self) -> dict[str, float]:
        """Name the ten numbers for the logger."""
        return numbers_of(self)


def summarize_points(curves: Curves, images: int, classes: Sequence[tuple[str, int, int]]) -> PointMetrics:
    """Average the curves of key points; arguments as those of
    :func:`~lucid_core.evaluation.metrics.summarize`."""
    whole, medium, large = range(3)
    precision, recall = curves
    return PointMetrics(
        map=mean_of(precision[..., whole, :]),
        map_50=mean_of(precision[AT_50, ..., whole, :]),
        map_75=mean_of(precision[AT_75, ..., whole, :]),
        map_medium=mean_of(precision[..., medium, :]),
        map_large=mean_of(precision[..., large, :]),
        mar=mean_of(recall[..., whole, :]),
        mar_50=mean_of(recall[AT_50, ..., whole, :]),
        mar_75=mean_of(recall[AT_75, ..., whole, :]),
        mar_medium=mean_of(recall[..., medium, :]),
        mar_large=mean_of(recall[..., large, :]),
        images=images,
        classes=class_rows(curves, classes),
    )

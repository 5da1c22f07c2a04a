"""``Detections`` -> AP of boxes, masks and key points as COCO defines it, in pixels of the original images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from pycocotools import mask as coco_mask

from lucid_core.data.types import Record, Rle
from lucid_core.evaluation.engines import Curves, Engine, Kind, curves
from lucid_core.evaluation.found import Collected, EvaluationData, Found
from lucid_core.evaluation.masks import rle_of
from lucid_core.evaluation.metrics import Metrics, summarize
from lucid_core.evaluation.original import Float64
from lucid_core.evaluation.point_metrics import PointMetrics, summarize_points
from lucid_core.oks import oks_sigmas

__all__ = ["CocoEvaluation"]

Rows = list[dict[str, Any]]
Part = TypeVar("Part")


class CocoEvaluation(Collected):
    """Collects detections batch by batch and scores the images it has seen.

    Ground truth is what the records hold, under ids of our own: repeated annotation ids and textual image ids in a file
    change nothing. Crowd regions absorb detections and are never missed; size buckets go by the annotated area. The
    result does not depend on the order of the images.

    Args:
        data: The data set the indices refer to.
        engine: ``"faster"`` (faster-coco-eval) or ``"pycocotools"``; equal to 1e-6.
        sigmas: Spread of each key point; ``None`` for those of :func:`~lucid_core.oks.oks_sigmas`.
    """

    def __init__(self, data: EvaluationData, engine: Engine = "faster", sigmas: Sequence[float] | None = None) -> None:
        super().__init__(data)
        self.engine: Engine = engine
        self.sigmas = sigmas
        self._labelled: dict[int, tuple[Rle, ...]] = {}

    def compute(self) -> Metrics:
        """Score the boxes of the images seen so far; all nan if there is none."""
        return summarize(self._curves("bbox"), len(self._found), self._classes("bbox"))

    def compute_masks(self) -> Metrics:
        """Score their masks, likewise; each image by its hundred best detections, of all classes together.

        Raises:
            ValueError: Labels or detections have no masks.
        """
        return summarize(self._curves("segm"), len(self._found), self._classes("segm"))

    def compute_points(self) -> PointMetrics:
        """Score their key points, by their spreads.

        Raises:
            ValueError: Labels or detections have no key points, or there are not as many spreads.
        """
        return summarize_points(self._curves("keypoints"), len(self._found), self._classes("keypoints"))

    def _curves(self, kind: Kind) -> Curves:
        if not self._found:
            count, bins = len(self.data.class_names), (3, 1) if kind == "keypoints" else (4, 3)
            return Curves(np.full((10, 101, count, *bins), -1.0), np.full((10, count, *bins), -1.0))
        truth, results, points = [], [], 0
        for image, found in self.detections():
            record = self.data.records[image]
            rows = _truth(record, kind)
            if kind == "segm":
                rows = [{**row, "segmentation": mask} for row, mask in zip(rows, self._masks(image), strict=True)]
            truth += [{"image_id": image, **row} for row in rows]
            results += [{"image_id": image, **row} for row in _results(record, found, kind)]
            points = 0 if found.points is None else found.points.shape[1]
        sigmas = oks_sigmas(points, self.sigmas) if kind == "keypoints" else ()
        return curves(self.engine, self._dataset(truth), self._dataset(results), kind, sigmas)

    def _masks(self, image: int) -> tuple[Rle, ...]:
        """Give the labelled masks of an image, rasterised once for all validations."""
        if image not in self._labelled:
            record = self.data.records[image]
            segments = _given(record.truth.segments, record, "labels", "masks")
            self._labelled[image] = tuple(rle_of(segment, record.width, record.height) for segment in segments)
        return self._labelled[image]

    def _classes(self, kind: Kind) -> list[tuple[str, int, int]]:
        """Name, images and objects of each class."""
        names = self.data.class_names
        truths = [self.data.records[image].truth for image, _ in self.detections()]
        wanted = [~truth.crowd for truth in truths]
        if kind == "keypoints":
            points = [truth.points for truth in truths]
            # An object without a labelled point is as a crowd.
            wanted = [
                own & (part[..., 2] > 0).any(1) for own, part in zip(wanted, points, strict=True) if part is not None
            ]
        per_image = [
            np.bincount(truth.labels[own], minlength=len(names)) for own, truth in zip(wanted, truths, strict=True)
        ]
        objects = np.array(per_image, dtype=np.int64).reshape(-1, len(names))
        return list(zip(names, (objects > 0).sum(axis=0).tolist(), objects.sum(axis=0).tolist(), strict=True))

    def _dataset(self, annotations: Rows) -> dict[str, Any]:
        for number, annotation in enumerate(annotations, start=1):
            annotation["id"] = number
        images = ((image, self.data.records[image]) for image in sorted(self._found))
        return {
            "images": [{"id": image, "width": record.width, "height": record.height} for image, record in images],
            "categories": [{"id": label, "name": name} for label, name in enumerate(self.data.class_names)],
            "annotations": annotations,
        }


def _truth(record: Record, kind: Kind) -> Rows:
    truth = record.truth
    rows: Rows = [
        {"category_id": label, "bbox": box, "area": area, "iscrowd": int(crowd)}
        for box, label, area, crowd in zip(
            _sides(truth.boxes).tolist(),
            truth.labels.tolist(),
            truth.areas.tolist(),
            truth.crowd.tolist(),
            strict=True,
        )
    ]
    if kind == "keypoints":
        points = _given(truth.points, record, "labels", "key points")
        for row, triplets in zip(rows, points, strict=True):
            row |= {"keypoints": triplets.ravel().tolist(), "num_keypoints": int((triplets[:, 2] > 0).sum())}
    return rows


def _results(record: Record, found: Found, kind: Kind) -> Iterator[dict[str, Any]]:
    # The area decides whether a wrong detection counts among small, medium or large ones.
    scored = [
        {"category_id": label, "score": score}
        for label, score in zip(found.labels.tolist(), found.scores.tolist(), strict=True)
    ]
    if kind == "bbox":
        for row, (x, y, width, height) in zip(scored, _sides(found.boxes).tolist(), strict=True):
            yield {**row, "bbox": [x, y, width, height], "area": width * height}
    elif kind == "segm":
        masks = list(_given(found.masks, record, "detections", "masks"))
        sizes = coco_mask.area(masks).tolist() if masks else []
        for row, mask, area in zip(scored, masks, sizes, strict=False):
            yield {**row, "segmentation": mask, "area": area}
    else:
        points = _given(found.points, record, "detections", "key points")
        for row, pairs in zip(scored, points, strict=True):
            triplets = np.insert(pairs, 2, 1, axis=1)
            yield {**row, "keypoints": triplets.ravel().tolist(), "area": float(np.ptp(pairs, axis=0).prod())}


def _given(part: Part | None, record: Record, whose: str, what: str) -> Part:
    if part is None:
        raise ValueError(f"{record.image}: its {whose} have no {what}; model and data must be of one task")
    return part


def _sides(boxes: Float64) -> Float64:
    """Corners -> corner and sides."""
    sized = boxes.copy()
    sized[:, 2:4] -= sized[:, :2]
    return sized

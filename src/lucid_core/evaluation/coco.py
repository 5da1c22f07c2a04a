"""``Detections`` -> AP: box evaluation as COCO defines it, in pixels of the original images."""

from __future__ import annotations

from typing import Any

import numpy as np

from lucid_core.evaluation.engines import Curves, Engine, curves
from lucid_core.evaluation.found import Collected, EvaluationData
from lucid_core.evaluation.metrics import Metrics, summarize
from lucid_core.evaluation.original import Float64

__all__ = ["CocoEvaluation"]


class CocoEvaluation(Collected):
    """Collects detections batch by batch and scores the images it has seen.

    Ground truth is what the records hold, under ids of our own: repeated annotation ids and textual image ids in a file
    change nothing. Crowd regions absorb detections and are never missed; size buckets go by the annotated area. The
    result does not depend on the order of the images.

    Args:
        data: The data set the indices refer to.
        engine: ``"faster"`` (faster-coco-eval) or ``"pycocotools"``; equal to 1e-6.
    """

    def __init__(self, data: EvaluationData, engine: Engine = "faster") -> None:
        super().__init__(data)
        self.engine: Engine = engine

    def compute(self) -> Metrics:
        """Score the images seen so far; all nan if there is none."""
        images = sorted(self._found)
        names = self.data.class_names
        found = (
            curves(self.engine, self._dataset(self._truth(images)), self._dataset(self._results()))
            if images
            else Curves(np.full((10, 101, len(names), 4, 3), -1.0), np.full((10, len(names), 4, 3), -1.0))
        )
        truths = [self.data.records[image].truth for image in images]
        per_image = [np.bincount(truth.labels[~truth.crowd], minlength=len(names)) for truth in truths]
        objects = np.array(per_image, dtype=np.int64).reshape(-1, len(names))
        classes = zip(names, (objects > 0).sum(axis=0).tolist(), objects.sum(axis=0).tolist(), strict=True)
        return summarize(found, len(images), list(classes))

    def _dataset(self, annotations: list[dict[str, Any]]) -> dict[str, Any]:
        for number, annotation in enumerate(annotations, start=1):
            annotation["id"] = number
        return {
            "images": [{"id": image} for image in sorted(self._found)],
            "categories": [{"id": label, "name": name} for label, name in enumerate(self.data.class_names)],
            "annotations": annotations,
        }

    def _truth(self, images: list[int]) -> list[dict[str, Any]]:
        return [
            {"image_id": image, "category_id": label, "bbox": box, "area": area, "iscrowd": int(crowd)}
            for image in images
            for truth in [self.data.records[image].truth]
            for box, label, area, crowd in zip(
                _sides(truth.boxes).tolist(),
                truth.labels.tolist(),
                truth.areas.tolist(),
                truth.crowd.tolist(),
                strict=True,
            )
        ]

    def _results(self) -> list[dict[str, Any]]:
        return [
            {
                "image_id": image,
                "category_id": label,
                "bbox": [x, y, width, height],
                "area": width * height,
                "score": score,
            }
            for image, found in self.detections()
            for (x, y, width, height), score, label in zip(
                _sides(found.boxes).tolist(), found.scores.tolist(), found.labels.tolist(), strict=True
            )
        ]


def _sides(boxes: Float64) -> Float64:
    """Corners -> corner and sides."""
    sized = boxes.copy()
    sized[:, 2:4] -= sized[:, :2]
    return sized

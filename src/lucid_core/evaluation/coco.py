"""``Detections`` -> AP: box evaluation as COCO defines it, in pixels of the original images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from lucid_core.data.types import Record
from lucid_core.evaluation.engines import Curves, Engine, curves
from lucid_core.evaluation.metrics import Metrics, summarize
from lucid_core.evaluation.original import Float64, original_boxes
from lucid_core.types import Detections

__all__ = ["CocoEvaluation", "EvaluationData", "EvaluationState"]


class EvaluationData(Protocol):
    """What evaluation asks of a data set."""

    @property
    def records(self) -> Sequence[Record]:
        """Its images, with their ground truth."""

    @property
    def class_names(self) -> Sequence[str]:
        """Names in label order."""

    @property
    def category_ids(self) -> Sequence[int]:
        """Ids of the annotation file in label order."""


class EvaluationState(NamedTuple):
    """What an evaluation has collected, as plain arrays.

    Attributes:
        images: ``(n,)`` int64, indices of the records that were seen.
        counts: ``(n,)`` int64, detections of each.
        rows: ``(sum of counts, 6)`` float64, ``x1, y1, x2, y2, score, label`` in pixels of the original image.
    """

    images: NDArray[np.int64]
    counts: NDArray[np.int64]
    rows: Float64


class CocoEvaluation:
    """Collects detections batch by batch and scores the images it has seen.

    Ground truth is what the records hold, under ids of our own: repeated annotation ids and textual image ids in a file
    change nothing. Crowd regions absorb detections and are never missed; size buckets go by the annotated area. An
    image counts once, however often a padded sampler shows it, and an image never shown does not count at all. The
    result does not depend on the order of the images.

    Args:
        data: The data set the indices refer to.
        engine: ``"faster"`` (faster-coco-eval) or ``"pycocotools"``; equal to 1e-6.
    """

    def __init__(self, data: EvaluationData, engine: Engine = "faster") -> None:
        self.data = data
        self.engine: Engine = engine
        self._rows: dict[int, Float64] = {}

    def reset(self) -> None:
        """Forget every image."""
        self._rows.clear()

    def update(self, detections: Detections, index: Tensor, letterbox: Tensor) -> None:
        """Add a batch. Rows with score 0 hold nothing and are left out.

        Args:
            detections: ``B`` images in canvas pixels, on any device.
            index: ``(B,)`` int64, the record of each image.
            letterbox: ``(B, 3)`` float64, ``ratio, pad_x, pad_y`` of each image.
        """
        boxes, scores, labels = (
            field.detach().cpu().numpy().astype(np.float64)
            for field in (detections.boxes, detections.scores, detections.labels)
        )
        frames = letterbox.tolist()
        for row, image in enumerate(index.tolist()):
            record = self.data.records[image]
            held = scores[row] > 0
            original = original_boxes(boxes[row, held], frames[row], record.width, record.height)
            self._rows.setdefault(image, np.column_stack([original, scores[row, held], labels[row, held]]))

    def state(self) -> EvaluationState:
        """Everything collected so far, for another process to :meth:`merge`."""
        rows = list(self._rows.values())
        return EvaluationState(
            images=np.array(list(self._rows), dtype=np.int64),
            counts=np.array([len(part) for part in rows], dtype=np.int64),
            rows=np.concatenate([np.empty((0, 6)), *rows]),
        )

    def merge(self, states: Iterable[EvaluationState]) -> None:
        """Add what others collected. Of an image that several saw, the first counts."""
        for images, counts, rows in states:
            parts = np.split(rows, np.cumsum(counts)[:-1])
            for image, part in zip(images.tolist(), parts, strict=False):
                self._rows.setdefault(image, part)

    def gather(self) -> None:
        """Give every process of the default group what all of them collected; nothing to do without a group."""
        if not (dist.is_available() and dist.is_initialized()):
            return
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.state())
        self.reset()  # in rank order, own part included, so that all processes settle duplicates alike
        self.merge(states)

    def detections(self) -> Iterator[tuple[int, Float64]]:
        """Index and rows (see :class:`EvaluationState`) of each seen image, by rising index."""
        for image in sorted(self._rows):
            yield image, self._rows[image]

    def compute(self) -> Metrics:
        """Score the images seen so far; all nan if there is none."""
        images = sorted(self._rows)
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
            "images": [{"id": image} for image in sorted(self._rows)],
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
                "category_id": int(label),
                "bbox": [x, y, width, height],
                "area": width * height,
                "score": score,
            }
            for image, rows in self.detections()
            for x, y, width, height, score, label in _sides(rows).tolist()
        ]


def _sides(rows: Float64) -> Float64:
    """Corners -> corner and sides, in the first four columns."""
    sized = rows.copy()
    sized[:, 2:4] -= sized[:, :2]
    return sized

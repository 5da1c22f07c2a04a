"""What was detected in each image of a data set, gathered batch by batch and process by process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from lucid_core.data.letterbox import Letterbox
from lucid_core.data.points import PointTable
from lucid_core.data.types import Record, Rle
from lucid_core.evaluation.masks import masks_in
from lucid_core.evaluation.original import Float64, original_boxes, original_points, original_rboxes
from lucid_core.types import Detections

__all__ = ["Collected", "EvaluationData", "Found", "found_in", "on_host"]


#: Masks of an image that are evaluated, at most: those of the best detections, as is usual (Mask R-CNN, 1703.06870).
#: COCO would take so many of each class. With many classes these are all detections, three times the time and memory,
#: and every process holds the masks of all images; with one class, both are the same.
MASKS = 100


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

    @property
    def points(self) -> PointTable | None:
        """The key points of its objects, where they are the task."""


class Found(NamedTuple):
    """The detections of one image, best first, in pixels of the original.

    Attributes:
        boxes: ``(n, 4)`` float64, ``x1, y1, x2, y2``, within the image.
        scores: ``(n,)`` float64, in ``(0, 1]``.
        labels: ``(n,)`` int64.
        masks: Of the task ``segment``: of as many of the first detections as were asked for, in run lengths.
        rboxes: Of the task ``obb``: ``(n, 5)`` float64, oriented boxes; they may lead out of the image.
        points: Of the task ``keypoints``: ``(n, K, 2)`` float64; they may lie outside of the image.
    """

    boxes: Float64
    scores: Float64
    labels: NDArray[np.int64]
    masks: tuple[Rle, ...] | None = None
    rboxes: Float64 | None = None
    points: Float64 | None = None


def on_host(detections: Detections) -> Detections:
    """Bring a batch to the host, without gradient."""
    return Detections(*(None if field is None else field.detach().cpu() for field in detections))  # type: ignore[arg-type]


def found_in(
    detections: Detections,
    image: int,
    rows: NDArray[np.intp],
    frame: Letterbox,
    width: int,
    height: int,
    masks: int | None = None,
) -> Found:
    """Take one image out of a batch, in its own coordinates.

    Args:
        detections: On the host.
        image: Row of the batch.
        rows: Which detections of the image.
        frame: Its letterbox.
        width: Pixels of the original.
        height: Pixels of the original.
        masks: Detections to assemble masks of, the first ones; all unless given.
    """

    def take(field: Tensor) -> NDArray[np.float64]:
        return field[image].numpy()[rows].astype(np.float64)

    boxes = original_boxes(take(detections.boxes), frame, width, height)
    assembled = None
    if detections.coefficients is not None and detections.prototypes is not None:
        factors = detections.coefficients[image].numpy()[rows[:masks]]
        prototypes = detections.prototypes[image].numpy()
        assembled = tuple(masks_in(factors, prototypes, boxes[:masks], frame, width, height))
    rboxes, points = detections.rboxes, detections.points
    return Found(
        boxes,
        take(detections.scores),
        detections.labels[image].numpy()[rows].astype(np.int64),
        assembled,
        None if rboxes is None else original_rboxes(take(rboxes), frame),
        None if points is None else original_points(take(points), frame),
    )


class Collected:
    """Collects detections batch by batch.

    An image counts once, however often a padded sampler shows it, and an image never shown does not count at all. Masks
    are kept of the best hundred detections of an image.

    Args:
        data: The data set the indices refer to.
    """

    def __init__(self, data: EvaluationData) -> None:
        self.data = data
        self._found: dict[int, Found] = {}

    def reset(self) -> None:
        """Forget every image."""
        self._found.clear()

    def update(self, detections: Detections, index: Tensor, letterbox: Tensor) -> None:
        """Add a batch. Rows with score 0 hold nothing and are left out.

        Args:
            detections: ``B`` images in canvas pixels, on any device.
            index: ``(B,)`` int64, the record of each image.
            letterbox: ``(B, 3)`` float64, ``ratio, pad_x, pad_y`` of each image.
        """
        held = on_host(detections)
        frames = letterbox.tolist()
        for row, image in enumerate(index.tolist()):
            if image not in self._found:
                record = self.data.records[image]
                rows = np.flatnonzero(held.scores[row].numpy() > 0)
                self._found[image] = found_in(held, row, rows, frames[row], record.width, record.height, MASKS)

    def state(self) -> dict[int, Found]:
        """Everything collected so far, by image, for another process to :meth:`merge`."""
        return dict(self._found)

    def merge(self, states: Iterable[Mapping[int, Found]]) -> None:
        """Add what others collected. Of an image that several saw, the first counts."""
        for state in states:
            self._found = {**state, **self._found}

    def gather(self) -> None:
        """Give every process of the default group what all of them collected; nothing to do without a group."""
        if not (dist.is_available() and dist.is_initialized()):
            return
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, self.state())
        self.reset()  # in rank order, own part included, so that all processes settle duplicates alike
        self.merge(states)

    def detections(self) -> Iterator[tuple[int, Found]]:
        """Index and detections of each seen image, by rising index."""
        for image in sorted(self._found):
            yield image, self._found[image]

"""From the samples of a batch to tensors of one fixed structure, checked on the way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from lucid_core.data.masks import rasterise
from lucid_core.data.types import DETECT, DataError, Record, Sample, Wanted
from lucid_core.types import CELL, Batch, Targets

__all__ = [
    "check_boxes",
    "check_image",
    "check_labels",
    "check_points",
    "check_polygons",
    "check_rboxes",
    "collate",
    "room_for",
]


def check_image(sample: Sample, size: int, file: Path) -> None:
    """Make sure that the picture is ``(size, size, 3)`` uint8."""
    if sample.image.shape != (size, size, 3) or sample.image.dtype != np.uint8:
        raise DataError(
            f"{file}: the sample made from it is {sample.image.dtype} {sample.image.shape}, not uint8 "
            f"({size}, {size}, 3)"
        )


def check_boxes(sample: Sample, file: Path) -> None:
    """Make sure that every box is finite and has no negative side."""
    boxes = sample.instances.boxes
    bad = ~(np.isfinite(boxes).all(1) & (boxes[:, 2:] >= boxes[:, :2]).all(1))
    _refuse(bad, boxes, "box {} of the sample made from it is not finite or has a negative side", file)


def check_labels(sample: Sample, classes: int, file: Path) -> None:
    """Make sure that every label lies in ``[0, classes)``."""
    labels = sample.instances.labels
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        raise DataError(
            f"{file}: label {int(labels[bad.argmax()])} of the sample made from it is not in [0, {classes}); correct "
            f"the labels of that image or the list of classes"
        )


def check_polygons(sample: Sample, file: Path) -> None:
    """Make sure that every object has a polygon, and that its points are finite."""
    polygons = sample.instances.polygons
    bad = np.array([not rings or not all(np.isfinite(ring).all() for ring in rings) for rings in polygons], np.bool_)
    _refuse(bad, sample.instances.boxes, "the object in box {} of the sample made from it has no finite polygon", file)


def check_rboxes(sample: Sample, file: Path) -> None:
    """Make sure that every object has an oriented box: finite, the first side longest, both positive."""
    boxes, rboxes = sample.instances.boxes, sample.instances.rboxes
    if rboxes is None or rboxes.shape != (len(boxes), 5):
        none = np.ones(len(boxes), np.bool_)
        _refuse(none, boxes, "the object in box {} of the sample made from it has no oriented box", file)
        return
    unfit = ~(np.isfinite(rboxes).all(1) & (rboxes[:, 2] >= rboxes[:, 3]) & (rboxes[:, 3] > 0))
    _refuse(
        unfit, rboxes, "oriented box {} of the sample made from it is not finite or its sides are not in order", file
    )


def check_points(sample: Sample, count: int, file: Path) -> None:
    """Make sure that every object has ``count`` key points, finite where their visibility is 1 or 2, and else 0."""
    boxes, points, visibility = sample.instances.boxes, sample.instances.points, sample.instances.visibility
    shape = len(boxes), count
    if points is None or visibility is None or points.shape != (*shape, 2) or visibility.shape != shape:
        bad = np.ones(len(boxes), np.bool_)
        _refuse(bad, boxes, f"the object in box {{}} of the sample made from it has not {count} key points", file)
        return
    lost = (visibility > 0) & ~np.isfinite(points).all(2)
    unfit = (lost | (visibility < 0) | (visibility > 2)).any(1)
    _refuse(unfit, boxes, "a key point of the object in box {} of the sample made from it cannot be used", file)


def _refuse(bad: Any, rows: NDArray[Any], seen: str, file: Path) -> None:
    if bad.any():
        row = rows[int(bad.argmax())].tolist()
        raise DataError(f"{file}: {seen.format(row)}; correct the labels of that image or leave it out")


def room_for(objects: int) -> int:
    """Return how many rows a batch reserves per image for that many objects: a power of two, at least 1."""
    return 1 << (max(1, objects) - 1).bit_length()


def collate(samples: Sequence[Sample], records: Sequence[Record], classes: int, wanted: Wanted = DETECT) -> Batch:
    """Pack samples into a batch on the host.

    Args:
        samples: ``B`` samples of one size.
        records: The split, to name the file of a bad sample.
        classes: ``C``.
        wanted: Which labels the batch has; their tensors are there also where no image has an object.

    Returns:
        The batch, with room for the next power of two of objects per image.

    Raises:
        DataError: A sample fails a check.
    """
    size = len(samples[0].image)
    shape = len(samples), room_for(max(len(sample.instances) for sample in samples))
    images = np.empty((len(samples), 3, size, size), np.uint8)
    arrays: dict[str, NDArray[Any]] = {
        "boxes": np.zeros((*shape, 4), np.float32),
        "labels": np.zeros(shape, np.int64),
        "valid": np.zeros(shape, np.bool_),
    }
    if wanted.task == "segment":
        arrays["masks"] = np.zeros((*shape, size // CELL, size // CELL), np.bool_)
    elif wanted.task == "obb":
        arrays["rboxes"] = np.zeros((*shape, 5), np.float32)
    elif wanted.task == "keypoints":
        arrays["points"] = np.zeros((*shape, wanted.points, 2), np.float32)
        arrays["visibility"] = np.zeros((*shape, wanted.points), np.int64)
    for row, sample in enumerate(samples):
        file = records[sample.index].image
        check_image(sample, size, file)
        check_boxes(sample, file)
        check_labels(sample, classes, file)
        if wanted.task == "segment":
            check_polygons(sample, file)
        elif wanted.task == "obb":
            check_rboxes(sample, file)
        elif wanted.task == "keypoints":
            check_points(sample, wanted.points, file)
        # Writes the three planes in place, an order of magnitude faster than a transposing copy.
        cv2.split(sample.image, list(images[row]))
        for name, values in _labels(sample, wanted, size).items():
            arrays[name][row, : len(sample.instances)] = values
    return Batch(
        images=torch.from_numpy(images),
        targets=Targets(**{name: torch.from_numpy(array) for name, array in arrays.items()}),
        records=torch.tensor([sample.index for sample in samples], dtype=torch.int64),
        letterbox=torch.tensor([sample.letterbox for sample in samples], dtype=torch.float64),
    )


def _labels(sample: Sample, wanted: Wanted, size: int) -> dict[str, Any]:
    """Give the rows of one image, by the name of the target."""
    instances = sample.instances
    if not len(instances):
        return {}
    rows: dict[str, Any] = {"boxes": instances.boxes, "labels": instances.labels, "valid": True}
    if wanted.task == "segment":
        rows["masks"] = rasterise(instances.polygons, size, pasted=sample.pasted)
    elif wanted.task == "obb":
        rows["rboxes"] = instances.rboxes
    elif wanted.task == "keypoints":
        rows |= {"points": instances.points, "visibility": instances.visibility}
    return rows

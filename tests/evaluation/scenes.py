"""Random scenes to evaluate: records in memory, and detections that are right to a chosen degree."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lucid_core.data.points import PointTable
from lucid_core.data.types import Instances, Record, Truth
from lucid_core.types import Detections


@dataclass(frozen=True)
class Scene:
    records: list[Record]
    class_names: list[str]
    category_ids: list[int]
    points: PointTable | None = None


def record(
    boxes: object,
    labels: object,
    *,
    crowd: object = None,
    areas: object = None,
    image_id: int | str = 0,
    width: int = 640,
    height: int = 480,
) -> Record:
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    count = len(corners)
    sides = corners[:, 2:] - corners[:, :2]
    truth = Truth(
        boxes=corners,
        labels=np.asarray(labels, dtype=np.int64).reshape(count),
        areas=sides.prod(axis=1) if areas is None else np.asarray(areas, dtype=np.float64),
        crowd=np.zeros(count, dtype=bool) if crowd is None else np.asarray(crowd, dtype=bool),
    )
    nothing = Instances(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), ())
    return Record(Path(f"{image_id}.jpg"), image_id, width, height, nothing, truth)


def scene(records: list[Record], classes: int = 2) -> Scene:
    return Scene(records, [f"class {k}" for k in range(classes)], [10 * (k + 1) for k in range(classes)])


def random_scene(seed: int, images: int = 12, classes: int = 5, crowds: bool = True) -> Scene:
    """Every third image is empty, and the last class has no objects."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(images):
        width, height = (int(side) for side in rng.integers(200, 900, size=2))
        count = 0 if number % 3 == 2 else int(rng.integers(1, 25))
        corner = rng.uniform(0, 0.8, size=(count, 2)) * (width, height)
        sides = np.minimum(rng.uniform(4, 260, size=(count, 2)), (width, height) - corner)
        crowd = rng.random(count) < (0.15 if crowds else 0.0)
        records.append(
            record(
                np.concatenate([corner, corner + sides], axis=1),
                rng.integers(0, classes - 1, size=count),
                crowd=crowd,
                areas=sides.prod(axis=1) * rng.uniform(0.5, 1.0, size=count),
                image_id=f"{number:04d}",
                width=width,
                height=height,
            )
        )
    return scene(records, classes)


def letterbox(shown: Record, canvas: int) -> tuple[float, float, float]:
    ratio = min(canvas / shown.height, canvas / shown.width)
    width, height = max(1, round(shown.width * ratio)), max(1, round(shown.height * ratio))
    return ratio, float((canvas - width) // 2), float((canvas - height) // 2)


def as_batch(
    data: Scene, found: list[np.ndarray], index: list[int], canvas: int = 640, rows: int = 300
) -> tuple[Detections, torch.Tensor, torch.Tensor]:
    """Put rows ``x1, y1, x2, y2, score, label`` in original pixels onto the canvas, best first, padded."""
    boxes, scores = torch.zeros(len(index), rows, 4), torch.zeros(len(index), rows)
    labels, anchors = torch.zeros(len(index), rows, dtype=torch.int64), torch.full((len(index), rows), -1)
    frames = [letterbox(data.records[image], canvas) for image in index]
    for row, (image, (ratio, pad_x, pad_y)) in enumerate(zip(index, frames, strict=True)):
        best = found[image][np.argsort(-found[image][:, 4], kind="stable")][:rows]
        count = len(best)
        moved = best[:, :4] * ratio + np.array([pad_x, pad_y, pad_x, pad_y])
        boxes[row, :count] = torch.from_numpy(moved).float()
        scores[row, :count] = torch.from_numpy(best[:, 4]).float()
        labels[row, :count] = torch.from_numpy(best[:, 5]).long()
        anchors[row, :count] = torch.arange(count)
    return (Detections(boxes, scores, labels, anchors), torch.tensor(index), torch.tensor(frames, dtype=torch.float64))


def perfect(data: Scene) -> list[np.ndarray]:
    """The ground truth as predictions, crowds left out."""
    return [
        np.column_stack([shown.truth.boxes, np.linspace(0.9, 0.6, len(shown.truth.boxes)), shown.truth.labels])[
            ~shown.truth.crowd
        ]
        for shown in data.records
    ]


def noisy(data: Scene, seed: int, extra: int = 40) -> list[np.ndarray]:
    """Jittered truth with some wrong labels, doubles and inventions; scores with ties."""
    rng = np.random.default_rng(seed)
    found = []
    for shown in data.records:
        truth = np.column_stack([shown.truth.boxes, np.zeros(len(shown.truth.boxes)), shown.truth.labels])
        truth = np.repeat(truth, rng.integers(0, 4, size=len(truth)), axis=0)
        truth[:, :4] += rng.normal(0, 6, size=(len(truth), 4))
        wrong = rng.random(len(truth)) < 0.1
        truth[wrong, 5] = rng.integers(0, len(data.class_names), size=int(wrong.sum()))
        corner = rng.uniform(0, 0.8, size=(extra, 2)) * (shown.width, shown.height)
        made_up = np.column_stack(
            [
                corner,
                corner + rng.uniform(3, 150, size=(extra, 2)),
                np.zeros(extra),
                rng.integers(0, len(data.class_names), size=extra),
            ]
        )
        rows = np.concatenate([truth, made_up])
        rows[:, 4] = rng.integers(1, 60, size=len(rows)) / 64
        found.append(rows)
    return found

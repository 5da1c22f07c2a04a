"""Records and pictures in memory, for tests of what comes after decoding."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.plan import EpochPlan
from lucid_core.data.records import make_truth
from lucid_core.data.source import scaled_size
from lucid_core.data.types import Instances, Record, Sample

SIZE = 64
CLASSES = 3


def rectangle(x1: float, y1: float, x2: float, y2: float) -> NDArray[np.float32]:
    return np.array([[x1, y1], [x2, y1], [x2, y2], [x1, y2]], np.float32)


def make_instances(boxes: NDArray[np.float32], outlined: bool = True) -> Instances:
    boxes = np.asarray(boxes, np.float32).reshape(-1, 4)
    rings = tuple((rectangle(*box),) if outlined else () for box in boxes.tolist())
    return Instances(boxes, np.arange(len(boxes)) % CLASSES, rings)


def make_record(index: int, width: int, height: int, instances: Instances) -> Record:
    return Record(Path(f"{index}.jpg"), index, width, height, instances, make_truth([], [], [], []))


def make_records(
    count: int, sides: tuple[float, float] = (0.1, 0.4), objects: int = 5, outlined: bool = True
) -> tuple[Record, ...]:
    """Pictures of several shapes; object sides are ``sides`` times those of the picture. Every fifth has none."""
    rng = np.random.default_rng(7)
    records = []
    for index in range(count):
        width, height = [(640, 480), (480, 640), (500, 500), (640, 427)][index % 4]
        number = 0 if index % 5 == 4 else objects
        extent = rng.uniform(*sides, (number, 2)) * (width, height)
        corner = rng.random((number, 2)) * ((width, height) - extent)
        boxes = np.concatenate([corner, corner + extent], 1).astype(np.float32)
        records.append(make_record(index, width, height, make_instances(boxes, outlined)))
    return tuple(records)


class PaintedSource:
    """Noise that depends on the record alone, read-only, as the real source gives it."""

    def __init__(self, records: tuple[Record, ...], size: int = SIZE) -> None:
        self.records = records
        self.size = size
        self.reads = 0

    def source(self, index: int) -> NDArray[np.uint8]:
        self.reads += 1
        columns, rows = scaled_size(self.records[index].width, self.records[index].height, self.size)
        pixels = np.random.default_rng(index).integers(0, 256, (rows, columns, 3), np.uint8)
        pixels.setflags(write=False)
        return pixels


def make_augmenter(
    records: tuple[Record, ...],
    recipe: Recipe | None = None,
    epochs: int | None = None,
    seed: int = 0,
    size: int = SIZE,
) -> Augmenter:
    plan = EpochPlan(len(records), seed, epochs, close_mosaic=1)
    return Augmenter(PaintedSource(records, size), records, plan, size, recipe or Recipe(), seed)


def digest(sample: Sample) -> str:
    parts = sample.image, sample.instances.boxes, sample.instances.labels, np.int64(sample.index)
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

"""What goes into training and what comes out of validation, as grids of pictures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.augment import Augmenter
from lucid_core.data.loader import TrainLoader
from lucid_core.data.source import SourceReader
from lucid_core.data.types import Sample
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.pictures.grid import SIDE, Objects, grid, tile

__all__ = ["LOWEST_SCORE", "first_samples", "training_batch", "validation"]

#: Detections with a lower score are not drawn.
LOWEST_SCORE = 0.25
COLUMNS = 4


def first_samples(loader: TrainLoader, epoch: int, limit: int) -> list[Sample]:
    """Make the samples of the batch that the loader delivers next, without taking it from the loader.

    A sample is a function of its key, so making it twice changes nothing. The loader's own augmenter and what it keeps
    are left alone. Files are read through ``source`` and ``decode``, seams that a cache may take: the bytes are equal.

    Args:
        loader: Not iterated yet.
        epoch: The epoch it is about to deliver.
        limit: Samples to make, at most.
    """
    progress = loader.progress()
    start = progress["batches"] if progress["epoch"] == epoch else 0
    keys = next(loader.batch_sampler.batches(epoch, start), [])
    made = loader.augmenter
    fresh = Augmenter(made.source.inner, made.records, made.plan, made.size, made.recipe, made.seed)
    return [fresh.sample(key) for key in keys[:limit]]


def training_batch(loader: TrainLoader, epoch: int, names: Sequence[str], limit: int) -> NDArray[np.uint8] | None:
    """Draw the next batch as the network will see it: augmented, with its labels, titled by file.

    Args:
        loader: Not iterated yet.
        epoch: The epoch it is about to deliver.
        names: Names of the classes.
        limit: Samples to draw, at most.

    Returns:
        The picture; None where there is no batch.
    """
    tiles = []
    for sample in first_samples(loader, epoch, limit):
        labels = sample.instances.labels.tolist()
        objects = Objects(sample.instances.boxes, labels, [names[label] for label in labels])
        tiles.append(tile(sample.image, objects, loader.augmenter.records[sample.index].image.name))
    return grid(tiles, COLUMNS) if tiles else None


def validation(evaluation: CocoEvaluation, limit: int) -> NDArray[np.uint8] | None:
    """Draw images with their labels, and beside each of them what was detected.

    Args:
        evaluation: Has seen the images. The same ones are drawn as long as it sees the same: evenly spread over those
            that have objects.
        limit: Images to draw, at most.

    Returns:
        The picture; None where no image was seen.
    """
    records, names = evaluation.data.records, evaluation.data.class_names
    found = dict(evaluation.detections())
    labelled = [index for index in found if len(records[index].truth.labels)] or list(found)
    if not labelled:
        return None
    chosen = sorted({labelled[place] for place in np.linspace(0, len(labelled) - 1, limit).round().astype(int)})
    source = SourceReader(records, SIDE)
    tiles = []
    for index in chosen:
        record, seen = records[index], found[index]
        image, ratio = source.source(index), SIDE / max(records[index].width, records[index].height)
        truth = [
            (int(label), bool(crowd)) for label, crowd in zip(record.truth.labels, record.truth.crowd, strict=True)
        ]
        captions = [names[label] + " (crowd)" * crowd for label, crowd in truth]
        labels = Objects(record.truth.boxes * ratio, [label for label, _ in truth], captions)
        count = int((seen.scores >= LOWEST_SCORE).sum())
        classes = seen.labels[:count].tolist()
        scored = [f"{names[label]} {score:.2f}" for label, score in zip(classes, seen.scores, strict=False)]
        tiles.append(tile(image, labels, f"labels: {record.image.name}"))
        tiles.append(
            tile(image, Objects(seen.boxes[:count] * ratio, classes, scored), f"detected, score from {LOWEST_SCORE}")
        )
    return grid(tiles, COLUMNS)

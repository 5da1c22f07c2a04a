"""What goes into training and what comes out of validation, as grids of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.geometry import corners
from lucid_core.data.loader import TrainLoader
from lucid_core.data.masks import rasterise
from lucid_core.data.points import Pairs, PointTable
from lucid_core.data.source import SourceReader
from lucid_core.data.types import Record, Sample, Task
from lucid_core.evaluation.found import Collected
from lucid_core.evaluation.masks import rle_of
from lucid_core.pictures.grid import SIDE, grid, tile
from lucid_core.pictures.objects import Objects, links_of, unpacked

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
    fresh = loader.augmenter.fresh()
    return [fresh.sample(key) for key in keys[:limit]]


def training_batch(
    loader: TrainLoader,
    epoch: int,
    names: Sequence[str],
    limit: int,
    task: Task = "detect",
    points: PointTable | None = None,
) -> NDArray[np.uint8] | None:
    """Draw the next batch as the network will see it: augmented, with its labels, titled by file.

    Args:
        loader: Not iterated yet.
        epoch: The epoch it is about to deliver.
        names: Names of the classes.
        limit: Samples to draw, at most.
        task: What is learnt, and so drawn.
        points: The key points of the objects.

    Returns:
        The picture; None where there is no batch.
    """
    tiles = []
    for sample in first_samples(loader, epoch, limit):
        shown = sample.instances
        labels = shown.labels.tolist()
        # Other tasks have polygons too, which only move their boxes.
        polygons = shown.polygons if task == "segment" else ()
        objects = Objects(
            shown.boxes,
            labels,
            [names[label] for label in labels],
            iter(rasterise(polygons, len(sample.image), 1, sample.pasted if polygons else ())),
            None if shown.rboxes is None else corners(shown.rboxes),
            None if shown.points is None else _labelled(shown.points, shown.visibility),
            links_of(points),
        )
        tiles.append(tile(sample.image, objects, loader.augmenter.records[sample.index].image.name))
    return grid(tiles, COLUMNS) if tiles else None


def validation(evaluation: Collected, limit: int) -> NDArray[np.uint8] | None:
    """Draw images with their labels, and beside each of them what was detected.

    Args:
        evaluation: Has seen the images. The same ones are drawn as long as it sees the same: evenly spread over those
            that have objects.
        limit: Images to draw, at most.

    Returns:
        The picture; None where no image was seen.
    """
    records, names = evaluation.data.records, evaluation.data.class_names
    found, links = dict(evaluation.detections()), links_of(evaluation.data.points)
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
        stated = _labels(record, [label for label, _ in truth], captions, links)
        count = int((seen.scores >= LOWEST_SCORE).sum())
        classes = seen.labels[:count].tolist()
        scored = [f"{names[label]} {score:.2f}" for label, score in zip(classes, seen.scores, strict=False)]
        tiles.append(tile(image, stated.scaled(ratio), f"labels: {record.image.name}"))
        quads = None if seen.rboxes is None else corners(seen.rboxes[:count])
        detected = Objects(
            seen.boxes[:count],
            classes,
            scored,
            unpacked(seen.masks[:count] if seen.masks is not None else ()),
            quads,
            None if seen.points is None else seen.points[:count],
            links,
        )
        tiles.append(tile(image, detected.scaled(ratio), f"detected, score from {LOWEST_SCORE}"))
    return grid(tiles, COLUMNS)


def _labels(record: Record, labels: Sequence[int], captions: Sequence[str], links: Pairs) -> Objects:
    truth = record.truth
    return Objects(
        truth.boxes,
        labels,
        captions,
        unpacked(rle_of(segment, record.width, record.height) for segment in truth.segments or ()),
        truth.quads,
        None if truth.points is None else _labelled(truth.points[..., :2], truth.points[..., 2]),
        links,
    )


def _labelled(points: NDArray[np.floating], visibility: NDArray[Any] | None) -> NDArray[np.floating]:
    """The points, and nan for those without a label."""
    return points if visibility is None else np.where(visibility[..., None] > 0, points, np.nan)

"""``Detections`` of oriented boxes -> AP, for tiles as they are and for the pictures that they were cut from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.types import Record
from lucid_core.evaluation.found import Collected, Found
from lucid_core.evaluation.oriented_metrics import OrientedMetrics
from lucid_core.evaluation.original import Float64
from lucid_core.evaluation.voc import Unit, measure

__all__ = ["OrientedEvaluation", "cores"]

Bounds = tuple[float, float, float, float]


class OrientedEvaluation(Collected):
    """Collects detections batch by batch and scores the images it has seen.

    Ground truth is what the records hold: corners as the annotation states them, rectangles or not. Difficult objects
    and crowd regions need not be found. See :func:`lucid_core.evaluation.voc.measure` for the rule.
    """

    @property
    def tiled(self) -> bool:
        """Whether any image of the data set was cut from a larger one."""
        return any(record.tile is not None for record in self.data.records)

    def compute(self) -> OrientedMetrics:
        """Score the images seen so far, each for itself; all nan if none has an object.

        Raises:
            ValueError: Labels or detections are not of oriented boxes.
        """
        units = [_unit(self.data.records[image], found) for image, found in self.detections()]
        return measure(units, self.data.class_names)

    def compute_merged(self) -> OrientedMetrics:
        """Score whole pictures, put together from the tiles seen so far.

        Where tiles overlap, the middle of the overlap divides them: objects and detections count in the tile on whose
        side their centre is. None is compared with another, so nothing is suppressed that the network said once.

        Raises:
            ValueError: Labels or detections are not of oriented boxes.
        """
        owned = cores(self.data.records)
        pictures: dict[str, list[Unit]] = {}
        for image, found in self.detections():
            record = self.data.records[image]
            unit = _unit(record, found)
            # A picture that was not cut is one of its own.
            name = f"record {image}"
            if record.tile is not None:
                name = f"source {record.tile.source}"
                unit = _within(unit, record.tile.window[:2], owned[image])
            pictures.setdefault(name, []).append(unit)
        units = [Unit(*map(np.concatenate, zip(*parts, strict=True))) for parts in pictures.values()]
        return measure(units, self.data.class_names)


class _Grid(NamedTuple):
    """The different windows of one picture along both sides."""

    columns: set[tuple[int, int]]
    rows: set[tuple[int, int]]


def cores(records: Sequence[Record]) -> dict[int, Bounds]:
    """Divide pictures among their tiles.

    Args:
        records: All tiles of the pictures; those that are none are left out.

    Returns:
        By record, ``x1, y1, x2, y2`` in pixels of the picture: the middles of the overlaps with its neighbours, and no
        bound where it has none. They cover every picture once.
    """
    grids: dict[str, _Grid] = {}
    for tile in (record.tile for record in records if record.tile is not None):
        x1, y1, x2, y2 = tile.window
        grid = grids.setdefault(tile.source, _Grid(set(), set()))
        grid.columns.add((x1, x2))
        grid.rows.add((y1, y2))
    divided = {source: tuple(_divided(windows) for windows in grid) for source, grid in grids.items()}
    found = {}
    for index, record in enumerate(records):
        if record.tile is not None:
            x1, y1, x2, y2 = record.tile.window
            (left, right), (top, bottom) = (
                side[span] for side, span in zip(divided[record.tile.source], ((x1, x2), (y1, y2)), strict=True)
            )
            found[index] = (left, top, right, bottom)
    return found


def _divided(windows: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[float, float]]:
    spans = sorted(windows)
    middles = [(end + start) / 2 for (_, end), (start, _) in pairwise(spans)]
    return dict(zip(spans, zip([-np.inf, *middles], [*middles, np.inf], strict=True), strict=True))


def _unit(record: Record, found: Found) -> Unit:
    truth = record.truth
    if truth.quads is None or truth.difficult is None:
        raise ValueError(f"{record.image}: its labels are not oriented boxes; read the data for the task obb")
    if found.rboxes is None:
        raise ValueError(f"{record.image}: its detections are not oriented boxes, but upright ones")
    spared = truth.difficult | truth.crowd
    return Unit(truth.quads, truth.labels, spared, found.rboxes, found.scores, found.labels)


def _within(unit: Unit, corner: tuple[int, ...], core: Bounds) -> Unit:
    """Move a tile into its picture, and leave out what another tile owns."""
    offset, low, high = np.array(corner, np.float64), np.array(core[:2]), np.array(core[2:])

    def owned(centres: Float64) -> NDArray[np.bool_]:
        inside: NDArray[np.bool_] = np.all((centres >= low) & (centres < high), axis=1)
        return inside

    quads, rboxes = unit.quads + offset, unit.rboxes + np.array([*corner, 0, 0, 0], np.float64)
    here, there = owned(quads.mean(1)), owned(rboxes[:, :2])
    return Unit(
        quads[here], unit.labels[here], unit.difficult[here], rboxes[there], unit.scores[there], unit.classes[there]
    )

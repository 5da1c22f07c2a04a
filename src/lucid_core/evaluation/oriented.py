"""``Detections`` of oriented boxes -> AP, for tiles as they are and for the pictures that they were cut from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lucid_core.data.geometry import corners
from lucid_core.data.types import Record
from lucid_core.evaluation.found import Collected, Found
from lucid_core.evaluation.oriented_metrics import OrientedMetrics
from lucid_core.evaluation.original import Float64
from lucid_core.evaluation.rotated import areas, shared_areas
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

        An object or a detection counts in the tile that shows most of it; where several show as much, such as all of
        it, the middle of their overlap divides them, by its centre. No detection is compared with another, so nothing
        is suppressed that the network said once.

        Raises:
            ValueError: Labels or detections are not of oriented boxes.
        """
        shared = _shares(self.data.records)
        pictures: dict[str, list[Unit]] = {}
        for image, found in self.detections():
            record = self.data.records[image]
            unit = _unit(record, found)
            # A picture that was not cut is one of its own.
            name = f"record {image}"
            if record.tile is not None:
                name = f"source {record.tile.source}"
                unit = _within(unit, record.tile.window, shared[record.tile.source])
            pictures.setdefault(name, []).append(unit)
        units = [Unit(*map(np.concatenate, zip(*parts, strict=True))) for parts in pictures.values()]
        return measure(units, self.data.class_names)


class _Share(NamedTuple):
    """How the tiles of one picture share it.

    Attributes:
        windows: ``(k, 4)`` float64, what each shows.
        cores: ``(k, 4)`` float64, what each owns of that.
    """

    windows: Float64
    cores: Float64


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


def _shares(records: Sequence[Record]) -> dict[str, _Share]:
    """Divide pictures among their tiles, by source; a window counts once, however many records have it."""
    sources: dict[str, dict[tuple[int, ...], Bounds]] = {}
    for index, core in cores(records).items():
        tile = records[index].tile
        assert tile is not None
        sources.setdefault(tile.source, {})[tile.window] = core
    return {
        source: _Share(np.array(list(owned), np.float64), np.array(list(owned.values()), np.float64))
        for source, owned in sources.items()
    }


def _within(unit: Unit, window: tuple[int, int, int, int], share: _Share) -> Unit:
    """Move a tile into its picture, and leave out what another tile owns."""
    corner = np.array(window[:2], np.float64)
    own = int(np.flatnonzero((share.windows == window).all(1))[0])
    quads, rboxes = unit.quads + corner, unit.rboxes + np.array([*corner, 0, 0, 0], np.float64)
    here, there = _owners(quads, share) == own, _owners(corners(rboxes), share) == own
    return Unit(
        quads[here], unit.labels[here], unit.difficult[here], rboxes[there], unit.scores[there], unit.classes[there]
    )


def _owners(quads: Float64, share: _Share) -> NDArray[np.intp]:
    """Say which tile owns each box ``(n, 4, 2)``; it depends on the box alone, so no two tiles own it, and one does."""
    if not len(quads):
        return np.zeros(0, np.intp)
    # Tiles state the same corners up to the last digits, which must not decide.
    quads = quads.round(6)
    centres, low, high = quads.mean(1).round(6)[:, None], quads.min(1)[:, None], quads.max(1)[:, None]
    # Of a picture of many tiles, few are near the boxes of one.
    near = np.flatnonzero(_meets(share.windows, low.min(0), high.max(0)) | _meets(share.cores, low.min(0), high.max(0)))
    windows, cores = share.windows[near], share.cores[near]
    held = np.all((centres >= cores[:, :2]) & (centres < cores[:, 2:]), axis=2)
    whole = np.all((low >= windows[:, :2]) & (high <= windows[:, 2:]), axis=2)
    seen = whole.astype(np.float64)
    # How much is seen is wanted of few boxes: most are whole where their centre is.
    wanted = ~(whole & held).any(1, keepdims=True) & ~whole
    row, tile = np.nonzero(wanted & np.all((low < windows[:, 2:]) & (high > windows[:, :2]), axis=2))
    sides = windows[:, 2:] - windows[:, :2]
    frames = np.column_stack([windows[:, :2] + sides / 2, sides, np.zeros(len(sides))])
    cut = torch.from_numpy(quads[row])
    part, area = shared_areas(cut, torch.from_numpy(frames[tile])), areas(cut)
    seen[row, tile] = torch.where(area > 0, part / area, 0.0).nan_to_num(0.0).clamp(0, 1).numpy().round(6)
    # The centre settles only what the shares, in millionths, leave open.
    rank = seen + 1e-7 * held
    # What no tile shows, where one is missing, is the first one's.
    return np.where(rank.max(1) > 0, near[rank.argmax(1)], 0)


def _meets(bounds: Float64, low: Float64, high: Float64) -> NDArray[np.bool_]:
    """Whether bounds ``(k, 4)`` and a range touch; yes where it is not a number."""
    apart: NDArray[np.bool_] = np.any((bounds[:, :2] > high) | (bounds[:, 2:] < low), axis=1)
    return ~apart

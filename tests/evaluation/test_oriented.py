from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lucid_core.data.geometry import area, corners, cut, fit, refit
from lucid_core.data.types import Instances, Record, Tile, Truth
from lucid_core.evaluation.oriented import OrientedEvaluation, cores
from lucid_core.evaluation.voc import Unit, measure
from lucid_core.types import Detections

from .scenes import Scene, scene

Quads = NDArray[np.float64]
NOTHING = Instances(np.zeros((0, 4), np.float32), np.zeros(0, np.int64), ())


def unit(
    objects: object,
    rows: object,
    *,
    labels: object = None,
    difficult: object = None,
    scores: object = None,
    classes: object = None,
) -> Unit:
    boxes, found = (np.asarray(part, np.float64).reshape(-1, 5) for part in (objects, rows))
    count, detections = len(boxes), len(found)
    return Unit(
        corners(boxes),
        np.zeros(count, np.int64) if labels is None else np.asarray(labels, np.int64),
        np.zeros(count, bool) if difficult is None else np.asarray(difficult, bool),
        found,
        np.linspace(0.9, 0.1, detections) if scores is None else np.asarray(scores, np.float64),
        np.zeros(detections, np.int64) if classes is None else np.asarray(classes, np.int64),
    )


def random_unit(seed: int, classes: int = 3, objects: int = 12) -> Unit:
    """Jittered and doubled objects, with mistakes, on so little room that objects overlap."""
    rng = np.random.default_rng(seed)
    boxes = rng.uniform((0, 0, 10, 4, 0), (60, 60, 40, 12, 3), (objects, 5))
    labels = rng.integers(0, classes, objects)
    rows = np.repeat(boxes, 3, 0) + rng.normal(0, (1, 1, 2, 1, 0.05), (3 * objects, 5))
    kinds = np.where(rng.random(3 * objects) < 0.9, np.repeat(labels, 3), 0)
    scores = rng.integers(1, 20, 3 * objects) / 20
    order = np.argsort(-scores, kind="stable")
    hard = rng.random(objects) < 0.25
    return unit(boxes, rows[order], labels=labels, difficult=hard, scores=scores[order], classes=kinds[order])


def naive_ap(units: list[Unit], label: int, threshold: float) -> float:
    """The rule as it is told, detection by detection, at one threshold."""
    from lucid_core.evaluation.rotated import overlaps

    rows = [(-u.scores[n], k, n) for k, u in enumerate(units) for n in range(len(u.scores)) if u.classes[n] == label]
    taken, outcome = set(), []
    for _, k, n in sorted(rows):
        u = units[k]
        shares = [
            float(overlaps(torch.tensor(quad), torch.tensor(u.rboxes[n]))) if kind == label else 0.0
            for quad, kind in zip(u.quads, u.labels, strict=True)
        ]
        able = [g for g, share in enumerate(shares) if share >= threshold]
        free = [g for g in able if not u.difficult[g] and (k, g) not in taken]
        if free:
            taken.add((k, max(free, key=lambda g: shares[g])))
            outcome.append(1)
        elif not any(u.difficult[g] for g in able):
            outcome.append(0)
    objects = sum(int((~u.difficult & (u.labels == label)).sum()) for u in units)
    if not objects:
        return math.nan
    points = [(sum(outcome[: n + 1]), sum(outcome[: n + 1]) / (n + 1)) for n in range(len(outcome))]
    return sum(max((p for hits, p in points if 100 * hits >= k * objects), default=0.0) for k in range(101)) / 101


@pytest.mark.parametrize("seed", range(4))
def test_one_walk_over_ten_thresholds_gives_what_ten_naive_walks_give(seed: int) -> None:
    units = [random_unit(10 * seed + n) for n in range(3)]
    names = ["a", "b", "c", "never seen"]
    metrics = measure(units, names)
    for label, row in enumerate(metrics.classes):
        expected = [naive_ap(units, label, level / 100) for level in range(50, 100, 5)]
        assert row.ap == pytest.approx(np.mean(expected), nan_ok=True)
        assert row.ap_50 == pytest.approx(expected[0], nan_ok=True)
    assert 0.05 < metrics.map < 0.9 and metrics.map_75 < metrics.map_50
    assert metrics.map == pytest.approx(np.nanmean([row.ap for row in metrics.classes]))


BOX = (50.0, 50, 40, 10, 0.5)
AWAY = (150.0, 150, 40, 10, 0.5)


@pytest.mark.parametrize(
    ("difficult", "rows", "expected"),
    [
        ([False, True], [BOX, AWAY], 1.0),  # what is difficult need not be found
        ([False, True], [AWAY, BOX], 1.0),  # and finding it is no mistake
        ([False, True], [AWAY, AWAY, BOX], 1.0),  # not even twice
        ([False, False], [BOX, BOX], 51 / 101),  # finding the same object twice is one
        ([False, True], [(300, 300, 9, 9, 0), BOX], 0.5),  # as is finding nothing
        ([False, False], [BOX, BOX, AWAY], (51 + 50 * 2 / 3) / 101),
    ],
)
def test_the_rule_of_difficult_objects(difficult: list[bool], rows: list[object], expected: float) -> None:
    metrics = measure([unit([BOX, AWAY], rows, difficult=difficult)], ["a"])
    assert metrics.map_50 == pytest.approx(expected)
    assert metrics.classes[0].objects == 2 - sum(difficult)


def test_an_object_that_is_taken_leaves_the_detection_to_the_next_best() -> None:
    """Two objects that overlap by 0.6: VOC's own rule would call the second detection wrong."""
    near = (50.0, 52.5, 40, 10, 0.0)
    metrics = measure([unit([(50, 50, 40, 10, 0), near], [(50, 50, 40, 10, 0), (50, 50, 40, 10, 0)])], ["a"])
    assert metrics.map_50 == pytest.approx(1.0)
    assert metrics.map_75 == pytest.approx(51 / 101)


def test_a_detection_that_is_right_counts_though_a_difficult_object_is_there_too() -> None:
    assert measure([unit([BOX, BOX], [BOX], difficult=[True, False])], ["a"]).map == pytest.approx(1.0)


def test_a_detection_takes_the_object_that_it_overlaps_most() -> None:
    """Taking the lower one would leave the upper one to the second detection, which does not reach the lower."""
    objects = [(50, 52, 40, 10, 0), (50, 50, 40, 10, 0)]
    metrics = measure([unit(objects, [(50, 50, 40, 10, 0), (50, 48.5, 40, 10, 0)])], ["a"])
    assert metrics.map_50 == pytest.approx(51 / 101)


def test_the_higher_score_comes_first_wherever_it_stands() -> None:
    rows = [BOX, (BOX[0], BOX[1] + 1, *BOX[2:])]
    metrics = measure([unit([BOX], rows, scores=[0.3, 0.8])], ["a"])
    assert metrics.map_50 == pytest.approx(1.0)
    assert metrics.map < 0.9  # since the worse one takes the object until it overlaps too little


def test_an_overlap_of_exactly_the_threshold_is_enough() -> None:
    assert measure([unit([(50, 50, 40, 10, 0)], [(50, 50, 20, 10, 0)])], ["a"]).map_50 == pytest.approx(1.0)


def test_crowd_regions_need_not_be_found() -> None:
    shown = record([BOX, AWAY], [0, 0])
    crowd = replace(shown, truth=replace(shown.truth, crowd=np.array([False, True])))
    data = scene([crowd], classes=1)
    assert evaluate(data, [row[:1] for row in perfect(data)]).compute().map == pytest.approx(1.0)


def test_detections_match_objects_of_their_own_unit_alone() -> None:
    both = [unit([BOX], []), unit([], [BOX])]
    assert measure(both, ["a"]).map == 0.0
    assert measure([unit([BOX], [BOX])], ["a"]).map == pytest.approx(1.0)


def test_a_turned_box_is_another_box() -> None:
    turned = (*BOX[:4], BOX[4] + math.pi / 2)
    assert measure([unit([BOX], [turned])], ["a"]).map == 0.0
    assert measure([unit([BOX], [(*BOX[:4], BOX[4] + math.pi)])], ["a"]).map == pytest.approx(1.0)


def record(boxes: object, labels: object, *, difficult: object = None, tile: Tile | None = None) -> Record:
    quads = corners(np.asarray(boxes, np.float64).reshape(-1, 5))
    envelope = np.concatenate([quads.min(1), quads.max(1)], 1) if len(quads) else np.zeros((0, 4))
    count = len(quads)
    truth = Truth(
        envelope,
        np.asarray(labels, np.int64).reshape(count),
        np.ones(count),
        np.zeros(count, bool),
        quads=quads,
        difficult=np.zeros(count, bool) if difficult is None else np.asarray(difficult, bool),
    )
    return Record(Path("a.png"), "a.png", 400, 300, NOTHING, truth, tile)


def evaluate(data: Scene, rows: list[NDArray[np.float64]]) -> OrientedEvaluation:
    """Rows ``cx, cy, w, h, angle, score, label`` of each image in original pixels, through a letterbox."""
    evaluation = OrientedEvaluation(data)
    for index, found in enumerate(rows):
        best = torch.tensor(np.asarray(found, np.float64).reshape(-1, 7)).float()
        ratio, left, top = 1.6, 0.0, 80.0
        rboxes = torch.cat([best[:, :4] * ratio, best[:, 4:5]], 1)
        rboxes[:, :2] += torch.tensor([left, top])
        fields = torch.zeros(1, len(best), 4), best[None, :, 5], best[None, :, 6].long()
        anchors = torch.zeros(1, len(best), dtype=torch.int64)
        batch = Detections(*fields, anchors, rboxes=rboxes[None])
        evaluation.update(batch, torch.tensor([index]), torch.tensor([[ratio, left, top]], dtype=torch.float64))
    return evaluation


def perfect(data: Scene) -> list[NDArray[np.float64]]:
    return [
        np.column_stack([fit(shown.truth.quads), np.full(len(shown.truth.labels), 0.9), shown.truth.labels])
        for shown in data.records
        if shown.truth.quads is not None
    ]


def random_scene(seed: int = 0) -> Scene:
    rng = np.random.default_rng(seed)
    boxes = [rng.uniform((20, 20, 12, 6, -4), (380, 280, 60, 12, 4), (count, 5)) for count in (5, 0, 9, 1)]
    return scene([record(part, rng.integers(0, 2, len(part))) for part in boxes], classes=3)


def test_perfect_predictions_score_one() -> None:
    data = random_scene()
    metrics = evaluate(data, perfect(data)).compute()
    assert metrics.scalars() == pytest.approx(dict.fromkeys(("map", "map_50", "map_75", "mar"), 1.0))
    assert metrics.images == 4 and sum(row.objects for row in metrics.classes) == 15
    assert [math.isnan(row.ap) for row in metrics.classes] == [False, False, True]


def test_a_letterbox_that_is_ignored_breaks_ap() -> None:
    data = random_scene()
    found = [np.array(rows) for rows in perfect(data)]
    for rows in found:
        rows[:, 1] += 10
    assert evaluate(data, found).compute().map < 0.5


def test_no_detections_is_zero_and_no_objects_is_nan() -> None:
    data = random_scene()
    metrics = evaluate(data, [np.zeros((0, 7))] * 4).compute()
    assert set(metrics.scalars().values()) == {0.0}
    empty = scene([record([], [])] * 2)
    for rows in (np.zeros((0, 7)), np.array([[9.0, 9, 5, 3, 0, 0.5, 1]])):
        assert all(math.isnan(value) for value in evaluate(empty, [rows, rows]).compute().scalars().values())
    assert all(math.isnan(value) for value in OrientedEvaluation(data).compute().scalars().values())


def test_upright_labels_or_detections_are_refused() -> None:
    data = random_scene()
    evaluation = evaluate(data, perfect(data))
    upright = replace(data.records[0], truth=replace(data.records[0].truth, quads=None))
    with pytest.raises(ValueError, match="labels are not oriented boxes"):
        evaluate(Scene([upright], data.class_names, data.category_ids), perfect(data)[:1]).compute()
    evaluation.merge([{9: evaluation.state()[0]._replace(rboxes=None)}])
    data.records.extend([data.records[0]] * 6)
    with pytest.raises(ValueError, match="detections are not oriented boxes"):
        evaluation.compute()


def tiles(boxes: object, labels: list[int]) -> Scene:
    """A picture of 600 x 300 pixels in two tiles of 400 that share 200 columns."""
    whole = np.asarray(boxes, np.float64).reshape(-1, 5)
    records = []
    for left in (0, 200):
        inside = (whole[:, 0] > left) & (whole[:, 0] < left + 400)
        moved = whole[inside] - np.array([left, 0, 0, 0, 0])
        kinds = np.array(labels)[inside]
        records.append(record(moved, kinds, tile=Tile("P1", (left, 0, left + 400, 300))))
    return scene(records, classes=1)


def test_tiles_are_merged_along_the_middles_of_their_overlaps() -> None:
    """An object that two tiles show counts once, and so does what both detect of it."""
    data = tiles([(100, 100, 60, 20, 0.3), (250, 100, 60, 20, 0.3), (350, 200, 60, 20, 0.3)], [0, 0, 0])
    evaluation = evaluate(data, perfect(data))
    assert evaluation.tiled
    assert evaluation.compute().classes[0].objects == 5
    merged = evaluation.compute_merged()
    assert (merged.images, merged.classes[0].objects) == (1, 3)
    assert merged.map == pytest.approx(1.0)


def test_a_detection_beyond_the_middle_belongs_to_the_other_tile() -> None:
    data = tiles([(250, 100, 60, 20, 0.3)], [0])
    rows = perfect(data)
    assert evaluate(data, [rows[0], rows[1][:0]]).compute_merged().map == pytest.approx(1.0)
    assert evaluate(data, [rows[0][:0], rows[1]]).compute_merged().map == 0.0


GRID = [(x, y, x + 400, y + 400) for y in (0, 300) for x in (0, 300)]


def cut_into(windows: list[tuple[int, int, int, int]], quads: Quads) -> Scene:
    """Tiles as ``lucid data tiles`` cuts them: whole from 70 %, else the box about what is seen, difficult."""
    records = []
    for window in windows:
        seen, hard = [], []
        for quad in quads:
            visible = cut(quad, window)
            if area(visible) > 0:
                hard.append(bool(area(visible) < 0.7 * area(quad)))
                part = refit(visible, float(fit(quad[None])[0, 4]))[None].astype(np.float64)
                seen.append((corners(part)[0] if hard[-1] else quad) - np.array(window[:2], np.float64))
        made = record(np.zeros((len(seen), 5)), np.zeros(len(seen)), difficult=hard, tile=Tile("P1", window))
        records.append(replace(made, truth=replace(made.truth, quads=np.array(seen).reshape(-1, 4, 2))))
    return scene(records, classes=1)


def test_a_long_object_across_a_corner_of_the_grid_is_not_lost() -> None:
    """Two tiles show 74 % of it, and the third one, which holds its centre, 48 %."""
    box = np.array([[355.0, 345, 290, 6, math.pi / 4]])
    data = cut_into(GRID, corners(box))
    difficult = [shown.truth.difficult.tolist() for shown in data.records if shown.truth.difficult is not None]
    assert difficult == [[False], [True], [True], [False]]
    merged = evaluate(data, perfect(data)).compute_merged()
    assert merged.classes[0].objects == 1 and merged.map == pytest.approx(1.0)


@pytest.mark.parametrize("windows", [GRID, GRID[:2] + GRID[3:], [(x, 0, x + 400, 400) for x in (0, 250, 300)]])
def test_what_any_tile_shows_counts_in_exactly_one(windows: list[tuple[int, int, int, int]]) -> None:
    rng = np.random.default_rng(0)
    boxes = np.round(rng.uniform((50, 50, 2, 2, -4), (650, 650, 400, 40, 4), (300, 5)), 1)
    quads = np.round(corners(boxes) + rng.normal(0, 3, (300, 4, 2)), 1)
    # Centres on the very middles of overlaps, whose coordinates are not exact in binary.
    quads[:40] += np.round(350 - quads[:40].mean(1), 1)[:, None]
    data = cut_into(windows, quads)
    counted = {
        quad.round(3).tobytes()
        for shown, (left, top, *_) in zip(data.records, windows, strict=True)
        if shown.truth.quads is not None and shown.truth.difficult is not None
        for quad in shown.truth.quads[~shown.truth.difficult] + np.array([left, top])
    }
    merged = evaluate(data, perfect(data)).compute_merged()
    assert merged.classes[0].objects == len(counted) > 80


def test_tiles_of_different_pictures_are_not_mixed() -> None:
    data = tiles([(100, 100, 60, 20, 0.3), (500, 100, 60, 20, 0.3)], [0, 0])
    other = replace(data.records[1], tile=Tile("P2", (200, 0, 600, 300)))
    mixed = Scene([data.records[0], other, record([BOX], [0])], data.class_names, data.category_ids)
    assert evaluate(mixed, perfect(mixed)).compute_merged().images == 3
    assert cores(mixed.records)[1] == (-np.inf, -np.inf, np.inf, np.inf)


def test_cores_of_a_grid_of_tiles() -> None:
    windows = [(x, y, x + 1024, y + 1024) for y in (0, 512) for x in (0, 512, 976)]
    found = cores([record([], [], tile=Tile("P1", window)) for window in windows])
    inf = np.inf
    assert found[0] == (-inf, -inf, 768, 768)
    assert found[4] == (768, 768, 1256, inf)
    assert found[5] == (1256, 768, inf, inf)

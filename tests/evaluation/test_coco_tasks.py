"""AP of masks and key points: perfect, empty and noisy predictions, and the two engines."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from lucid_core.data.types import Rle, Segment
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.evaluation.engines import Engine
from lucid_core.evaluation.evaluator import Evaluator
from lucid_core.evaluation.found import Found
from lucid_core.evaluation.masks import rle_of
from lucid_core.evaluation.results import results_json
from lucid_core.network.anchors import make_anchors
from lucid_core.types import Batch, BranchOutput, Detections, Predictions, Targets, Task

from .scenes import Scene, random_scene, record, scene

ENGINES: tuple[Engine, ...] = ("faster", "pycocotools")


def labelled(seed: int, points: int = 17) -> Scene:
    """Pictures with ellipses, the first one of each in run lengths, and key points, some without a label."""
    data, rng = random_scene(seed, images=6, classes=3), np.random.default_rng(seed)
    turns = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    records = []
    for shown in data.records:
        boxes = shown.truth.boxes
        centres, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
        circle = np.stack([np.cos(turns), np.sin(turns)], 1)
        rings = [(centre + circle * side / 2).astype(np.float32) for centre, side in zip(centres, sides, strict=True)]
        segments: list[Segment] = [(ring,) for ring in rings]
        segments[:1] = [rle_of(one, shown.width, shown.height) for one in segments[:1]]
        given = boxes[:, None, :2] + rng.uniform(0, 1, (len(boxes), points, 2)) * sides[:, None]
        marks = rng.integers(0, 3, (len(boxes), points, 1)) * (rng.random((len(boxes), 1, 1)) < 0.8)
        truth = replace(shown.truth, segments=tuple(segments), points=np.concatenate([given, marks], 2))
        records.append(replace(shown, truth=truth))
    return Scene(records, data.class_names, data.category_ids)


def perfect(data: Scene, noise: float = 0, seed: int = 0) -> dict[int, Found]:
    """What the labels say, crowds left out; with noise some of it twice, and all of it moved."""
    rng, found = np.random.default_rng(seed), {}
    for index, shown in enumerate(data.records):
        truth = shown.truth
        assert truth.segments is not None and truth.points is not None
        rows = np.flatnonzero(~truth.crowd)
        if noise:
            rows = np.repeat(rows, rng.integers(0, 3, len(rows)))
        moves = rng.normal(0, noise, (len(rows), 2)) if noise else np.zeros((len(rows), 2))
        masks = []
        for row, move in zip(rows, moves, strict=True):
            full = coco_mask.decode(rle_of(truth.segments[row], shown.width, shown.height))
            masks.append(coco_mask.encode(np.asfortranarray(np.roll(full, move.round().astype(int), (1, 0)))))
        found[index] = Found(
            truth.boxes[rows] + np.tile(moves, 2),
            rng.integers(1, 60, len(rows)) / 64 if noise else np.linspace(0.9, 0.6, len(rows)),
            truth.labels[rows],
            tuple(masks),
            None,
            truth.points[rows][..., :2] + moves[:, None] * 0.3,
        )
    return found


def evaluation(data: Scene, found: dict[int, Found], engine: Engine = "faster") -> CocoEvaluation:
    made = CocoEvaluation(data, engine)
    made.merge([found])
    return made


@pytest.mark.parametrize("engine", ENGINES)
def test_perfect_predictions_score_one(engine: Engine) -> None:
    data = labelled(1)
    made = evaluation(data, perfect(data), engine)
    masks, points = made.compute_masks(), made.compute_points()
    assert masks.map == pytest.approx(1.0) and masks.mar_100 == pytest.approx(1.0)
    assert points.map == pytest.approx(1.0) and points.mar == pytest.approx(1.0)
    assert sum(row.objects for row in masks.classes) > sum(row.objects for row in points.classes) > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_detected_is_zero_and_nothing_labelled_is_nan(engine: Engine) -> None:
    data = labelled(1)
    whole = {
        k: v._replace(
            boxes=v.boxes[:0], scores=v.scores[:0], labels=v.labels[:0], masks=(), points=np.zeros((0, 17, 2))
        )
        for k, v in perfect(data).items()
    }
    made = evaluation(data, whole, engine)
    assert made.compute_masks().map == made.compute_points().map == made.compute_points().mar == 0.0
    bare = replace(record([], []), truth=replace(record([], []).truth, segments=(), points=np.zeros((0, 17, 3))))
    made = evaluation(scene([bare]), {0: perfect(data)[0]}, engine)
    for metrics in (made.compute_masks(), made.compute_points(), CocoEvaluation(data).compute_points()):
        assert all(math.isnan(value) for value in metrics.scalars().values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("points", [17, 4])
def test_engines_agree(seed: int, points: int) -> None:
    data = labelled(seed, points)
    found = perfect(data, noise=6, seed=seed)
    one, two = (evaluation(data, found, engine) for engine in ENGINES)
    assert 0.05 < one.compute_masks().map < 0.95 and 0.02 < one.compute_points().map < 0.98
    for first, second in ((one.compute_masks(), two.compute_masks()), (one.compute_points(), two.compute_points())):
        assert first.scalars() == pytest.approx(second.scalars(), abs=1e-6, nan_ok=True)


@pytest.mark.parametrize(
    ("task", "name", "kind"),
    [
        ("segment", "detections", "segm"),
        ("segment", "boxes", "bbox"),
        ("keypoints", "detections", "keypoints"),
        ("keypoints", "boxes", "bbox"),
    ],
)
def test_numbers_are_those_of_the_reference_on_the_exported_files(
    tmp_path: Path, task: Task, name: str, kind: str
) -> None:
    """Also where the last detections of an image have no mask."""
    data = labelled(4)
    found = perfect(data, noise=5, seed=1)
    if task == "segment":
        found = {k: v._replace(points=None, masks=(v.masks or ())[: len(v.boxes) * 2 // 3]) for k, v in found.items()}
        assert any(len(v.masks or ()) < len(v.boxes) for v in found.values())
    else:
        found = {k: v._replace(masks=None) for k, v in found.items()}
    evaluator = Evaluator(data, ["end_to_end"], "faster", task)
    evaluator.first.merge([found])
    evaluator.write_detections(tmp_path)
    made = evaluator.first
    assert isinstance(made, CocoEvaluation)
    images, annotations = [], []
    for shown in data.records:
        truth = shown.truth
        assert truth.segments is not None and truth.points is not None
        images.append({"id": shown.image_id, "width": shown.width, "height": shown.height})
        for row, segment in enumerate(truth.segments):
            stated: object
            if isinstance(segment, dict):
                stated = {"size": segment["size"], "counts": segment["counts"].decode()}
            else:
                stated = [ring.astype(float).ravel().tolist() for ring in segment]
            x1, y1, x2, y2 = truth.boxes[row].tolist()
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": shown.image_id,
                    "category_id": data.category_ids[truth.labels[row]],
                    "bbox": [x1, y1, x2 - x1, y2 - y1],
                    "area": float(truth.areas[row]),
                    "iscrowd": int(truth.crowd[row]),
                    "segmentation": stated,
                    "keypoints": truth.points[row].ravel().tolist(),
                    "num_keypoints": int((truth.points[row, :, 2] > 0).sum()),
                }
            )
    categories = [{"id": k, "name": name} for k, name in zip(data.category_ids, data.class_names, strict=True)]
    file = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    (tmp_path / "truth.json").write_text(json.dumps(file))
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth_file = COCO(str(tmp_path / "truth.json"))
    run = COCOeval(truth_file, truth_file.loadRes(str(tmp_path / f"{name}-end_to_end.json")), kind)
    run.evaluate()
    run.accumulate()
    run.summarize()
    compute = {"bbox": made.compute, "segm": made.compute_masks, "keypoints": made.compute_points}[kind]
    ours = compute()
    expected = [math.nan if value < 0 else value for value in run.stats.tolist()]
    assert list(ours.scalars().values()) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_persons_have_spreads_of_their_own() -> None:
    """The same error at an eye and at a hip weighs differently for 17 points, and alike for any other number."""
    for count, unequal in ((17, True), (16, False)):
        scores = []
        for wrong in (1, 11):
            given = np.full((1, count, 3), 50.0)
            given[..., 2] = 2
            shown = record([[0, 0, 100, 100]], [0])
            data = scene([replace(shown, truth=replace(shown.truth, points=given))], classes=1)
            points = given[..., :2].copy()
            points[0, [wrong, wrong + 1]] += 8
            found = Found(np.zeros((1, 4)), np.ones(1), np.zeros(1, np.int64), None, None, points)
            scores.append(evaluation(data, {0: found}).compute_points().map)
        assert (scores[0] < scores[1]) == unequal


def test_upright_labels_or_detections_are_refused() -> None:
    data = random_scene(0)
    plain = {0: Found(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))}
    for data, whose in ((random_scene(0), "labels"), (labelled(0), "detections")):
        made = evaluation(data, plain)
        with pytest.raises(ValueError, match=f"its {whose} have no masks"):
            made.compute_masks()
        with pytest.raises(ValueError, match=f"its {whose} have no key points"):
            made.compute_points()


def raw(task: str, boxes: NDArray[np.float64], points: NDArray[np.float64] | None = None) -> Predictions:
    """What a network would have to say on a canvas of 64 pixels for these boxes: one anchor each."""
    grid = make_anchors(64, 64, torch.device("cpu"))
    logits = torch.full((1, len(grid.centres), 1), -20.0)
    distances = torch.ones(1, len(grid.centres), 4)
    placed = torch.zeros(1, len(grid.centres), 0 if points is None else points.shape[1], 2)
    for n, box in enumerate(torch.tensor(boxes).float()):
        logits[0, n] = 3.0 - n
        centre, stride = grid.centres[n], grid.strides[n]
        distances[0, n] = torch.cat([centre - box[:2], box[2:] - centre]) / stride
        if points is not None:
            placed[0, n] = (torch.tensor(points[n]).float() - centre) / stride
    branch = BranchOutput(logits, distances)
    if task == "segment":
        branch = branch._replace(coefficients=torch.ones(1, len(grid.centres), 32))
    if points is not None:
        branch = branch._replace(points=placed, sigmas=placed)
    return Predictions(branch, branch, grid, torch.ones(1, 32, 16, 16) if task == "segment" else None)


def batch() -> Batch:
    nothing = Targets(torch.zeros(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, dtype=torch.bool))
    frame = torch.tensor([[0.5, 0.0, 12.0]], dtype=torch.float64)
    return Batch(torch.zeros(1, 3, 64, 64), nothing, torch.tensor([0]), frame)


@pytest.mark.parametrize("task", ["segment", "keypoints"])
def test_from_raw_predictions_to_figures_by_name(task: str, tmp_path: Path) -> None:
    """Boxes filled by their masks, on a picture of 128 x 80 pixels that the canvas shows at half its size."""
    boxes = np.array([[10.0, 20, 50, 60], [70, 8, 120, 72]])
    points = np.stack([boxes[:, :2] + 5, boxes[:, 2:] - 5], 1)
    rings = tuple((box[[0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 2).astype(np.float32),) for box in boxes)
    shown = record(boxes, [0, 0], width=128, height=80)
    marked = np.concatenate([points, np.full((2, 2, 1), 2.0)], 2)
    data = scene([replace(shown, truth=replace(shown.truth, segments=rings, points=marked))], classes=1)
    frame = np.array([0.0, 12, 0, 12])
    canvas = points * 0.5 + frame[:2] if task == "keypoints" else None
    evaluator = Evaluator(data, ["end_to_end", "nms"], "faster", task)  # type: ignore[arg-type]
    evaluator.update(raw(task, boxes * 0.5 + frame, canvas), batch())
    figures = evaluator.compute()
    prefix = {"segment": "segm_", "keypoints": "oks_"}[task]
    for name in ("map", f"{prefix}map", "nms/map", f"nms/{prefix}map"):
        assert figures[name] == pytest.approx(1.0), name
    report = evaluator.report()
    assert report.count("AP and AR are means over") == 4 and "nothing to measure" not in report
    evaluator.write_detections(tmp_path)
    rows = json.loads((tmp_path / "detections-nms.json").read_text())
    assert len(rows) == 2
    if task == "segment":
        assert int(coco_mask.area(rows[0]["segmentation"])) == 40 * 40
    else:
        assert rows[0]["keypoints"] == pytest.approx([15, 25, 1, 45, 55, 1], abs=1e-4)


def test_no_labels_at_all_are_told() -> None:
    data = scene([replace(record([], [], width=128, height=80), truth=replace(record([], []).truth, segments=()))])
    evaluator = Evaluator(data, ["end_to_end"], "faster", "segment")
    evaluator.update(raw("segment", np.array([[1.0, 2, 30, 40]])), batch())
    assert all(math.isnan(value) for value in evaluator.compute().values())
    assert "nothing to measure: 1 images have no labels of masks that count" in evaluator.report()


@pytest.mark.parametrize("engine", ENGINES)
def test_labelled_masks_are_rasterised_once_for_all_validations(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(segment: Segment, width: int, height: int) -> Rle:
        calls.append(width)
        return rle_of(segment, width, height)

    monkeypatch.setattr("lucid_core.evaluation.coco.rle_of", counted)
    data = labelled(0)
    made = evaluation(data, perfect(data, noise=2), engine)
    first, objects = made.compute_masks(), len(calls)
    assert objects == sum(len(record.truth.boxes) for record in data.records) > 0
    made.reset()
    made.merge([perfect(data, noise=2)])
    assert made.compute_masks().scalars() == first.scalars() and len(calls) == objects


def test_masks_are_made_of_the_best_hundred_detections_alone() -> None:
    data = scene([record([], [], width=32, height=32)])
    made = CocoEvaluation(data)
    boxes = torch.tensor([[0.0, 0, 9, 9]]).expand(1, 130, 4)
    fields = boxes, torch.linspace(0.9, 0.1, 130)[None], torch.zeros(1, 130, dtype=torch.int64)
    found = Detections(*fields, fields[2], torch.ones(1, 130, 32), torch.ones(1, 32, 8, 8))
    made.update(found, torch.tensor([0]), torch.tensor([[1.0, 0, 0]], dtype=torch.float64))
    held = made.state()[0]
    assert held.masks is not None
    assert (len(held.masks), len(held.scores)) == (100, 130)
    assert sum("segmentation" in row for row in results_json(made)) == 100

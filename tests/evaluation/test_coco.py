from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lucid_core.evaluation import engines
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.evaluation.engines import Engine
from lucid_core.evaluation.metrics import Metrics
from lucid_core.evaluation.results import results_json
from lucid_core.types import Detections

from .scenes import Scene, as_batch, noisy, perfect, random_scene, record, scene

ENGINES: tuple[Engine, ...] = ("faster", "pycocotools")


def evaluate(
    data: Scene, found: list[np.ndarray], engine: Engine = "faster", index: list[int] | None = None, **layout: int
) -> Metrics:
    evaluation = CocoEvaluation(data, engine)
    evaluation.update(*as_batch(data, found, list(range(len(data.records))) if index is None else index, **layout))
    return evaluation.compute()


def assert_equal(first: Metrics, second: Metrics, tolerance: float = 1e-6) -> None:
    assert first.scalars() == pytest.approx(second.scalars(), abs=tolerance, nan_ok=True)
    for one, other in zip(first.classes, second.classes, strict=True):
        assert (one.name, one.images, one.objects) == (other.name, other.images, other.objects)
        assert (one.ap, one.ap_50, one.ar) == pytest.approx((other.ap, other.ap_50, other.ar), tolerance, nan_ok=True)


@pytest.mark.parametrize("seed", range(6))
def test_engines_agree_on_random_scenes(seed: int) -> None:
    data = random_scene(seed)
    found = noisy(data, seed, extra=250 if seed % 2 else 20)
    ours = [evaluate(data, found, engine) for engine in ENGINES]
    assert 0.01 < ours[0].map < 0.9
    assert_equal(*ours)


def test_more_than_a_hundred_detections_of_one_class_engines_agree() -> None:
    data = random_scene(11, classes=2)
    found = noisy(data, 11, extra=280)
    assert max(int((rows[:, 5] == 0).sum()) for rows in found) > 100
    assert_equal(*(evaluate(data, found, engine) for engine in ENGINES))


def test_numbers_are_those_of_the_reference_on_the_exported_files(tmp_path: Path) -> None:
    """What we write, read by pycocotools with its own defaults, from annotation ids and category ids of the file."""
    data = random_scene(4)
    records = [replace(shown, image_id=700 + 3 * n) for n, shown in enumerate(data.records)]
    numbered = Scene(records, data.class_names, data.category_ids)
    evaluation = CocoEvaluation(numbered)
    evaluation.update(*as_batch(numbered, noisy(data, 4), list(range(len(data.records)))))
    (tmp_path / "truth.json").write_text(json.dumps(_truth_file(numbered)))
    (tmp_path / "results.json").write_text(json.dumps(results_json(evaluation)))

    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "truth.json"))
        run = COCOeval(truth, truth.loadRes(str(tmp_path / "results.json")), "bbox")
        run.evaluate()
        run.accumulate()
        run.summarize()
    assert list(evaluation.compute().scalars().values()) == pytest.approx(run.stats.tolist(), abs=1e-6)


def test_recall_thresholds_are_those_of_the_reference_in_double_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred objects, each found after one more mistake: every recall level has its own precision."""
    from pycocotools.cocoeval import Params

    assert np.array_equal(engines.RECALL_THRESHOLDS, Params("bbox").recThrs)
    corners = np.stack(np.meshgrid(np.arange(10) * 60.0, np.arange(10) * 45.0), axis=-1).reshape(-1, 2)
    data = scene([record(np.concatenate([corners, corners + 20], axis=1), np.zeros(100))], classes=1)
    hits = np.column_stack([data.records[0].truth.boxes, 1 - np.arange(100) / 150, np.zeros(100)])
    mistakes = hits + np.array([25.0, 0, 25, 0, 1e-3, 0])
    found = [np.concatenate([hits, mistakes[::2]])]
    exact, single = evaluate(data, found), np.linspace(0, 1, 101, dtype=np.float32).astype(np.float64)
    monkeypatch.setattr(engines, "RECALL_THRESHOLDS", single)
    assert evaluate(data, found).map_50 < exact.map_50 - 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_perfect_predictions_score_one(engine: Engine) -> None:
    data = random_scene(1, crowds=False)
    metrics = evaluate(data, perfect(data), engine)
    assert metrics.map == pytest.approx(1.0, abs=1e-9)
    assert metrics.mar_100 == pytest.approx(1.0, abs=1e-9)


def test_boxes_shifted_by_half_their_width_score_nothing() -> None:
    data = random_scene(1, crowds=False)
    found = perfect(data)
    for rows in found:
        rows[:, [0, 2]] += (rows[:, [2]] - rows[:, [0]]) / 2
    assert evaluate(data, found).map < 0.05


def test_the_canvas_does_not_matter() -> None:
    data = random_scene(2)
    found = noisy(data, 2)
    assert_equal(evaluate(data, found, canvas=320), evaluate(data, found, canvas=1280), tolerance=1e-3)
    assert_equal(evaluate(data, perfect(data), canvas=320), evaluate(data, perfect(data), canvas=1280))


def test_a_letterbox_that_is_ignored_breaks_ap() -> None:
    data = random_scene(1, crowds=False)
    batch = as_batch(data, perfect(data), list(range(len(data.records))))
    evaluation = CocoEvaluation(data)
    evaluation.update(batch[0], batch[1], torch.tensor([[1.0, 0, 0]], dtype=torch.float64).expand(len(batch[1]), 3))
    assert evaluation.compute().map < 0.5


@pytest.mark.parametrize("engine", ENGINES)
def test_no_detections_at_all_is_zero(engine: Engine) -> None:
    data = scene([record([[0, 0, 20, 20]], [0]), record([[5, 5, 300, 300]], [1])])
    metrics = evaluate(data, [np.empty((0, 6))] * 2, engine)
    assert metrics.map == metrics.map_50 == metrics.mar_100 == metrics.map_small == metrics.map_large == 0.0
    assert math.isnan(metrics.map_medium)
    assert [row.ap for row in metrics.classes] == [0.0, 0.0]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("detected", [True, False])
def test_no_ground_truth_at_all_is_nan(engine: Engine, detected: bool) -> None:
    data = scene([record([], []), record([], [])])
    rows = np.array([[1.0, 1, 50, 50, 0.9, 1]]) if detected else np.empty((0, 6))
    metrics = evaluate(data, [rows, rows], engine)
    assert metrics.images == 2
    assert all(math.isnan(value) for value in metrics.scalars().values())


def test_no_images_is_nan() -> None:
    metrics = CocoEvaluation(random_scene(0)).compute()
    assert metrics.images == 0 and len(metrics.classes) == 5
    assert all(math.isnan(value) for value in metrics.scalars().values())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_class_without_objects_is_left_out_of_the_mean(engine: Engine) -> None:
    data = scene([record([[0, 0, 50, 50], [100, 100, 180, 180]], [0, 1])], classes=3)
    found = np.array([[0, 0, 50, 50, 0.9, 0], [300, 300, 380, 380, 0.8, 2]])
    metrics = evaluate(data, [found], engine)
    assert metrics.map == pytest.approx(0.5)
    assert [row.ap for row in metrics.classes] == pytest.approx([1.0, 0.0, math.nan], nan_ok=True)
    assert [row.objects for row in metrics.classes] == [1, 1, 0]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_objects_alike_are_two_objects(engine: Engine) -> None:
    data = scene([record([[0, 0, 50, 50], [100, 100, 180, 180]], [0, 0])])
    assert evaluate(data, perfect(data), engine).map == pytest.approx(1.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_repeated_annotation_ids_would_have_broken_it(engine: Engine) -> None:
    """The control of the test above: the libraries themselves lose an object here."""
    truth = [
        {"id": 1, "image_id": 0, "category_id": 0, "bbox": box, "area": box[2] * box[3], "iscrowd": 0}
        for box in ([0.0, 0.0, 50.0, 50.0], [100.0, 100.0, 80.0, 80.0])
    ]
    found = [{**row, "id": n, "score": 0.9} for n, row in enumerate(truth, start=1)]
    data: dict[str, Any] = {"images": [{"id": 0}], "categories": [{"id": 0, "name": "a"}]}
    result = engines.curves(engine, {**data, "annotations": truth}, {**data, "annotations": found})
    assert result.precision[..., 0, 2].mean() < 0.9


@pytest.mark.parametrize("engine", ENGINES)
def test_a_crowd_region_is_neither_missed_nor_punished(engine: Engine) -> None:
    """Annotations marked iscrowd are the ignored ones; no other mark is read."""
    data = scene([record([[0, 0, 50, 50], [100, 100, 300, 300]], [0, 0], crowd=[False, True])])
    alone = np.array([[0, 0, 50, 50, 0.5, 0]])
    inside = np.array([[0, 0, 50, 50, 0.5, 0], [110, 110, 160, 160, 0.9, 0], [200, 200, 260, 260, 0.9, 0]])
    for found in (alone, inside):
        metrics = evaluate(data, [found], engine)
        assert metrics.map == pytest.approx(1.0) and metrics.mar_100 == pytest.approx(1.0)
        assert metrics.classes[0].objects == 1
    normal = scene([record([[0, 0, 50, 50], [100, 100, 300, 300]], [0, 0])])
    assert evaluate(normal, [inside], engine).map < 0.7


@pytest.mark.parametrize("engine", ENGINES)
def test_sizes_go_by_the_annotated_area(engine: Engine) -> None:
    boxes = [[0, 0, 50, 50]]
    for area, bucket in ((0.0, "small"), (2500.0, "medium"), (1e9, "large")):
        data = scene([record(boxes, [0], areas=[area])])
        metrics = evaluate(data, perfect(data), engine)
        sizes = {name: getattr(metrics, f"map_{name}") for name in ("small", "medium", "large")}
        assert sizes.pop(bucket) == pytest.approx(1.0)
        assert all(math.isnan(value) for value in sizes.values())


def test_image_ids_may_be_text_and_confusable() -> None:
    boxes = [[0, 0, 50, 50], [100, 100, 180, 180]]
    data = scene([record(boxes, [0, 1], image_id=name) for name in ("a", "7", "007", "0001", "猫 é.jpg")])
    evaluation = CocoEvaluation(data)
    evaluation.update(*as_batch(data, perfect(data), [3, 0, 4, 2, 1]))
    assert evaluation.compute().map == pytest.approx(1.0)
    names = [row["image_id"] for row in json.loads(json.dumps(results_json(evaluation)))]
    assert names[::2] == ["a", "7", "007", "0001", "猫 é.jpg"]


def test_only_images_that_were_seen_count() -> None:
    data = random_scene(5, crowds=False)
    found = perfect(data)
    metrics = evaluate(data, found, index=[0, 3])
    assert metrics.images == 2
    assert metrics.map == pytest.approx(1.0)
    assert sum(row.objects for row in metrics.classes) == sum(len(data.records[n].truth.boxes) for n in (0, 3))


def test_order_and_batches_do_not_matter() -> None:
    data = random_scene(6)
    found = noisy(data, 6)
    whole = evaluate(data, found)
    parts = CocoEvaluation(data)
    for index in ([7, 2, 9], [0, 1], [11, 10, 8, 3], [4], [6, 5]):
        parts.update(*as_batch(data, found, index))
    assert_equal(parts.compute(), whole, tolerance=0.0)
    parts.reset()
    assert parts.compute().images == 0


def test_an_image_repeated_by_padding_counts_once() -> None:
    data = random_scene(7)
    found = noisy(data, 7)
    whole = evaluate(data, found)
    first, second = CocoEvaluation(data), CocoEvaluation(data)
    first.update(*as_batch(data, found, [0, 1, 2, 3, 4, 5, 6, 0]))
    second.update(*as_batch(data, found, [7, 8, 9, 10, 11, 0, 1, 2]))
    second.merge([first.state()])
    assert_equal(second.compute(), whole, tolerance=0.0)
    late, third = CocoEvaluation(data), CocoEvaluation(data)
    late.update(*as_batch(data, [rows[:0] for rows in found], [0, 5, 11]))
    third.merge([CocoEvaluation(data).state(), first.state(), second.state(), late.state()])
    assert_equal(third.compute(), whole, tolerance=0.0)


def test_an_unknown_engine_is_named() -> None:
    data = random_scene(0)
    with pytest.raises(ValueError, match=r"'fast'.*faster, pycocotools"):
        evaluate(data, noisy(data, 0), engine="fast")  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ENGINES)
def test_engines_are_silent(engine: Engine, capfd: pytest.CaptureFixture[str]) -> None:
    data = random_scene(0)
    evaluate(data, noisy(data, 0), engine)
    assert capfd.readouterr() == ("", "")


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    worker = Path(__file__).with_name("gather_worker.py")
    processes = [subprocess.Popen([sys.executable, worker, str(rank), tmp_path]) for rank in range(2)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0]
    data = random_scene(8)
    alone = evaluate(data, noisy(data, 8)).scalars()
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == pytest.approx(alone, abs=0, nan_ok=True)


def test_gather_alone_changes_nothing() -> None:
    data = random_scene(3)
    evaluation = CocoEvaluation(data)
    evaluation.update(*as_batch(data, noisy(data, 3), [0, 1]))
    evaluation.gather()
    assert evaluation.compute().images == 2


def test_empty_rows_are_dropped() -> None:
    data = random_scene(3)
    detections, index, frames = as_batch(data, perfect(data), [0])
    evaluation = CocoEvaluation(data)
    evaluation.update(Detections(*detections), index, frames)
    assert len(evaluation.state()[0].scores) == len(perfect(data)[0])


def _truth_file(data: Scene) -> dict[str, Any]:
    annotations = [
        {
            "id": 0,
            "image_id": shown.image_id,
            "category_id": data.category_ids[label],
            "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
            "area": area,
            "iscrowd": int(crowd),
        }
        for shown in data.records
        for box, label, area, crowd in zip(
            *(getattr(shown.truth, field).tolist() for field in ("boxes", "labels", "areas", "crowd")), strict=True
        )
    ]
    for number, annotation in enumerate(annotations, start=1):
        annotation["id"] = number
    return {
        "info": {},
        "images": [{"id": shown.image_id} for shown in data.records],
        "categories": [{"id": k, "name": name} for k, name in zip(data.category_ids, data.class_names, strict=True)],
        "annotations": annotations,
    }

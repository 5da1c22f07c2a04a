"""Masks, oriented boxes and key points of one's own pictures: typed, written, drawn, and as validation sees them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer, seed_everything
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from lucid_core.data.module import DataModule
from lucid_core.data.points import PointTable
from lucid_core.evaluation.evaluator import detect
from lucid_core.evaluation.found import found_in, on_host
from lucid_core.module import Detector
from lucid_core.prediction.load import TrainedOn
from lucid_core.prediction.output import Output
from lucid_core.prediction.results import ImageDetections
from lucid_core.prediction.sources import PictureFile
from lucid_core.types import Task
from tests.prediction.conftest import Command

Pixels = NDArray[np.uint8]
TASKS: tuple[Task, ...] = ("segment", "obb", "keypoints")
TABLE = PointTable(4, ("top", "right", "bottom", "left"), ((1, 3),))


@pytest.fixture(scope="module")
def detectors() -> dict[Task, Detector]:
    """Untrained ones, whose guesses are as good as any for what becomes of them."""
    made: dict[Task, Detector] = {}
    for task in TASKS:
        seed_everything(1, verbose=False)
        points = 4 if task == "keypoints" else 0
        made[task] = Detector(["circle", "square", "triangle", "rectangle", "star"], task=task, points=points).eval()
        made[task].trained_on = TrainedOn(64, (3, 5, 7, 11, 90), TABLE if points else None)
    return made


@pytest.mark.parametrize("task", TASKS)
def test_results_are_typed_and_read_only(detectors: dict[Task, Detector], photograph: Pixels, task: Task) -> None:
    (found,) = detectors[task].predict(photograph, score=0.0, limit=7)
    assert len(found) == 7
    shapes = {"rboxes": (7, 5), "quads": (7, 4, 2), "points": (7, 4, 2)}
    wanted = {"segment": set(), "obb": {"rboxes", "quads"}, "keypoints": {"points"}}[task]
    for name, shape in shapes.items():
        field = getattr(found, name)
        assert (field is not None) == (name in wanted)
        assert field is None or (field.shape == shape and field.dtype == np.float32)
    assert (found.masks is not None) == (task == "segment")
    assert found.point_table == (TABLE if task == "keypoints" else None)
    assert all(
        field is None or not field.flags.writeable for field in (found.boxes, found.labels, found.rboxes, found.points)
    )
    if task == "segment":
        assert found.mask(2).shape == photograph.shape[:2] and found.mask(2).dtype == bool
    else:
        with pytest.raises(ValueError, match="no masks; a detector of the task segment"):
            found.mask(0)


@pytest.mark.parametrize("task", TASKS)
def test_prediction_finds_what_validation_does(
    detectors: dict[Task, Detector], shapes: Path, task: Task, tmp_path: Path
) -> None:
    data = DataModule(str(shapes), image_size=64, batch_size=2, workers=0, task=task)
    detector, records = detectors[task], data.val_set.records
    batch = detector.unpack(next(iter(data.val_dataloader())))
    with torch.inference_mode():
        held = on_host(detect(detector.average.network(batch.images), "end_to_end"))
    results = detector.predict([records[index].image for index in batch.records.tolist()], score=0.0)
    for row, (index, result) in enumerate(zip(batch.records.tolist(), results, strict=True)):
        shown = records[index]
        rows = np.flatnonzero(held.scores[row].numpy() > 0)
        found = found_in(held, row, rows, tuple(batch.letterbox[row].tolist()), shown.width, shown.height)
        np.testing.assert_allclose(result.boxes, found.boxes, atol=1e-4)
        for one, other in ((result.rboxes, found.rboxes), (result.points, found.points)):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                np.testing.assert_allclose(one, other, atol=1e-3)
        if found.masks is not None and result.masks is not None:
            assert [one["counts"] for one in result.masks] == [other["counts"] for other in found.masks]


def one_object(task: Task) -> ImageDetections:
    """A circle in the left half of a picture of 40 x 30 pixels."""
    mask = np.zeros((30, 40), np.uint8, order="F")
    mask[5:25, 2:12] = 1
    return ImageDetections(
        np.array([[2, 5, 12, 25]], np.float32),
        np.array([0.75], np.float32),
        np.array([1]),
        ("square", "circle"),
        (7, 9),
        40,
        30,
        masks=(coco_mask.encode(mask),) if task == "segment" else None,
        rboxes=np.array([[7, 15, 20, 10, np.pi / 2]], np.float32) if task == "obb" else None,
        points=np.array([[[4, 8], [10, 22]]], np.float32) if task == "keypoints" else None,
        point_table=PointTable(2, ("left", "right"), ((0, 1),)) if task == "keypoints" else None,
    )


def test_rows_have_the_form_of_coco_results() -> None:
    rows = {task: one_object(task).to_coco(4)[0] for task in TASKS}
    common = {"image_id": 4, "category_id": 9, "bbox": [2, 5, 10, 20], "score": 0.75}
    for row in rows.values():
        assert {key: row[key] for key in common} == common
        json.dumps(row)
    assert coco_mask.area(rows["segment"]["segmentation"]) == 200
    (ring,) = rows["obb"]["segmentation"]
    assert np.array(ring).reshape(4, 2) == pytest.approx(np.array([[12, 5], [12, 25], [2, 25], [2, 5]]), abs=1e-4)
    assert rows["obb"]["rbox"] == pytest.approx([7, 15, 20, 10, np.pi / 2])
    assert rows["keypoints"]["keypoints"] == [4, 8, 1, 10, 22, 1]


@pytest.mark.parametrize("task", TASKS)
def test_what_is_found_is_drawn(task: Task) -> None:
    found, ground = one_object(task), np.full((30, 40, 3), 90, np.uint8)
    plain = replace(found, masks=None, rboxes=None, points=None)
    drawn, boxed = found.draw(ground, scale=5), plain.draw(ground, scale=5)
    assert drawn.shape == (150, 200, 3)
    differs = (drawn != boxed).any(2)
    assert differs.any() and not differs[:, 70:].any()
    if task == "segment":
        assert differs[60:115, 15:55].mean() > 0.8
    if task == "keypoints":
        assert differs[110, 50] and differs[40, 20] and differs[75, 35]  # both points, and the middle between them


@pytest.mark.parametrize("task", TASKS)
def test_the_files_of_a_prediction_hold_it(task: Task, tmp_path: Path) -> None:
    from pycocotools.coco import COCO

    output = Output(tmp_path, draw=False)
    output.add(PictureFile(Path("a.png"), Path("a.png")), one_object(task))
    output.write({7: "square", 9: "circle"}, {})
    loaded = COCO(str(tmp_path / "images.json")).loadRes(str(tmp_path / "predictions.json"))
    (row,) = loaded.loadAnns(loaded.getAnnIds(imgIds=[1]))
    key = "keypoints" if task == "keypoints" else "segmentation"
    assert row[key] == one_object(task).to_coco(1)[0][key]


def test_the_command_names_the_key_points_as_an_annotation_file_does(
    shapes: Path, tmp_path: Path, lucid: Command
) -> None:
    """A checkpoint of a run on data with a skeleton, and one whose data have no names."""
    stated = json.loads((shapes / "annotations" / "instances_val.json").read_text())["categories"]
    table = DataModule(str(shapes), task="keypoints").points
    assert table is not None and table.skeleton
    detector = Detector([row["name"] for row in stated], task="keypoints", points=table.count)
    picture = next((shapes / "val").rglob("*.png"))
    for known in (table, replace(table, names=())):
        detector.trained_on = TrainedOn(64, tuple(row["id"] for row in stated), known)
        trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
        trainer.strategy.connect(detector)
        trainer.save_checkpoint(tmp_path / "points.ckpt", weights_only=True)
        finished = lucid("predict", tmp_path / "points.ckpt", picture, "--output=found", "--no_pictures")
        assert finished.status == 0, finished.err
        written = json.loads(Path("found/images.json").read_text())["categories"]
        wanted = {"id", "name"} | ({"keypoints", "skeleton"} if known.names else set())
        assert written == [{key: row[key] for key in wanted} for row in stated]


def test_a_checkpoint_remembers_the_key_points(detectors: dict[Task, Detector]) -> None:
    state = detectors["keypoints"].trained_on.state_dict()
    assert TrainedOn.of(state).points == TABLE
    assert set(detectors["obb"].trained_on.state_dict()) == {"image_size", "category_ids"}
    assert TrainedOn(64).updated(type("Data", (), {"points": TABLE})()).points == TABLE

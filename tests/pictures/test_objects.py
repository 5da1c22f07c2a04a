"""Masks, oriented boxes and key points lie where they are, in pictures of single results, batches and validation."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lucid_core.data.geometry import corners
from lucid_core.data.module import DataModule
from lucid_core.data.points import PointTable
from lucid_core.data.types import Task
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.evaluation.found import Collected, Found
from lucid_core.evaluation.masks import rle_of
from lucid_core.evaluation.oriented import OrientedEvaluation
from lucid_core.pictures.batches import training_batch, validation
from lucid_core.pictures.draw import colour_of
from lucid_core.pictures.grid import GAP, SIDE, TITLE
from lucid_core.pictures.objects import Objects, draw_objects, links_of, unpacked

NONE = np.full((1, 4), np.nan)
GREY = np.full((100, 120, 3), 90, np.uint8)
TASKS: tuple[Task, ...] = ("segment", "obb", "keypoints")


def touched(picture: np.ndarray) -> np.ndarray:
    return (picture != 90).any(2)


def test_a_mask_tints_its_own_pixels() -> None:
    mask = np.zeros((100, 120), bool)
    mask[20:40, 30:90] = True
    picture = draw_objects(GREY, Objects(NONE, [2], [""], [mask]))
    assert np.array_equal(touched(picture), mask)
    assert (GREY == 90).all()
    # Half as large, it covers the same place.
    assert np.array_equal(touched(draw_objects(GREY, Objects(NONE, [2], [""], [mask[::2, ::2]]))), mask)


def test_an_oriented_box_is_drawn_along_its_own_sides() -> None:
    rbox = np.array([[60.0, 50, 60, 20, math.pi / 4]])
    box = np.array([[10.0, 10, 110, 90]])
    picture = touched(draw_objects(GREY, Objects(box, [0], [""], quads=corners(rbox))))
    turned = np.array([[math.cos(math.pi / 4), math.sin(math.pi / 4)], [-math.sin(math.pi / 4), math.cos(math.pi / 4)]])
    rows, columns = np.nonzero(picture)
    local = np.abs((np.stack([columns + 0.5, rows + 0.5], 1) - rbox[0, :2]) @ turned.T)
    on_border = (np.abs(local - (30, 10)) < 2).any(1) & (local < (32, 12)).all(1)
    assert len(rows) > 100 and on_border.all()
    assert not picture[10, 10:110].all()  # what encloses it is not drawn


def test_points_and_what_joins_them_are_drawn_where_they_are_known() -> None:
    points = np.array([[[20.0, 20], [100, 20], [60, 80], [np.nan, np.nan]]])
    joined = draw_objects(GREY, Objects(NONE, [0], [""], points=points, links=((0, 1), (1, 3))))
    assert touched(joined)[20, 30:90].all()
    assert (joined[80, 60] == colour_of(2)).all()
    assert not touched(joined)[40:70].any()
    alone = touched(draw_objects(GREY, Objects(NONE, [0], [""], points=points)))
    assert not alone[20, 30:90].any() and alone[20, 20]


def test_objects_grow_with_their_picture() -> None:
    quads, points = np.full((1, 4, 2), 3.0), np.full((1, 2, 2), 5.0)
    grown = Objects(np.array([[1.0, 2, 3, 4]]), [0], [""], (), quads, points).scaled(2)
    assert grown.quads is not None and grown.points is not None
    assert grown.boxes.tolist() == [[2, 4, 6, 8]]
    assert (grown.quads == 6).all() and (grown.points == 10).all() and (quads == 3).all()


def test_a_skeleton_of_the_annotation_comes_before_left_and_right() -> None:
    pairs = ((1, 2),)
    assert links_of(PointTable(3, (), pairs, ((0, 1),))) == ((0, 1),)
    assert links_of(PointTable(3, (), pairs)) == pairs
    assert links_of(PointTable(3)) == links_of(None) == ()


def data_of(shapes: Path, task: Task) -> DataModule:
    return DataModule(str(shapes), image_size=64, batch_size=4, workers=0, task=task)


@pytest.mark.parametrize("task", TASKS)
def test_the_first_batch_shows_what_is_learnt(shapes: Path, task: Task) -> None:
    names = list(data_of(shapes, "detect").class_names)
    plain = training_batch(data_of(shapes, "detect").train_dataloader(), 0, names, 4)
    data = data_of(shapes, task)
    picture = training_batch(data.train_dataloader(), 0, names, 4, task, data.points)
    assert picture is not None and plain is not None
    assert picture.shape == plain.shape
    assert (picture != plain).any(2).mean() > 0.001


def found_as_labelled(data: DataModule, kind: type[Collected]) -> Collected:
    """A perfect detector, but for the first picture, where nothing reaches the score."""
    evaluation = kind(data.val_set)
    for index, shown in enumerate(data.val_set.records):
        truth, count = shown.truth, len(shown.truth.labels)
        found = Found(truth.boxes, np.full(count, 0.9 if index else 0.1), truth.labels)
        if truth.segments is not None:
            found = found._replace(masks=tuple(rle_of(s, shown.width, shown.height) for s in truth.segments))
        if truth.quads is not None and shown.instances.rboxes is not None:
            found = found._replace(rboxes=shown.instances.rboxes.astype(np.float64))
        if truth.points is not None:
            found = found._replace(points=truth.points[..., :2])
        evaluation.merge([{index: found}])
    return evaluation


@pytest.mark.parametrize("task", TASKS)
def test_detections_of_every_task_stand_beside_their_labels(shapes: Path, task: Task) -> None:
    data = data_of(shapes, task)
    evaluation = found_as_labelled(data, OrientedEvaluation if task == "obb" else CocoEvaluation)
    picture = validation(evaluation, 4)
    bare = [(index, found._replace(masks=None, rboxes=None, points=None)) for index, found in evaluation.detections()]
    stripped = type(evaluation)(data.val_set)
    stripped.merge([dict(bare)])
    plain = validation(stripped, 4)
    assert picture is not None and plain is not None
    step = SIDE + GAP
    differs = (picture != plain).any(2)
    assert not differs[:, :step].any() and not differs[:, 2 * step : 3 * step].any()  # labels are the same
    tops = [slice(TITLE, TITLE + SIDE), slice(TITLE + SIDE + GAP + TITLE, None)]
    assert not differs[tops[0], step : 2 * step].any()  # nothing was found in the first picture
    assert differs[tops[0], 3 * step :].mean() > 0.002 and differs[tops[1], step : 2 * step].mean() > 0.002


def test_points_without_a_label_are_not_drawn(shapes: Path) -> None:
    data = data_of(shapes, "keypoints").val_set
    pictures = []
    for visibility in (2, 1, 0):
        records = []
        for shown in data.records:
            assert shown.truth.points is not None
            points = shown.truth.points.copy()
            points[..., 2] = visibility
            records.append(replace(shown, truth=replace(shown.truth, points=points)))
        evaluation = CocoEvaluation(replace(data, records=tuple(records)))
        evaluation.merge([{0: Found(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))}])
        pictures.append(validation(evaluation, 1))
    bare = replace(data, records=tuple(replace(r, truth=replace(r.truth, points=None)) for r in data.records))
    evaluation = CocoEvaluation(bare)
    evaluation.merge([{0: Found(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64))}])
    seen, hidden, unknown = pictures
    assert np.array_equal(seen, hidden) and not np.array_equal(seen, unknown)
    assert np.array_equal(unknown, validation(evaluation, 1))


def test_labels_of_masks_are_those_of_the_picture(shapes: Path) -> None:
    """A mask that is drawn over its picture covers the object, whose colour is not that of the ground."""
    data = data_of(shapes, "segment").val_set
    shown = data.records[0]
    assert shown.truth.segments is not None
    pixels = np.asarray(Image.open(shown.image).convert("RGB"))
    masks = list(unpacked([rle_of(segment, shown.width, shown.height) for segment in shown.truth.segments]))
    drawn = draw_objects(
        pixels, Objects(np.full((len(masks), 4), np.nan), shown.truth.labels.tolist(), [""] * len(masks), masks)
    )
    changed = (drawn != pixels).any(2)
    union = np.any(masks, axis=0)
    assert not (changed & ~union).any() and (changed | ~union).mean() > 0.99

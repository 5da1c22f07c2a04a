"""Masks of COCO and YOLO: polygons, run lengths, and objects without any."""

from typing import Any

import numpy as np
import pytest
from pycocotools import mask as coco_mask

from lucid_core.data.coco import read_coco
from lucid_core.data.masks import rasterise
from lucid_core.data.problems import Kind
from lucid_core.data.records import DataSet
from lucid_core.data.types import DataError
from lucid_core.data.yolo import read_yolo
from lucid_core.evaluation.masks import rle_of

from .test_coco import HEIGHT, WIDTH, Coco, coco  # noqa: F401 - a fixture
from .test_yolo import Yolo, data  # noqa: F401 - a fixture

RING = [10, 10, 30, 10, 30, 25, 10, 25]
OTHER = [40, 10, 50, 10, 50, 25]


def read(bent: Coco) -> DataSet:
    bent.read()
    return read_coco(bent.folder, bent.file, task="segment")


@pytest.fixture
def outlined(coco: Coco) -> Coco:  # noqa: F811
    coco.content["annotations"][0]["segmentation"] = [RING]
    return coco


def packed(mask: Any) -> dict[str, Any]:
    found = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": found["size"], "counts": found["counts"].decode()}


def test_all_parts_of_an_object_are_kept_together(outlined: Coco) -> None:
    outlined.add(1, (10, 10, 40, 15), segmentation=[RING, OTHER])
    found = read(outlined)
    record = found.records[0]
    assert found.problems == () and [ring.shape for ring in record.instances.polygons[0]] == [(4, 2), (3, 2)]
    assert record.truth.segments is not None and len(record.truth.segments[0]) == 2
    mask = rasterise(record.instances.polygons, 64, stride=1)[0]
    assert mask[11, 11] and mask[11, 49] and not mask[11, 35]


def test_evaluation_keeps_polygons_as_stated_and_training_those_in_the_picture(outlined: Coco) -> None:
    outlined.add(1, (50, 10, 20, 15), segmentation=[[50, 10, 70, 10, 70, 25]])
    record = read(outlined).records[0]
    assert record.instances.polygons[0][0].max() == WIDTH
    assert record.truth.segments is not None and record.truth.segments[0][0].max() == 70  # type: ignore[index]


def test_a_mask_across_the_border_keeps_its_shape_inside(outlined: Coco) -> None:
    corners = [50, 0, -100, 40, 50, 40]
    outlined.add(1, (0, 0, 50, 40), segmentation=[corners, [-20, -20, -10, -20, -10, -10]])
    (rings,) = read(outlined).records[0].instances.polygons
    whole = np.array(corners, np.float32).reshape(-1, 2)
    assert len(rings) == 1 and rings[0].min() == 0
    seen = rasterise([rings, (whole,)], 64, stride=1)
    assert seen[1].sum() > 1500 and (seen[0] != seen[1]).sum() <= 2
    # So it is where the polygon only moves a box.
    assert [len(ring) for ring in outlined.read().records[0].instances.polygons[0]] == [len(rings[0])]


@pytest.mark.parametrize("crowd", [0, 1])
@pytest.mark.parametrize(
    ("stated", "bbox", "kind", "said"),
    [
        ([[10, 10, 20, 20, 30, 30]], (10, 10, 20, 20), Kind.NO_AREA, "the polygon has no area"),
        ([[10, 10, 30, 10, 30, 10, 10, 10]], (10, 10, 20, 20), Kind.NO_AREA, "the polygon has no area"),
        ([[10, 10, 30, 30, 30, 10, 10, 30]], (10, 10, 20, 20), Kind.NO_AREA, "crosses itself so that its parts"),
        ([RING], (40, 30, 10, 10), Kind.NO_MASK, "within bbox (40, 30, 10, 10) inside the 64 x 48 image"),
        ([RING], (30, 10, 10, 10), Kind.NO_MASK, "no part of the polygons"),
        ([[-30, 10, -2, 10, -2, 25]], (-30, 10, 40, 15), Kind.NO_MASK, "no part of the polygons"),
        ([[70, 10, 90, 10, 90, 25], [10, 10, 20, 20, 30, 30]], (10, 10, 80, 20), Kind.NO_MASK, "no part"),
    ],
)
def test_a_polygon_that_outlines_nothing_of_its_box_is_no_mask(
    outlined: Coco, stated: Any, bbox: Any, kind: Kind, said: str, crowd: int
) -> None:
    outlined.add(1, segmentation=[RING])
    outlined.add(1, bbox, segmentation=stated, iscrowd=crowd)
    found = read(outlined)
    assert [(one.kind, one.where) for one in found.problems] == [(kind, "annotation 3")]
    assert said.replace("(", "[").replace(")", "]") in str(found.problems[0]).replace("(", "[").replace(")", "]")
    assert len(found.records[0].truth.boxes) == 1
    # A box needs no polygon, and must not follow one that lies elsewhere.
    boxes = outlined.read()
    assert [one.kind for one in boxes.problems][:1] == [Kind.POLYGON] and len(boxes.records[0].truth.boxes) == 2
    assert crowd or boxes.records[0].instances.polygons[1] == ()


@pytest.mark.parametrize(
    ("bbox", "stated", "told"),
    [
        ((10, 10, 20, 15), [RING], False),
        ((8, 8.5, 24, 18), [RING], False),
        ((12.5, 10, 17.5, 15), [RING], True),
        ((10, 10, 30, 25), [RING], True),
        ((10, 10, 20, 15), [RING, OTHER], True),
        ((4, 10, 56, 15), [[10, 10, 60, 10, 60, 25, 10, 25]], True),
        ((5, 10, 55, 15), [[10, 10, 60, 10, 60, 25, 10, 25]], False),
        # Across the border: the box of all of it, that box cut, and the box of what is inside.
        ((40, 10, 60, 30), [[40, 20, 100, 10, 100, 40]], False),
        ((40, 10, 24, 30), [[40, 20, 100, 10, 100, 40]], False),
        ((40, 16, 24, 12), [[40, 20, 100, 10, 100, 40]], False),
    ],
)
def test_a_box_that_is_not_that_of_its_mask_is_told_and_kept(
    outlined: Coco, bbox: Any, stated: Any, told: bool
) -> None:
    outlined.add(1, bbox, segmentation=stated)
    found = read(outlined)
    seen = [(one.kind, one.where) for one in found.problems if one.kind is not Kind.CLIPPED]
    assert seen == ([(Kind.EXTENT, "annotation 2")] if told else [])
    x, y, w, h = bbox
    assert found.records[0].instances.boxes.tolist() == [[x, y, min(x + w, WIDTH), min(y + h, HEIGHT)]]
    assert not Kind.EXTENT.effect.is_fault


def test_the_area_of_an_object_that_states_none_is_that_of_its_mask(outlined: Coco) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.bool_)
    mask[10:20, 10:30] = True
    mask[12:14, 12:14] = False
    outlined.add(1, (10, 10, 40, 15), segmentation=[RING, OTHER])
    outlined.add(1, (10, 10, 20, 10), segmentation=packed(mask))
    outlined.add(1, (10, 10, 20, 10), segmentation=packed(mask), iscrowd=1)
    outlined.add(1, (10, 10, 40, 15), segmentation=[OTHER], area=7)
    assert read(outlined).records[0].truth.areas.tolist() == [300 + 75, 196, 196, 7]
    assert outlined.read().records[0].truth.areas.tolist() == [600, 200, 200, 7]


def test_run_lengths_that_miss_their_box_are_no_mask(outlined: Coco) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.bool_)
    mask[5:30, 5:30] = True
    mask[10:20, 10:20] = False
    # The box lies in the hole.
    outlined.add(1, (11, 11, 6, 6), segmentation=packed(mask))
    outlined.add(1, segmentation=[RING])
    assert [(one.kind, one.where) for one in read(outlined).problems] == [(Kind.NO_MASK, "annotation 2")]


def test_training_and_evaluation_fill_parts_that_overlap_alike(outlined: Coco) -> None:
    outlined.add(1, (10, 10, 30, 20), segmentation=[RING, [20, 15, 40, 15, 40, 30, 20, 30]])
    record = read(outlined).records[0]
    assert record.truth.segments is not None
    scored = coco_mask.decode(rle_of(record.truth.segments[0], WIDTH, HEIGHT))
    taught = rasterise(record.instances.polygons, 64, stride=1)[0, :HEIGHT, :WIDTH]
    assert taught[20, 25] and (taught != scored).mean() < 0.05


def test_run_lengths_are_trained_as_exact_outlines_and_kept_for_evaluation(outlined: Coco) -> None:
    mask = np.zeros((HEIGHT, WIDTH), np.bool_)
    mask[10:25, 10:30] = True
    mask[12:15, 12:15] = False
    mask[11, 31] = True
    outlined.add(1, segmentation=packed(mask), area=282)
    found = read(outlined)
    record = found.records[0]
    assert found.problems == ()
    np.testing.assert_array_equal(rasterise(record.instances.polygons, 64, stride=1)[0, :HEIGHT], mask)
    np.testing.assert_array_equal(coco_mask.decode(record.truth.segments[0]), mask)  # type: ignore[index]
    # Detection reads the box alone, as ever.
    assert outlined.read().records[0].instances.polygons == ((),)


def test_crowd_regions_are_for_evaluation_alone(outlined: Coco) -> None:
    outlined.add(1, segmentation=packed(np.ones((HEIGHT, WIDTH))), iscrowd=1)
    outlined.add(1, segmentation=[RING])
    record = read(outlined).records[0]
    assert len(record.instances) == 1 and record.truth.crowd.tolist() == [True, False]
    assert record.truth.segments is not None
    assert isinstance(record.truth.segments[0], dict) and isinstance(record.truth.segments[1], tuple)


@pytest.mark.parametrize(
    "stated",
    [
        None,
        [],
        [[10, 20]],
        [[10, 20, 30, 40]],
        [10, 20, 30, 20, 30, 40],
        [[1, 1, 5, 1, 5, 5, 1]],
        [[1, 1, 5, 1, float("nan"), 5]],
        "polygon",
        {"size": [WIDTH, HEIGHT], "counts": [0, WIDTH * HEIGHT]},
        {"size": [HEIGHT, WIDTH], "counts": [WIDTH * HEIGHT]},
        {"size": [HEIGHT, WIDTH], "counts": [1, 2, 3]},
        {"counts": "abc"},
    ],
)
def test_an_object_without_a_mask_is_left_out_by_name_and_the_others_stay(outlined: Coco, stated: Any) -> None:
    outlined.add(1, segmentation=[RING])
    outlined.add(1, (5, 5, 9, 9), segmentation=stated)
    found = read(outlined)
    assert [(one.kind, one.where) for one in found.problems] == [(Kind.NO_MASK, "annotation 3")]
    assert "one.png" in str(found.problems[0]) and "left out" in str(found.problems[0])
    record = found.records[0]
    assert len(record.instances) == len(record.instances.polygons) == len(record.truth.boxes) == 1
    assert len(outlined.read().records[0].instances) == 2


def test_a_bad_part_is_left_out_and_the_others_stay(outlined: Coco) -> None:
    outlined.add(1, segmentation=[RING, [1, 2, 3, 4]])
    found = read(outlined)
    assert [(one.kind, one.where) for one in found.problems] == [(Kind.POLYGON, "annotation 2")]
    assert "its other parts are kept" in str(found.problems[0])
    assert len(found.records[0].instances.polygons[0]) == 1


def test_a_yolo_row_of_a_box_alone_is_left_out_and_nothing_gets_out_of_step(data: Yolo) -> None:  # noqa: F811
    ring = "0 0.1 0.1 0.5 0.1 0.5 0.5"
    for number in range(3):
        data.picture(f"train/{number}.png", f"{ring}\n")
    data.picture("train/3.png", f"1 0.5 0.5 0.25 0.5\n{ring} 0.1 0.5\n")
    data.read()
    found = read_yolo(data.root / "data.yaml", "train", task="segment")
    assert [(one.kind, one.where) for one in found.problems] == [(Kind.NO_MASK, "line 1")]
    assert "3.txt:1: is a box without a polygon" in str(found.problems[0])
    for record in found.records:
        assert len(record.instances) == 1 and len(record.instances.polygons[0]) == 1
        assert record.truth.segments is not None and len(record.truth.segments) == 1
    assert found.records[0].truth.areas[0] == pytest.approx(0.5 * 0.4 * 64 * 0.4 * 48)
    assert found.records[3].truth.areas[0] == pytest.approx(0.4 * 64 * 0.4 * 48)


def test_a_data_set_of_boxes_alone_is_refused(data: Yolo) -> None:  # noqa: F811
    data.read()
    with pytest.raises(DataError, match=r"no picture of split 'train' is usable.*box without a polygon"):
        read_yolo(data.root / "data.yaml", "train", task="segment")

"""Oriented boxes: COCO rings of four points, YOLO rows of nine numbers, DOTA text."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.coco import read_coco
from lucid_core.data.collate import check_rboxes
from lucid_core.data.geometry import corners
from lucid_core.data.layout import open_classes, open_split
from lucid_core.data.plan import EpochPlan
from lucid_core.data.problems import Fault, Kind
from lucid_core.data.quads import LEAST_SIDE, from_rbox, oriented
from lucid_core.data.records import DataSet
from lucid_core.data.types import DataError, Instances, NoSplit, SampleKey
from lucid_core.data.yolo import read_yolo
from lucid_core.evaluation.rotated import overlaps

from .synthetic import SIZE, PaintedSource, make_record
from .test_coco import HEIGHT, WIDTH, Coco, coco  # noqa: F401 - a fixture
from .test_yolo import Yolo, data  # noqa: F401 - a fixture

#: A rectangle of 20 x 10 pixels, turned by atan(3 / 4).
TURNED = [10, 10, 26, 22, 20, 30, 4, 18]
ANGLE = math.atan2(3, 4)


def read(bent: Coco) -> DataSet:
    bent.read()
    return read_coco(bent.folder, bent.file, task="obb")


@pytest.fixture
def turned(coco: Coco) -> Coco:  # noqa: F811
    coco.content["annotations"][0]["segmentation"] = [TURNED]
    return coco


class Dota:
    """A small data set of DOTA text."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def picture(self, name: str, text: str | bytes | None, split: str = "train") -> None:
        for folder in ("images", "labelTxt"):
            (self.root / split / folder).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (WIDTH, HEIGHT)).save(self.root / split / "images" / f"{name}.png")
        if text is not None:
            content = text.encode() if isinstance(text, str) else text
            (self.root / split / "labelTxt" / f"{name}.txt").write_bytes(content)

    def read(self, split: Any = "train") -> DataSet:
        return open_split(self.root, split, task="obb")


@pytest.fixture
def dota(tmp_path: Path) -> Dota:
    one = Dota(tmp_path)
    (tmp_path / "classes.txt").write_text("plane\nstorage tank\n")
    one.picture("0", f"{' '.join(map(str, TURNED))} plane 0\n")
    one.picture("1", "10 10 30 10 30 20 10 20 storage tank 1\n")
    return one


@pytest.mark.parametrize("start", range(4))
@pytest.mark.parametrize("step", [1, -1])
def test_a_box_is_the_same_from_every_corner_and_in_both_senses(start: int, step: int) -> None:
    quad = np.roll(np.array(TURNED, np.float64).reshape(4, 2), start, 0)[::step]
    found = oriented(quad, WIDTH, HEIGHT)
    np.testing.assert_allclose(found.rbox, [15, 20, 20, 10, ANGLE], atol=1e-5)
    assert found.box == (4, 10, 26, 30) and found.area == 200 and found.notes == ()
    skewed = np.array([[100, 100], [200, 130], [190, 170], [90, 140]], np.float64)
    again = oriented(np.roll(skewed, start, 0)[::step], 640, 480)
    np.testing.assert_allclose(again.rbox, oriented(skewed, 640, 480).rbox, atol=1e-4)


@settings(max_examples=80, deadline=None)
@given(
    st.floats(20, 40),
    st.floats(20, 30),
    st.floats(2, 19),
    st.floats(2, 19),
    st.floats(-math.pi, math.pi),
)
def test_corners_and_box_say_the_same(cx: float, cy: float, w: float, h: float, angle: float) -> None:
    quad = from_rbox(np.array([cx, cy, w, h, angle]))
    found = oriented(quad, 1000, 1000)
    again = corners(found.rbox[None])[0]
    assert min(np.abs(np.roll(again, turn, 0) - quad).max() for turn in range(4)) < 1e-3
    assert found.rbox[2] >= found.rbox[3] and -math.pi / 4 <= found.rbox[4] < 3 * math.pi / 4


def test_a_square_has_its_angle_within_a_quarter_turn() -> None:
    found = oriented(np.array([[150, 100], [200, 150], [150, 200], [100, 150]], np.float64), 640, 480)
    assert found.rbox[2] == found.rbox[3] and -math.pi / 4 <= found.rbox[4] < math.pi / 4


@pytest.mark.parametrize(
    ("quad", "kind"),
    [
        ([0, 0, 10, 10, 10, 0, 0, 10], Kind.CROSSED),
        ([5, 5, 5, 5, 5, 5, 5, 5], Kind.NO_AREA),
        ([5, 5, 25, 5, 25, 5, 5, 5], Kind.NO_AREA),
        ([-50, -50, -40, -50, -40, -45, -50, -45], Kind.NO_AREA),
        ([5, 5, 25, 5, 25, 5.00001, 5, 5.00001], Kind.NO_AREA),
        ([5, 5, 25, 5, 35, 5.00001, 15, 5.00001], Kind.NO_AREA),
        ([-20, 5, 0.001, 5, 0.001, 20, -20, 20], Kind.NO_AREA),
        ([5, 5, 25, 5, 25, 20, 25, 20], Kind.NO_CORNERS),
        ([5, 5, 25, 5, 25, 20, 5, 5], Kind.NO_CORNERS),
        ([float("nan"), 0, 10, 0, 10, 10, 0, 10], Kind.NOT_FINITE),
        ([float("inf"), 0, 10, 0, 10, 10, 0, 10], Kind.NOT_FINITE),
    ],
)
def test_four_corners_that_are_no_box_are_a_fault(quad: list[float], kind: Kind) -> None:
    with pytest.raises(Fault) as fault:
        oriented(np.array(quad, np.float64).reshape(4, 2), WIDTH, HEIGHT)
    assert fault.value.kind is kind


def test_whatever_the_reader_keeps_can_be_taught() -> None:
    rng = np.random.default_rng(0)
    side = 4000
    centres, lengths = rng.uniform(1000, 3000, (2, 300)), rng.uniform(500, 1900, (1, 300))
    rows = np.concatenate([centres, lengths, LEAST_SIDE * rng.uniform(1.1, 3, (1, 300)), rng.uniform(0, 3, (1, 300))])
    found = [oriented(from_rbox(row), side, side) for row in rows.T]
    boxes = np.array([one.box for one in found], np.float32)
    rboxes = np.array([one.rbox for one in found], np.float32)
    instances = Instances(boxes, np.zeros(len(boxes), np.int64), ((),) * len(boxes), rboxes)
    records = tuple(make_record(index, side, side, instances) for index in range(4))
    recipe = Recipe(degrees=180, shear=20, scale=1)
    augmenter = Augmenter(PaintedSource(records), records, EpochPlan(4, 0, None, 0), SIZE, recipe, 0)
    samples = [augmenter.sample(SampleKey(epoch, position, True)) for epoch in range(10) for position in range(4)]
    assert sum(len(made.instances) for made in samples) > 1000
    for made in samples:
        check_rboxes(made, records[0].image)


def test_a_corner_that_is_pushed_in_gives_the_smallest_rectangle_and_is_told() -> None:
    quad = np.array([[10, 10], [30, 10], [15, 15], [10, 30]], np.float64)
    found = oriented(quad, WIDTH, HEIGHT)
    assert [kind for kind, _ in found.notes] == [Kind.CONCAVE]
    np.testing.assert_allclose(found.rbox[:4], [20, 20, 20, 20], atol=1e-4)
    np.testing.assert_array_equal(found.quad, quad)


@pytest.mark.parametrize(
    ("quad", "told"),
    [
        (TURNED, False),
        ([10, 10, 60, 10, 90, 30, 40, 30], True),
        ([10, 10, 30, 10, 32, 20, 12, 20], False),
        # A triangle with a point on a side.
        ([10, 10, 20, 10, 30, 10, 20, 30], True),
    ],
)
def test_corners_far_from_a_rectangle_are_told_with_the_overlap_of_what_is_taught(
    quad: list[float], told: bool
) -> None:
    for start in range(4):
        placed = np.roll(np.array(quad, np.float64).reshape(4, 2) + 3000, start, 0)
        found = oriented(placed, 4000, 4000)
        assert [kind for kind, _ in found.notes] == [Kind.SKEWED] * told
        share = float(overlaps(torch.as_tensor(placed)[None], torch.as_tensor(found.rbox).double()[None]))
        assert (share < 0.8) == told
        assert all(f"overlaps them to {share:.2f}" in text for _, text in found.notes)


def test_a_box_across_the_border_closes_around_what_is_inside_in_its_own_direction() -> None:
    shifted = np.array(TURNED, np.float64).reshape(4, 2) - (15, 0)
    found = oriented(shifted, WIDTH, HEIGHT)
    assert [kind for kind, _ in found.notes] == [Kind.CLIPPED]
    assert found.rbox[4] == pytest.approx(ANGLE) and found.rbox[2] < 20 and found.rbox[3] <= 10 + 1e-4
    assert found.box[0] == 0 and found.area == 200
    np.testing.assert_array_equal(found.quad, shifted)
    # Rounding is no fault.
    rounded = np.array([[-0.02, 0], [WIDTH + 0.05, 0], [WIDTH, 9], [0, 9]], np.float64)
    assert oriented(rounded, WIDTH, HEIGHT).notes == ()


def test_coco_takes_the_ring_of_four_points_rather_than_the_stated_box(turned: Coco) -> None:
    turned.add(1, segmentation=[TURNED], difficult=1)
    turned.add(1, segmentation=[TURNED], iscrowd=1)
    found = read(turned)
    record = found.records[0]
    assert found.problems == ()
    np.testing.assert_allclose(record.instances.rboxes, [[15, 20, 20, 10, ANGLE]], atol=1e-5)
    assert record.instances.boxes.tolist() == [[4, 10, 26, 30]] and record.instances.polygons == ((),)
    truth = record.truth
    assert truth.quads is not None and truth.quads.reshape(2, 8).tolist() == [TURNED, TURNED]
    assert truth.difficult is not None and truth.difficult.tolist() == [True, False]
    assert truth.crowd.tolist() == [False, True] and truth.areas.tolist() == [200, 200]


def test_coco_takes_five_numbers_where_they_are_stated(turned: Coco) -> None:
    turned.add(1, rbox=[15, 20, 20, 10, ANGLE], segmentation=[[1, 2, 3, 4, 5, 0]])
    np.testing.assert_allclose(read(turned).records[0].truth.quads, [np.reshape(TURNED, (4, 2))], atol=1e-9)  # type: ignore


def test_coco_takes_angles_of_a_turn_and_knows_degrees(turned: Coco) -> None:
    turned.add(1, rbox=[30, 25, 20, 10, ANGLE - 2 * math.pi])
    turned.add(1, rbox=[30, 25, 20, 10, 6.2832])
    found = read(turned)
    expected = [[30, 25, 20, 10, ANGLE], [30, 25, 20, 10, 0]]
    np.testing.assert_allclose(found.records[0].instances.rboxes, expected, atol=1e-4)
    turned.add(1, rbox=[30, 25, 20, 10, 45])
    turned.add(1, segmentation=[TURNED])
    # A small angle is degrees too where another one is.
    found = read(turned)
    np.testing.assert_allclose(found.records[0].instances.rboxes, [[15, 20, 20, 10, ANGLE]], atol=1e-5)
    assert [(one.kind, one.where) for one in found.problems] == [
        (Kind.OUT_OF_RANGE, f"annotation {row}") for row in (2, 3, 4)
    ]
    said = "has angle 6.2832, and annotations[3] has angle 45, so that the file looks like degrees; write it in radians"
    assert said in str(found.problems[1])
    assert "angle 45, which looks like degrees; write it in radians" in str(found.problems[2])


@pytest.mark.parametrize(
    ("extra", "kind"),
    [
        ({}, Kind.NO_CORNERS),
        ({"segmentation": []}, Kind.NO_CORNERS),
        ({"segmentation": [TURNED[:6]]}, Kind.NO_CORNERS),
        ({"segmentation": [TURNED, TURNED]}, Kind.NO_CORNERS),
        ({"segmentation": {"size": [HEIGHT, WIDTH], "counts": [WIDTH * HEIGHT]}}, Kind.NO_CORNERS),
        ({"segmentation": [[*TURNED[:7], "x"]]}, Kind.NOT_FINITE),
        ({"segmentation": [[0, 0, 10, 10, 10, 0, 0, 10]]}, Kind.CROSSED),
        ({"rbox": [1, 2, 3, 4]}, Kind.NO_CORNERS),
        ({"rbox": [1, 2, -3, 4, 0]}, Kind.NO_AREA),
        ({"rbox": [1, 2, 3, 4, None]}, Kind.NOT_FINITE),
        ({"rbox": [30, 25, 20, 10, 45]}, Kind.OUT_OF_RANGE),
        ({"rbox": [30, 25, 20, 10, -6.3]}, Kind.OUT_OF_RANGE),
    ],
)
def test_an_object_without_four_corners_is_left_out_by_name(turned: Coco, extra: Any, kind: Kind) -> None:
    turned.add(1, segmentation=[TURNED])
    turned.add(1, **extra)
    found = read(turned)
    assert [(one.kind, one.where) for one in found.problems] == [(kind, "annotation 3")]
    record = found.records[0]
    assert len(record.instances) == len(record.truth.boxes) == len(record.truth.quads) == 1  # type: ignore[arg-type]


def rows_of(bent: Yolo, text: str) -> DataSet:
    bent.picture("train/0.png", text)
    bent.picture("train/1.png", "1 0.25 0.25 0.5 0.25 0.5 0.5 0.25 0.5\n")
    (bent.root / "images/train/2.png").unlink(missing_ok=True)
    bent.read()
    return read_yolo(bent.root / "data.yaml", "train", task="obb")


def test_yolo_rows_of_nine_numbers_are_corners(data: Yolo) -> None:  # noqa: F811
    shares = " ".join(f"{value / side}" for value, side in zip(TURNED, (WIDTH, HEIGHT) * 4, strict=True))
    found = rows_of(data, f"0 {shares}\n")
    assert found.problems == ()
    np.testing.assert_allclose(found.records[0].instances.rboxes, [[15, 20, 20, 10, ANGLE]], atol=1e-4)
    assert found.records[0].instances.polygons == ((),) and not found.records[0].truth.difficult.any()  # type: ignore
    data.picture("train/0.png", "")
    data.read()
    empty = read_yolo(data.root / "data.yaml", "train", task="obb").records[0]
    assert empty.instances.rboxes.shape == (0, 5) and empty.truth.quads.shape == (0, 4, 2)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    [
        ("0 0.5 0.5 0.2 0.2", Kind.DIALECT, "has 5 fields"),
        ("0 0.1 0.1 0.5 0.1 0.5 0.4", Kind.DIALECT, "has 7 fields"),
        ("10 10 26 22 20 30 4 18 plane 0", Kind.DIALECT, "looks like DOTA text"),
        ("10 10 26 22 20 30 4 18 plane", Kind.DIALECT, "looks like DOTA text"),
        ("0 10 10 26 22 20 30 4 18", Kind.OUT_OF_RANGE, "divide pixels"),
        ("0 0.1 0.1 0.5 0.5 0.5 0.1 0.1 0.5", Kind.CROSSED, "in order"),
        ("0 nan 0.1 0.5 0.1 0.5 0.4 0.1 0.4", Kind.NOT_FINITE, "nan"),
        ("7 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4", Kind.UNKNOWN_CLASS, "class 7"),
    ],
)
def test_a_row_of_another_dialect_is_told_with_its_line(data: Yolo, row: str, kind: Kind, said: str) -> None:  # noqa: F811
    found = rows_of(data, f"0 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4\n{row}\n")
    assert [(one.kind, one.where) for one in found.problems] == [(kind, "line 2")]
    assert "0.txt:2: " in str(found.problems[0]) and said in str(found.problems[0])
    assert [len(record.instances) for record in found.records] == [1, 1]


def test_corners_may_reach_outside_of_the_picture(data: Yolo) -> None:  # noqa: F811
    found = rows_of(data, "0 -0.1 0.1 0.5 0.1 0.5 0.4 -0.1 0.4\n")
    assert found.problems == ()
    np.testing.assert_allclose(found.records[0].instances.boxes, [[0, 4.8, 32, 19.2]], atol=1e-4)
    np.testing.assert_allclose(found.records[0].instances.rboxes, [[12.8, 12, 38.4, 14.4, 0]], atol=1e-4)  # type: ignore
    found = rows_of(data, "0 -0.5 0.1 0.5 0.1 0.5 0.4 -0.5 0.4\n")
    assert [one.kind for one in found.problems] == [Kind.CLIPPED]
    np.testing.assert_allclose(found.records[0].instances.rboxes, [[16, 12, 32, 14.4, 0]], atol=1e-4)  # type: ignore


def test_dota_text_is_read_with_names_difficulty_and_headers(dota: Dota) -> None:
    dota.picture("2", b"imagesource:GoogleEarth\r\nGSD:0.146\r\n\r\n10 10\t30 10  30 20 10 20 plane 2\r\n")
    dota.picture("3", "10 10 30 10 30 20 10 20 plane\n")
    dota.picture("4", None)
    found = dota.read()
    assert found.problems == () and found.class_names == ("plane", "storage tank")
    assert [record.instances.labels.tolist() for record in found.records] == [[0], [1], [0], [0], []]
    assert [record.truth.difficult.tolist() for record in found.records] == [[False], [True], [True], [False], []]  # type: ignore
    np.testing.assert_allclose(found.records[0].instances.rboxes, [[15, 20, 20, 10, ANGLE]], atol=1e-5)
    assert open_classes(dota.root, "train", task="obb").class_names == found.class_names


def test_without_a_list_the_classes_are_those_of_all_rows_and_that_is_told(dota: Dota) -> None:
    dota.picture("9", "10 10 30 10 30 20 10 20 boat 0\n", "val")
    (dota.root / "classes.txt").write_text("storage tank\nboat\nplane\n")
    for split in ("train", "val"):
        assert dota.read(split).class_names == ("storage tank", "boat", "plane") and dota.read(split).problems == ()
    (dota.root / "classes.txt").unlink()
    for split in ("train", "val"):
        found = dota.read(split)
        assert found.class_names == ("boat", "plane", "storage tank")
        assert [one.kind for one in found.problems] == [Kind.NO_CLASS_TABLE]
        assert "boat, plane, storage tank" in str(found.problems[0]) and not found.problems[0].kind.effect.is_fault
    (dota.root / "classes.txt").write_text("\n")
    with pytest.raises(DataError, match=r"classes\.txt: is empty"):
        dota.read()


@pytest.mark.parametrize("listed", [True, False])
def test_a_label_file_that_cannot_be_read_is_left_out_with_its_picture(dota: Dota, listed: bool) -> None:
    dota.picture("2", b"\xff\xfe1\x00")
    if not listed:
        (dota.root / "classes.txt").unlink()
    found = dota.read()
    assert [one.image.name for one in found.records] == ["0.png", "1.png"]
    assert found.class_names == ("plane", "storage tank")
    told = [one for one in found.problems if one.kind is not Kind.NO_CLASS_TABLE]
    assert [(one.kind, one.file.name) for one in told] == [(Kind.LABEL_FILE, "2.txt")]


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    [
        ("0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4 plane 0", Kind.DIALECT, "corners in shares of the picture"),
        ("-0.1 0.1 1 0.1 1.0005 0.4 0 0.4 plane", Kind.DIALECT, "corners in shares of the picture"),
        ("0 0 0 0 0 0 0 0 plane 0", Kind.NO_AREA, "across"),
        ("0 0 1 0 1 nan 0 2 plane 0", Kind.NOT_FINITE, "nan"),
        ("10 10 30 10 30 20 10 20 plane 0.5", Kind.MALFORMED, "difficulty 0.5"),
        ("10 10 30 10 30 20 10 20 plane 3", Kind.MALFORMED, "difficulty 3, which is not 0, 1 or 2"),
        ("10 10 30 10 30 20 10 20 plane -1", Kind.MALFORMED, "difficulty -1, which is not 0, 1 or 2"),
        ("10 10 30 10 30 20 10 20 plane nan", Kind.MALFORMED, "difficulty nan"),
        ("10 10 30 10 30 20 10 20 plane --1", Kind.UNKNOWN_CLASS, "'plane --1'"),
        ("10 10 30 10 30 20 10 plane 0", Kind.MALFORMED, "is not a row"),
    ],
)
def test_a_row_that_is_no_dota_text_is_told_with_its_line(dota: Dota, row: str, kind: Kind, said: str) -> None:
    dota.picture("2", f"10 10 30 10 30 20 10 20 plane 0\n{row}\n")
    found = dota.read()
    assert [(one.kind, one.where) for one in found.problems] == [(kind, "line 2")]
    assert "2.txt:2: " in str(found.problems[0]) and said in str(found.problems[0])
    assert len(found.records[2].instances) == 1


def test_a_difficulty_may_be_written_as_a_float(dota: Dota) -> None:
    dota.picture("2", "10 10 30 10 30 20 10 20 plane 1.0\n10 10 30 10 30 20 10 22 storage tank 0.0\n")
    found = dota.read()
    assert found.problems == () and found.records[2].truth.difficult.tolist() == [True, False]  # type: ignore[union-attr]


def test_files_that_share_their_labels_or_have_capital_suffixes_are_paired(dota: Dota) -> None:
    folder = dota.root / "train/images"
    (folder / "0.jpg").write_bytes((folder / "0.png").read_bytes())
    labels = dota.root / "train/labelTxt"
    (labels / "1.txt").rename(labels / "1.TXT")
    found = dota.read()
    assert [len(one.instances) for one in found.records] == [1, 1, 1]
    assert [one.kind for one in found.problems] == [Kind.SHARED_LABELS]
    (dota.root / "classes.txt").unlink()
    assert dota.read().class_names == ("plane", "storage tank")


def test_a_class_that_is_not_listed_is_told(dota: Dota) -> None:
    (dota.root / "classes.txt").write_text("plane\n")
    found = dota.read()
    assert [one.kind for one in found.problems] == [Kind.UNKNOWN_CLASS, Kind.NO_USABLE_LABEL]
    assert "1.txt:1: class 'storage tank'" in str(found.problems[0])


def test_yolo_rows_in_dota_text_are_told_and_alone_refused(dota: Dota, tmp_path: Path) -> None:
    dota.picture("0", "0 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4\n10 10 30 10 30 20 10 20 plane 0\n10 10 plane\n")
    found = dota.read()
    assert [(one.kind, one.where) for one in found.problems] == [(Kind.DIALECT, "line 1"), (Kind.MALFORMED, "line 3")]
    assert "0.txt:1: " in str(found.problems[0]) and "x1 y1 x2 y2" in str(found.problems[0])
    alone = Dota(tmp_path / "alone")
    alone.picture("0", "0 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4\n")
    with pytest.raises(DataError, match=r"no file in it has a row x1 y1 .*0\.txt:1: '0 0\.1.* as rows of YOLO have"):
        alone.read()
    alone.picture("0", "0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4 plane 0\n")
    with pytest.raises(DataError, match=r"no file in it has a row x1 y1 .*0\.txt:1: '0\.1 .* corners in shares"):
        alone.read()


def test_a_list_of_pictures_is_read_and_cannot_lead_outside(dota: Dota) -> None:
    root = dota.root / "listed"
    (root / "images").mkdir(parents=True)
    (root / "classes.txt").write_text("plane\n")
    (root / "labels").mkdir()
    Image.new("RGB", (WIDTH, HEIGHT)).save(root / "images" / "0.png")
    (root / "labels" / "0.txt").write_text("10 10 30 10 30 20 10 20 plane 0\n")
    (root / "train.txt").write_text("images/0.png\n../train/images/0.png\nimages/9.png\n")
    found = open_split(root, "train", task="obb")
    assert [one.image.name for one in found.records] == ["0.png"] and len(found.records[0].instances) == 1
    assert [one.kind for one in found.problems] == [Kind.PICTURE_OUTSIDE, Kind.PICTURE_MISSING]


def test_dota_text_serves_oriented_boxes_alone(dota: Dota) -> None:
    with pytest.raises(
        NoSplit, match=r"labelTxt with .*images is DOTA text.* --task obb, train with --config task-obb"
    ):
        open_split(dota.root, "train")
    with pytest.raises(NoSplit, match=r"if they are called otherwise$"):
        open_split(dota.root, "test")
    with pytest.raises(DataError, match="its task is obb, not detect; check it with --task obb"):
        open_split(dota.root, "train", "dota")
    with pytest.raises(DataError, match="labelTxt"):
        open_split(dota.root, "test", task="obb")

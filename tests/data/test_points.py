"""Key points: tables, names that say left and right, and what is wrong with them."""

import json
from typing import Any

import numpy as np
import pytest

from lucid_core.data.coco import read_coco, read_coco_classes
from lucid_core.data.points import mirror_pairs, show_points
from lucid_core.data.problems import Kind
from lucid_core.data.records import DataSet, match_classes
from lucid_core.data.types import DataError
from lucid_core.data.yolo import read_yolo, read_yolo_classes

from .test_coco import HEIGHT, WIDTH, Coco, coco  # noqa: F401 - a fixture
from .test_yolo import Yolo, data  # noqa: F401 - a fixture

NAMES = ["nose", "left_eye", "right_eye"]
POINTS = [1, 2, 2, 30, 5, 1, 0, 0, 0]


def read(bent: Coco) -> DataSet:
    bent.read()
    return read_coco(bent.folder, bent.file, task="keypoints")


def read_rows(bent: Yolo) -> DataSet:
    bent.read()
    return read_yolo(bent.root / "data.yaml", "train", task="keypoints")


@pytest.fixture
def posed(coco: Coco) -> Coco:  # noqa: F811
    coco.content["categories"] = [
        {"id": 3, "name": "cat", "keypoints": NAMES, "skeleton": [[1, 2], [1, 3], [0, 9], "x"]},
        {"id": 7, "name": "stone"},
    ]
    coco.add(1, keypoints=POINTS, num_keypoints=2)
    coco.add(1, (1, 1, 9, 9), category_id=7)
    return coco


@pytest.fixture
def rows(data: Yolo) -> Yolo:  # noqa: F811
    data.config |= {"kpt_shape": [3, 3], "flip_idx": [0, 2, 1]}
    for number in range(3):
        data.picture(f"train/{number}.png", "0 0.5 0.5 0.25 0.5 0.5 0.25 2 0.75 0.5 1 0 0 0\n")
    return data


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (["nose", "left_eye", "right_eye", "tail"], ((1, 2),)),
        (["right", "top", "left", "bottom"], ((0, 2),)),
        (["Eye.L", "Eye.R"], ((0, 1),)),
        (["leftEye", "rightEye", "LeftHand1", "RightHand1"], ((0, 1), (2, 3))),
        (["left upper left", "right upper right"], ((0, 1),)),
        (["cleft", "bright"], ()),
        (["head", "tail"], ()),
        (["left_eye", "nose"], None),
        (["left-eye", "left_eye", "right_eye"], None),
        (["", ""], None),
        (["LShoulder", "RShoulder", "LHip", "RHip"], ((0, 1), (2, 3))),
        (["lshoulder", "rshoulder", "rhip", "lhip", "neck"], ((0, 1), (2, 3))),
        (["shoulderl", "shoulderR", "shoulderr", "kneeLeft", "kneeRight"], None),
        (["RANKLE", "LANKLE", "LToe2", "RToe2"], ((0, 1), (2, 3))),
        (["leftshoulder", "rightshoulder", "hipright", "hipleft"], ((0, 1), (2, 3))),
        (["hand_lthumb", "hand_rthumb", "lip", "rear", "tail"], ((0, 1),)),
        (["LHip", "RHip", "LKnee"], None),
        (["ll", "rl", "lr"], None),
        (["1", "2", "3", "4"], None),
        (["new-point-0", "new-point-1"], None),
        (["p1", "P2", "p 3"], None),
        (["spine1", "spine2", "head"], ()),
        (["gauche", "droite"], ()),
        (["nose"], ()),
        (["1"], ()),
    ],
)
def test_names_say_which_points_change_places_in_a_mirror(names: list[str], pairs: Any) -> None:
    assert mirror_pairs(names) == pairs


@pytest.mark.parametrize(
    ("names", "kind", "said"),
    [
        (["LEye", "REye", "nose"], None, ""),
        (["1", "2", "3"], Kind.NO_MIRROR, "named 1, 2, 3, which pairs no left with a right"),
        (["new-point-0", "new-point-1", "new-point-2"], Kind.NO_MIRROR, "new-point-0, new-point-1"),
        (["gauche", "droite", "nez"], Kind.NO_SIDES, "none of gauche, droite, nez says left or right"),
        (["left_eye", "right_eye", "chin_1", "chin_2", "nose"], Kind.NO_SIDES, "none of chin_1, chin_2 says"),
    ],
)
def test_names_that_say_no_side_are_told_by_both_readers(
    posed: Coco,
    rows: Yolo,
    names: list[str],
    kind: Kind | None,
    said: str,
) -> None:
    rows.config |= {"kpt_shape": [len(names), 3], "kpt_names": {0: names}, "flip_idx": None}
    for number in range(3):
        rows.picture(f"train/{number}.png", "0 0.5 0.5 0.25 0.5" + " 0.5 0.25 2" * len(names))
    posed.content["categories"][0]["keypoints"] = names
    posed.content["annotations"][1]["keypoints"] = [5, 5, 2] * len(names)
    for found in (read(posed), read_rows(rows)):
        assert [one.kind for one in found.problems] == ([] if kind is None else [kind])
        assert all(said in str(one) and not one.kind.effect.is_fault for one in found.problems)
        assert found.points is not None and found.points.names == tuple(names)
        assert (found.points.pairs is None) == (kind is Kind.NO_MIRROR)
    # Who states the table has said it.
    rows.config["flip_idx"] = list(range(len(names)))
    assert read_rows(rows).problems == ()


def test_coco_gives_table_points_and_truth(posed: Coco) -> None:
    found = read(posed)
    assert found.problems == () and found.points is not None
    table = found.points
    assert (table.count, table.names, table.pairs) == (3, tuple(NAMES), ((1, 2),))
    assert table.skeleton == ((0, 1), (0, 2))
    cat = found.records[0]
    assert cat.instances.points is not None and cat.instances.points.dtype == np.float32
    assert cat.instances.points.tolist() == [[[1, 2], [30, 5], [0, 0]], [[0, 0]] * 3]
    assert cat.instances.visibility.tolist() == [[2, 1, 0], [0, 0, 0]]  # type: ignore[union-attr]
    assert cat.truth.points.tolist()[0] == [[1, 2, 2], [30, 5, 1], [0, 0, 0]]  # type: ignore[union-attr]
    assert read_coco_classes(posed.file, "keypoints").points == table
    assert read_coco_classes(posed.file).points is None


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (lambda one: one.content["categories"][1].update(keypoints=["a"]), "'cat' has 3 key points .* 'stone' has 1"),
        (lambda one: one.content["categories"][1].update(keypoints=NAMES[::-1]), "right_eye, left_eye, nose"),
        (lambda one: one.content["categories"][0].pop("keypoints"), None),
        (lambda one: [row.pop("keypoints", 0) for row in one.content["categories"]] and one.add(1, keypoints=[1, 2, 2]),
         r"annotations have \[1, 3\]"),
        (lambda one: [row.pop("keypoints", 0) for rows in ("categories", "annotations") for row in one.content[rows]],
         "neither categories nor annotations"),
    ],
)  # fmt: skip
def test_a_data_set_has_one_table_or_is_refused(posed: Coco, bend: Any, said: str | None) -> None:
    bend(posed)
    if said is None:
        found = read(posed)
        assert found.points is not None and (found.points.count, found.points.pairs) == (3, None)
        assert [one.kind for one in found.problems] == [Kind.NO_MIRROR]
        return
    with pytest.raises(DataError, match=said):
        read(posed)
    # Detection does without.
    assert len(posed.read()) == 2


@pytest.mark.parametrize(
    ("stated", "visibility"),
    [(POINTS[:-1], [0, 0, 0]), ([*POINTS[:2], 3, *POINTS[3:]], [0, 1, 0]), ([float("nan"), *POINTS[1:]], [0, 1, 0])],
)
def test_a_bad_point_is_absent_and_told_with_its_annotation(posed: Coco, stated: Any, visibility: list[int]) -> None:
    posed.content["annotations"][1]["keypoints"] = stated
    found = read(posed)
    assert [(one.kind, one.where) for one in found.problems][:1] == [(Kind.KEY_POINTS, "annotation 2")]
    assert found.records[0].instances.visibility[0].tolist() == visibility  # type: ignore[index]
    assert np.isfinite(found.records[0].instances.points).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(("x", "y", "kept"), [(1.0005, 0.5, True), (5.0, -0.7, False), (0.5, 1.002, False)])
def test_a_point_outside_of_its_picture_is_absent_in_both_readers(
    posed: Coco, rows: Yolo, x: float, y: float, kept: bool
) -> None:
    posed.content["annotations"][1]["keypoints"] = [5, 5, 2, x * WIDTH, y * HEIGHT, 2, 5000, 0, 0]
    for number in range(3):
        rows.picture(f"train/{number}.png", f"0 0.5 0.5 0.25 0.5 0.5 0.25 2 {x} {y} 2 50 0 0\n")
    for found in (read(posed), read_rows(rows)):
        record = found.records[0]
        assert record.instances.visibility[0].tolist() == [2, 2 * kept, 0]  # type: ignore[index]
        assert record.truth.points[0, :, 2].tolist() == [2, 2 * kept, 0]  # type: ignore[index]
        told = [str(one) for one in found.problems if one.kind is Kind.KEY_POINTS]
        assert bool(told) is not kept and all("key" in one and "[1] are not" in one for one in told)


def test_no_key_point_at_all_is_told(posed: Coco) -> None:
    posed.content["annotations"][1]["keypoints"] = [0] * 9
    assert [one.kind for one in read(posed).problems] == [Kind.NO_LABELS]


def test_a_left_without_its_right_switches_mirroring_off_and_is_told(posed: Coco) -> None:
    posed.content["categories"][0]["keypoints"] = ["nose", "left_eye", "mouth"]
    found = read(posed)
    assert found.points is not None and found.points.pairs is None
    assert [one.kind for one in found.problems] == [Kind.NO_MIRROR] and not found.problems[0].kind.effect.is_fault
    assert "left_eye" in str(found.problems[0])


def test_two_splits_have_the_same_points_or_are_refused(posed: Coco) -> None:
    train = read(posed)
    posed.content["categories"][0]["keypoints"] = ["nose", "right_eye", "left_eye"]
    with pytest.raises(DataError, match=r"disagree on their key points.*left_eye, right_eye.*right_eye, left_eye"):
        match_classes(train, read(posed))
    assert match_classes(train, train) is train


def test_yolo_gives_table_points_and_truth(rows: Yolo) -> None:
    found = read_rows(rows)
    assert found.problems == () and found.points is not None
    assert (found.points.count, found.points.pairs) == (3, ((1, 2),))
    record = found.records[0]
    assert record.instances.points.tolist() == [[[32, 12], [48, 24], [0, 0]]]  # type: ignore[union-attr]
    assert record.instances.visibility.tolist() == [[2, 1, 0]] == record.truth.points[..., 2].tolist()  # type: ignore
    assert record.instances.boxes.tolist() == [[24, 12, 40, 36]]
    assert read_yolo_classes(rows.root / "data.yaml", "keypoints").points == found.points


def test_two_numbers_a_point_are_seen_unless_both_are_nothing(rows: Yolo) -> None:
    rows.config["kpt_shape"] = [3, 2]
    for number in range(3):
        rows.picture(f"train/{number}.png", "0 0.5 0.5 0.25 0.5 0.5 0.25 0.75 0.5 0 0\n")
    assert read_rows(rows).records[0].instances.visibility.tolist() == [[2, 2, 0]]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"flip_idx": [0, 1]}, "flip_idx .0, 1. does not say for each of the 3 points"),
        ({"flip_idx": [0, 2, 2]}, "flip_idx"),
        ({"flip_idx": [1, 2, 0]}, "name each other"),
        ({"flip_idx": "021"}, "flip_idx"),
        ({"flip_idx": [0, "2", 1]}, "flip_idx"),
        ({"flip_idx": [0.5, 2, 1]}, "flip_idx .0.5, 2, 1. does not say"),
        ({"flip_idx": [float("nan"), 2, 1]}, "flip_idx .nan, 2, 1. does not say"),
        ({"flip_idx": [False, 2, 1]}, "flip_idx .False, 2, 1. does not say"),
        ({"kpt_shape": [True, 3]}, "'kpt_shape' is .True, 3."),
        ({"kpt_shape": None}, "'kpt_shape' is None"),
        ({"kpt_shape": [3]}, "kpt_shape"),
        ({"kpt_shape": [3, 4]}, "2 or 3 numbers"),
        ({"kpt_shape": [0, 3]}, "at least one point"),
        ({"kpt_shape": ["3", 3]}, "kpt_shape"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_the_start(rows: Yolo, config: Any, said: str) -> None:
    rows.config |= config
    with pytest.raises(DataError, match=said):
        read_rows(rows)


def test_whole_floats_are_taken_as_indices_and_counts(rows: Yolo) -> None:
    rows.config |= {"flip_idx": [0.0, 2.0, 1.0], "kpt_shape": [3.0, 3.0]}
    found = read_rows(rows)
    assert found.problems == () and found.points is not None
    assert repr((found.points.count, found.points.pairs)) == "(3, ((1, 2),))"


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ([*NAMES, "tail"], "lists 4 names for 3 points"),
        ({0: NAMES, 1: []}, "lists 0 names for 3 points"),
        (dict(enumerate(NAMES)), "{0: 'nose', 1: 'left_eye', 2: 'right_eye'} is neither a list nor one list for each"),
        ("nose", "'nose' is neither"),
        ({}, "{} is neither"),
        ({0: NAMES, 1: NAMES[::-1]}, "differ between classes"),
    ],
)
def test_names_of_a_yaml_that_cannot_be_taken_are_told_with_the_reason(rows: Yolo, stated: Any, said: str) -> None:
    rows.config |= {"kpt_names": stated, "flip_idx": None}
    found = read_rows(rows)
    assert [one.kind for one in found.problems] == [Kind.NO_MIRROR]
    assert "without names (kpt_names " in str(found.problems[0]) and said in str(found.problems[0])


def test_names_of_a_category_that_are_no_list_are_told(posed: Coco) -> None:
    posed.content["categories"][0]["keypoints"] = dict(enumerate(NAMES))
    found = read(posed)
    assert [one.kind for one in found.problems] == [Kind.NO_MIRROR]
    assert "without names (keypoints {'0': 'nose'," in str(found.problems[0])
    assert "of category 'cat' are no list)" in str(found.problems[0])


def test_a_file_without_key_points_names_the_options_for_another(posed: Coco) -> None:
    del posed.content["categories"][0]["keypoints"], posed.content["annotations"][1]["keypoints"]
    with pytest.raises(DataError, match=r"--train_annotations \(lucid data check\) or .*--data.train_annotations"):
        read(posed)


@pytest.mark.parametrize("layout", ["coco", "yolo"])
def test_a_set_without_a_usable_picture_is_refused_for_a_fault_and_not_for_a_remark(
    posed: Coco, rows: Yolo, layout: str
) -> None:
    posed.content["categories"][0]["keypoints"] = ["a", "b", "left_c"]
    del posed.content["annotations"][0], posed.content["images"][1:], rows.config["flip_idx"]
    for row in posed.content["annotations"]:
        row["category_id"] = 99
    for number in range(3):
        rows.picture(f"train/{number}.png", "0 0.5 0.5 0.25 0.5 0.5 0.25 2\n")
    posed.file.write_text(json.dumps(posed.content))
    with pytest.raises(DataError, match=r"usable[^;]*; [^;]*(category_id 99 is not in categories|has 8 fields)"):
        read_coco(posed.folder, posed.file, task="keypoints") if layout == "coco" else read_rows(rows)


def test_without_a_table_images_are_not_mirrored_and_that_is_said_once(rows: Yolo) -> None:
    del rows.config["flip_idx"]
    found = read_rows(rows)
    assert found.points is not None and found.points.pairs is None
    assert [one.kind for one in found.problems] == [Kind.NO_MIRROR]
    rows.config["kpt_names"] = {0: NAMES, 1: NAMES}
    assert read_rows(rows).points.pairs == ((1, 2),)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("row", "kind", "visibility"),
    [
        ("0 0.5 0.5 0.25 0.5", Kind.KEY_POINTS, [0, 0, 0]),
        ("0 0.5 0.5 0.25 0.5 0.5 0.25 2 0.75 0.5 3 0 0 0", Kind.KEY_POINTS, [2, 0, 0]),
        ("0 0.5 0.5 0.25 0.5 1.5 0.25 2 0.75 0.5 1 0 0 0", Kind.KEY_POINTS, [0, 1, 0]),
        ("0 0.5 0.5 0.25 0.5 nan 0.25 2 0.75 word 1 0 0 0", Kind.KEY_POINTS, [0, 0, 0]),
        ("0 0.5 0.5 0.25 0.5 0.5 0.25 2", Kind.DIALECT, None),
        ("0 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4", Kind.DIALECT, None),
    ],
)
def test_a_bad_row_is_told_with_its_line(rows: Yolo, row: str, kind: Kind, visibility: list[int] | None) -> None:
    image = rows.picture("train/0.png", f"1 0.5 0.5 0.25 0.5 0.5 0.25 2 0.75 0.5 1 0 0 0\n{row}\n")
    found = read_rows(rows)
    assert [(one.kind, one.where) for one in found.problems] == [(kind, "line 2")]
    assert "0.txt:2: " in str(found.problems[0])
    seen = next(one for one in found.records if one.image == image).instances
    assert seen.visibility.tolist()[1:] == ([] if visibility is None else [visibility])  # type: ignore[union-attr]
    assert np.isfinite(seen.points).all()  # type: ignore[arg-type]


def test_key_points_that_are_no_such_are_shown_as_stated(rows: Yolo) -> None:
    rows.picture("train/0.png", "0 0.5 0.5 0.25 0.5 nan 0.25 2 0.75 word 1 0 0 0\n")
    (told,) = read_rows(rows).problems
    assert "key points [0, 1] are not" in str(told)
    assert "visibility 0, 1 or 2: ['nan', '0.25', '2'], ['0.75', 'word', '1']; they are absent" in str(told)
    assert show_points(np.ones(5, np.bool_), list("abcde")) == "'a', 'b', 'c', ..."


@pytest.mark.parametrize("task", ["segment", "obb"])
def test_rows_with_key_points_are_not_taken_for_polygons(rows: Yolo, task: Any) -> None:
    rows.read()
    with pytest.raises(DataError, match=f"nothing for the task {task}"):
        read_yolo(rows.root / "data.yaml", "train", task=task)

"""Reading COCO annotation files, good and bad."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lucid_core.data.coco import read_coco
from lucid_core.data.problems import Kind
from lucid_core.data.records import TOLERANCE, DataSet, match_classes
from lucid_core.data.types import DataError

WIDTH, HEIGHT = 64, 48


class Coco:
    """A small data set under a folder, to be bent before it is read."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "pictures"
        self.file = root / "annotations.json"
        self.folder.mkdir()
        self.content: dict[str, Any] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        }

    def image(self, image_id: Any, name: str, **extra: Any) -> None:
        path = self.folder / name.replace("\\", "/")
        if path.parent.is_dir():
            Image.new("RGB", (WIDTH, HEIGHT)).save(path, format="PNG")
        row = {"id": image_id, "file_name": name, "width": WIDTH, "height": HEIGHT}
        self.content["images"].append(row | extra)

    def add(self, image_id: Any, bbox: Any = (10, 10, 20, 15), **extra: Any) -> None:
        row = {"id": len(self.content["annotations"]) + 1, "image_id": image_id, "category_id": 3, "bbox": bbox}
        self.content["annotations"].append(row | extra)

    def read(self) -> DataSet:
        self.file.write_text(json.dumps(self.content))
        return read_coco(self.folder, self.file)


@pytest.fixture
def coco(tmp_path: Path) -> Coco:
    data = Coco(tmp_path)
    data.image(1, "one.png")
    data.image(2, "two.png")
    data.add(2)
    return data


def test_reads_boxes_labels_and_tables(coco: Coco) -> None:
    coco.add(1, (1.5, 2.5, 10, 20), category_id=7, area=55.5, segmentation=[[2, 3, 11, 3, 11, 22], [2, 3, 4, 3, 4, 9]])
    data = coco.read()
    assert data.class_names == ("cat", "dog") and data.category_ids == (3, 7) and data.problems == ()
    assert [record.image.name for record in data.records] == ["one.png", "two.png"]
    one = data.records[0]
    assert (one.image_id, one.width, one.height) == (1, WIDTH, HEIGHT)
    assert one.instances.boxes.tolist() == [[1.5, 2.5, 11.5, 22.5]] and one.instances.boxes.dtype == np.float32
    assert one.instances.labels.tolist() == [1] and one.instances.labels.dtype == np.int64
    assert [len(ring) for ring in one.instances.polygons[0]] == [3, 3]
    assert one.instances.points is None and one.instances.visibility is None
    assert one.truth.areas.tolist() == [55.5] and one.truth.crowd.tolist() == [False]
    assert data.records[1].truth.areas.tolist() == [300.0]


def test_images_without_annotations_are_background(coco: Coco) -> None:
    empty = coco.read().records[0]
    assert empty.instances.boxes.shape == (0, 4) and empty.truth.boxes.shape == (0, 4)
    coco.content["annotations"] = []
    assert "all are background" in str(coco.read().problems[0])


def test_boxes_are_clamped_for_training_and_kept_for_evaluation(coco: Coco) -> None:
    coco.add(1, (-10, 40, 100, 30), segmentation=[[-10, 40, 90, 40, 90, 70, -10, 70]])
    record = coco.read().records[0]
    assert record.instances.boxes.tolist() == [[0, 40, WIDTH, HEIGHT]]
    assert record.truth.boxes.tolist() == [[-10, 40, 90, 70]]
    ring = record.instances.polygons[0][0]
    assert ring.min() == 0 and ring[:, 0].max() == WIDTH and ring[:, 1].max() == HEIGHT


@pytest.mark.parametrize(
    "bbox",
    [
        (10, 10, 0, 20),
        (10, 10, 20, 0),
        (10, 10, -5, 5),
        (100, 10, 20, 20),
        (float("nan"), 1, 5, 5),
        (1, 1, float("inf"), 5),
        (1, 1, 5),
        (),
        None,
        "box",
        (1, 1, [2], 5),
        (50.2, 10, 1e-7, 20),
    ],
)
def test_unusable_boxes_are_left_out_and_named(coco: Coco, bbox: Any) -> None:
    coco.add(2, bbox)
    data = coco.read()
    assert len(data.records[1].instances) == len(data.records[1].truth.boxes) == 1
    assert len(data.problems) == 1 and "annotation 2 of two.png" in str(data.problems[0])


def test_an_image_that_lost_all_its_labels_is_not_taught_as_background(coco: Coco) -> None:
    coco.add(1, (0, 0, 0, 0))
    data = coco.read()
    assert [record.image.name for record in data.records] == ["two.png"]
    assert "none of its annotations is usable" in str(data.problems[1])


def test_numbers_written_as_text_are_read(coco: Coco) -> None:
    coco.add("1", ("1", "2.5", "10", "20"), category_id="7", area="9")
    record = coco.read().records[0]
    assert record.instances.boxes.tolist() == [[1, 2.5, 11, 22.5]] and record.truth.areas.tolist() == [9]


@pytest.mark.parametrize("area", [0, -3, float("nan"), float("inf"), None, "large"])
def test_area_falls_back_to_the_box(coco: Coco, area: Any) -> None:
    coco.add(1, (0, 0, 10, 20), area=area)
    assert coco.read().records[0].truth.areas.tolist() == [200]


@pytest.mark.parametrize("key", ["iscrowd", "ignore"])
def test_crowd_and_ignored_objects_are_for_evaluation_only(coco: Coco, key: str) -> None:
    coco.add(1, (0, 0, 30, 30), segmentation={"size": [HEIGHT, WIDTH], "counts": [0, 9]}, **{key: 1})
    data = coco.read()
    assert len(data.records[0].instances) == 0 and data.records[0].truth.crowd.tolist() == [True]
    assert data.problems == ()


def test_bad_polygons_leave_the_box_usable(coco: Coco) -> None:
    bad = [[[10, 20, 30, 40]], [[10, 20]], [], [10, 20, 30, 20, 30, 40], [[1, 1, 5, 1, 5, 5, 1]], [["a"] * 6], 5]
    bad += [[[float("nan"), 1, 5, 1, 5, 5]]]
    for segmentation in bad:
        coco.add(1, segmentation=segmentation)
    coco.add(1, (0, 0, 8, 8), segmentation=[[1, 1], [0, 0, 8, 0, 8, 8]])
    data = coco.read()
    instances = data.records[0].instances
    assert len(instances) == len(bad) + 1 == len(instances.polygons)
    assert all(rings == () for rings in instances.polygons[:-1]) and len(instances.polygons[-1]) == 1
    for annotation in range(2, len(bad) + 3):
        assert any(f"annotation {annotation}" in str(problem) for problem in data.problems), annotation


def test_a_missing_box_is_the_envelope_of_the_polygons(coco: Coco) -> None:
    coco.add(1, segmentation=[[5, 6, 20, 6, 20, 30]])
    del coco.content["annotations"][-1]["bbox"]
    data = coco.read()
    assert data.records[0].instances.boxes.tolist() == [[5, 6, 20, 30]]
    assert "envelope" in str(data.problems[0])


def test_rows_that_lead_nowhere_are_named(coco: Coco) -> None:
    coco.add(99)
    coco.add(2, category_id=12)
    del coco.content["annotations"][-1]["id"]
    coco.content["annotations"] += ["text", None]
    coco.content["images"] += [{"file_name": "x.png"}, 3]
    text = "\n".join(map(str, coco.read().problems))
    for part in ("image 99", "category_id 12", "annotations[2] (no id)", "annotations[3]", "images[2]", "images[3]"):
        assert part in text


def test_repeated_ids_and_boxes_are_told(coco: Coco) -> None:
    coco.add(2, id=1)
    coco.image(5, "one.png")
    data = coco.read()
    assert len(data.records[1].instances) == 2 and len(data.records) == 3
    told = zip(("more than once", "repeat", "same file"), map(str, data.problems), strict=True)
    assert all(part in problem for part, problem in told)


def test_an_image_id_with_two_files_is_refused(coco: Coco) -> None:
    coco.image(1, "other.png")
    with pytest.raises(DataError, match=r"id 1 belongs to one\.png and to other\.png"):
        coco.read()


def test_image_ids_may_be_text(coco: Coco) -> None:
    coco.content["images"], coco.content["annotations"] = [], []
    for image_id in ("a", "7", "007"):
        coco.image(image_id, f"{image_id}.png")
        coco.add(image_id)
    records = coco.read().records
    assert [record.image_id for record in records] == ["007", "7", "a"]
    assert all(record.image.stem == record.image_id and len(record.instances) == 1 for record in records)


@pytest.mark.parametrize(
    "name", ["../outside.png", "sub/../../outside.png", "/etc/passwd", "..\\outside.png", "", None]
)
def test_file_names_that_leave_the_folder_are_refused(coco: Coco, name: Any) -> None:
    Image.new("RGB", (WIDTH, HEIGHT)).save(coco.folder.parent / "outside.png")
    coco.content["images"][0]["file_name"] = name
    data = coco.read()
    assert [record.image.name for record in data.records] == ["two.png"]
    assert "image 1" in str(data.problems[0]) and "left out" in str(data.problems[0])


def test_names_in_sub_folders_with_backslashes_and_unicode_are_found(coco: Coco) -> None:
    (coco.folder / "изображения").mkdir()
    name = "изображения/缺陷 0001é.JPG"
    coco.image(3, unicodedata.normalize("NFD", name))
    coco.content["images"][-1]["file_name"] = unicodedata.normalize("NFC", name)
    (coco.folder / "sub").mkdir()
    coco.image(4, "sub\\four #%20.png")
    coco.content["images"].append({**coco.content["images"][0], "id": 5, "file_name": str(coco.folder / "one.png")})
    data = coco.read()
    assert len(data) == 5 and all(record.image.is_file() for record in data.records)


def test_missing_pictures_are_left_out_and_named(coco: Coco) -> None:
    (coco.folder / "one.png").unlink()
    data = coco.read()
    assert len(data) == 1 and "'one.png' is not in" in str(data.problems[0])
    (coco.folder / "two.png").unlink()
    with pytest.raises(DataError, match=r"none of its images is usable .*one\.png"):
        coco.read()


def test_missing_sizes_are_read_from_the_pictures(coco: Coco) -> None:
    for row in coco.content["images"]:
        del row["width"]
    (coco.folder / "one.png").write_bytes(b"")
    data = coco.read()
    assert [(record.width, record.height) for record in data.records] == [(WIDTH, HEIGHT)]
    assert "is empty" in str(data.problems[0])


def test_pictures_that_cannot_be_decoded_are_left_out_and_named(coco: Coco) -> None:
    (coco.folder / "two.png").write_bytes(b"no picture")
    data = coco.read()
    assert [record.image.name for record in data.records] == ["one.png"]
    (problem, unlabelled) = data.problems
    assert problem.kind is Kind.PICTURE_UNREADABLE and unlabelled.kind is Kind.NO_LABELS
    assert problem.where == "image 2" and "two.png: is not a picture" in str(problem)


def test_pictures_of_another_size_than_stated_are_left_out_and_named(coco: Coco) -> None:
    Image.new("RGB", (HEIGHT, WIDTH)).save(coco.folder / "one.png")
    data = coco.read()
    assert [record.image.name for record in data.records] == ["two.png"]
    assert [problem.kind for problem in data.problems] == [Kind.PICTURE_SIZE]
    assert "is 48 x 64 pixels upright, but its labels are for 64 x 48" in str(data.problems[0])


@pytest.mark.parametrize("beyond", [0.0005, 0.002])
def test_what_is_partly_outside_is_clipped_and_told_beyond_rounding(coco: Coco, beyond: float) -> None:
    coco.add(2, (60, 10, 4 + beyond * WIDTH, 5))
    coco.add(2, (10, -beyond * HEIGHT, 5, 5))
    coco.add(2, segmentation=[[1, 1, 5, 1, 5, HEIGHT * (1 + beyond)]])
    coco.add(2, (-9, 10, 20, 5), iscrowd=1)
    data = coco.read()
    told = [problem.where for problem in data.problems if problem.kind is Kind.CLIPPED]
    assert told == ([f"annotation {i}" for i in (2, 3, 4)] if beyond > TOLERANCE else [])
    boxes = data.records[1].instances.boxes
    assert boxes.min() >= 0 and (boxes[:, 2:] <= (WIDTH, HEIGHT)).all()


def test_an_object_that_is_left_out_is_told_once(coco: Coco) -> None:
    coco.add(2, (1, 1, float("nan"), 5), segmentation=[[1, 1], [-9, 0, 8, 0, 8, 8]])
    assert [problem.kind for problem in coco.read().problems] == [Kind.NOT_FINITE]


def test_key_points(coco: Coco) -> None:
    coco.content["categories"][1]["keypoints"] = ["nose", "tail"]
    coco.add(1, (0, 0, 9, 9), keypoints=[1, 2, 2, 3, 4, 1])
    coco.add(1, (0, 0, 8, 9), keypoints=[1, 2, 2])
    coco.add(1, (0, 0, 7, 9), keypoints=[float("nan"), 2, 2, 5, 6, 3])
    coco.add(1, (0, 0, 6, 9))
    coco.add(1, (0, 0, 5, 9), keypoints="none")
    data = coco.read()
    points, visibility = data.records[0].instances.points, data.records[0].instances.visibility
    assert points is not None and visibility is not None
    assert points.shape == (5, 2, 2) and points.dtype == np.float32 and visibility.dtype == np.int64
    assert points[0].tolist() == [[1, 2], [3, 4]] and visibility[0].tolist() == [2, 1]
    assert not points[1:].any() and not visibility[1:].any()
    assert [f"annotation {i}" in text for i, text in zip((3, 4, 6), map(str, data.problems), strict=True)] == [True] * 3
    assert "visibility 0, 1 or 2: [nan, 2, 2], [5, 6, 3]; they are absent" in str(data.problems[1])
    assert data.records[1].instances.points is not None and data.records[1].instances.points.shape == (1, 2, 2)


def test_key_points_of_different_numbers_do_not_cost_the_boxes(coco: Coco) -> None:
    coco.add(1, keypoints=[1, 2, 2])
    coco.add(2, (0, 0, 9, 9), keypoints=[1, 2, 2, 3, 4, 1])
    data = coco.read()
    assert all(record.instances.points is None for record in data.records) and "key points" in str(data.problems[0])
    assert sum(len(record.instances) for record in data.records) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as json"),
        (b'{"images": [', "cut short"),
        (b"[]", "no list 'images'"),
        (b'{"images": [], "annotations": []}', "no list 'categories'"),
        (b'{"images": [], "annotations": [], "categories": []}', "no categories"),
        (b'{"images": [], "annotations": [], "categories": [{"name": "a"}]}', "category"),
        (b'{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}', "id 1"),
        (b'{"images": [], "annotations": [], "categories": [{"id": 1, "name": "a"}]}', "none of its images"),
    ],
)
def test_files_that_are_no_coco_json_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"a\.json.*{message}"):
        read_coco(tmp_path, file)
    with pytest.raises(DataError, match="no such annotation file"):
        read_coco(tmp_path, tmp_path / "b.json")


def test_a_byte_order_mark_is_no_fault(coco: Coco) -> None:
    coco.read()
    coco.file.write_bytes(b"\xef\xbb\xbf" + coco.file.read_bytes())
    assert len(read_coco(coco.folder, coco.file)) == 2


def test_splits_are_matched_by_name(coco: Coco) -> None:
    coco.add(1, category_id=7)
    train = coco.read()
    coco.content["categories"] = [{"id": 3, "name": "dog"}, {"id": 9, "name": "cat"}]
    for row in coco.content["annotations"]:
        row["category_id"] = {3: 9, 7: 3}[row["category_id"]]
    other = coco.read()
    matched = match_classes(train, other)
    assert matched.class_names == train.class_names and matched.category_ids == (9, 3)
    for a, b, unmatched in zip(train.records, matched.records, other.records, strict=True):
        assert a.instances.labels.tolist() == b.instances.labels.tolist() == b.truth.labels.tolist()
        assert a.instances.labels.tolist() != unmatched.instances.labels.tolist()


def test_splits_of_different_classes_are_refused_with_both_tables(coco: Coco) -> None:
    train = coco.read()
    coco.content["categories"][0]["name"] = "horse"
    with pytest.raises(DataError, match=r"3: cat, 7: dog.*3: cat, 7: horse"):
        match_classes(train, coco.read())


def test_report_counts_and_cuts(coco: Coco) -> None:
    for _ in range(12):
        coco.add(2, (0, 0, 0, 0))
    text = coco.read().report(limit=3)
    assert text.startswith("2 images, 1 objects, 2 classes, 12 problems") and text.endswith("9 more")
    assert [line for line in text.splitlines() if line.startswith("  12 x box without area")]
    assert len(text.splitlines()) == 1 + 1 + 3 + 1

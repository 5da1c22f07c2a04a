"""Reading YOLO folders, good and bad."""

import unicodedata
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from lucid_core.data.problems import Kind
from lucid_core.data.records import TOLERANCE, DataSet
from lucid_core.data.types import DataError
from lucid_core.data.yolo import read_yolo

WIDTH, HEIGHT = 64, 48


class Yolo:
    """A small data set under a folder, to be bent before it is read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config: dict[str, Any] = {"names": ["cat", "dog"], "train": "images/train", "val": "images/val"}

    def picture(self, name: str, rows: str | bytes | None) -> Path:
        image = self.root / "images" / name
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (WIDTH, HEIGHT)).save(image, format="PNG")
        if rows is not None:
            label = (self.root / "labels" / name).with_suffix(".txt")
            label.parent.mkdir(parents=True, exist_ok=True)
            label.write_bytes(rows.encode() if isinstance(rows, str) else rows)
        return image

    def read(self, split: str = "train") -> DataSet:
        file = self.root / "data.yaml"
        file.write_text(yaml.safe_dump(self.config))
        return read_yolo(file, split)


@pytest.fixture
def data(tmp_path: Path) -> Yolo:
    one = Yolo(tmp_path)
    for i in range(3):
        one.picture(f"train/{i}.png", f"{i % 2} 0.5 0.5 0.25 0.5\n")
    return one


def test_reads_boxes_labels_and_tables(data: Yolo) -> None:
    read = data.read()
    assert read.class_names == ("cat", "dog") and read.category_ids == (0, 1) and read.problems == ()
    record = read.records[1]
    assert (record.image_id, record.width, record.height) == ("1.png", WIDTH, HEIGHT)
    assert record.instances.boxes.tolist() == [[24, 12, 40, 36]] == record.truth.boxes.tolist()
    assert record.instances.labels.tolist() == [1] and record.instances.polygons == ((),)
    assert record.truth.areas.tolist() == [16 * 24] and not record.truth.crowd.any()


def test_polygon_rows_give_polygon_and_envelope(data: Yolo) -> None:
    data.picture("train/3.png", "1 0.25 0.25 0.75 0.25 0.5 0.75\n0 0.1 0.1 0.5 0.1 0.5 0.4 0.1 0.4")
    instances = data.read().records[3].instances
    assert instances.boxes[0].tolist() == [16, 12, 48, 36] and instances.labels.tolist() == [1, 0]
    assert instances.polygons[0][0].tolist() == [[16, 12], [48, 12], [32, 36]] and len(instances.polygons[1][0]) == 4


def test_rows_with_key_points_give_boxes(data: Yolo) -> None:
    data.config["kpt_shape"] = [2, 3]
    data.picture("train/3.png", "1 0.5 0.5 0.25 0.5 0.5 0.5 2 0.1 0.1 2")
    instances = data.read().records[3].instances
    assert instances.boxes.tolist() == [[24, 12, 40, 36]] and instances.polygons == ((),)


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        ("0 1.86 0.5 0.2 0.2", "1.86"),
        ("0 -0.01 0.5 0.2 0.2", "-0.01"),
        ("0 nan 0.5 0.2 0.2", "nan"),
        ("0 0.5 0.5 inf 0.2", "inf"),
        ("0 320 240 50 40", "divide pixels"),
        ("0,0.5,0.5,0.2,0.2", "commas"),
        ("0, 0.5, 0.5, 0.2, 0.2", "class '0,'"),
        ("cat 0.5 0.5 0.2 0.2", "class 'cat'"),
        ("1.5 0.5 0.5 0.2 0.2", "class 1.5"),
        ("-1 0.5 0.5 0.2 0.2", "class -1"),
        ("2 0.5 0.5 0.2 0.2", "from 0 to 1"),
        ("nan 0.5 0.5 0.2 0.2", "class nan"),
        ("0 0.5 0.5 0.2", "4 fields"),
        ("0 0.5 0.5 0.2 0.2 0.9", "6 fields"),
        ("0 0.1 0.1 0.5 0.1 0.5 0.5 0.4", "8 fields"),
        ("0 0.5 0.5 0 0.2", "no area"),
        ("0 0.1 0.1 0.5 0.1 0.3 0.1", "no area"),
        ("0 0.5 half 0.2 0.2", "'half'"),
    ],
)
def test_bad_rows_are_named_by_file_and_line(data: Yolo, row: str, seen: str) -> None:
    data.picture("train/1.png", f"\n1 0.5 0.5 0.25 0.5\n{row}\n")
    data.picture("train/2.png", row)
    read = data.read()
    assert [record.image.name for record in read.records] == ["0.png", "1.png"], "never taught as background"
    assert len(read.records[1].instances) == 1
    assert len(read.problems) == 3
    assert "1.txt:3: " in str(read.problems[0]) and seen in str(read.problems[0])
    assert "2.txt:1: " in str(read.problems[1]) and "2.png" in str(read.problems[2])


def test_rounding_errors_are_clamped(data: Yolo) -> None:
    data.picture("train/0.png", f"1.0 1.0005 0.5 0.2 {1 + TOLERANCE}\n0 {-TOLERANCE} 0.5 0.2 0.2")
    data.picture("train/1.png", f"0 0.9 0.5 {0.2 + TOLERANCE} 1.0005")
    read = data.read()
    assert [(problem.kind, problem.where) for problem in read.problems] == [
        (Kind.CLIPPED, "line 1"),
        (Kind.CLIPPED, "line 2"),
    ], "what is told is the box, where it reaches over the border by more than rounding"
    assert read.records[0].instances.labels.tolist() == [1, 0]
    (x1, y1, x2, y2), second = read.records[0].instances.boxes.tolist()
    assert x1 == pytest.approx(0.9 * WIDTH) and (y1, x2, y2) == (0, WIDTH, HEIGHT)
    assert second[0] == 0 and second[2] == pytest.approx(0.1 * WIDTH)


def test_no_label_file_and_an_empty_one_are_the_same(data: Yolo) -> None:
    data.picture("train/0.png", None)
    (data.root / "labels/train/0.txt").unlink()
    data.picture("train/1.png", "")
    data.picture("train/2.png", " \n\n")
    read = data.read()
    assert len(read) == 3 and read.problems == ()
    for record in read.records:
        assert record.instances.boxes.shape == (0, 4) and record.truth.boxes.shape == (0, 4)


def test_a_split_without_any_label_file_is_told(data: Yolo) -> None:
    data.picture("val/0.png", None)
    read = data.read("val")
    assert len(read) == 1 and "labels/val/0.txt" in str(read.problems[0]) and "background" in str(read.problems[0])


def test_unreadable_files_are_listed(data: Yolo) -> None:
    for name, content in (("a.jpg", b""), ("b.jpg", b"<html>Not found</html>")):
        (data.root / "images/train" / name).write_bytes(content)
    data.picture("train/1.png", b"\xff\xfe0\x00 \x000\x00")
    read = data.read()
    assert [record.image.name for record in read.records] == ["0.png", "2.png"]
    assert [part in str(problem) for part, problem in zip(("1.txt", "a.jpg", "b.jpg"), read.problems, strict=True)] == [
        True
    ] * 3


def test_names_in_any_script_case_and_normal_form_are_paired(tmp_path: Path) -> None:
    data = Yolo(tmp_path)
    for form in ("NFC", "NFD"):
        name = unicodedata.normalize(form, "é")
        data.picture(f"изображения/缺陷 0001{form}{name}.JPG", None)
        label = (
            tmp_path
            / "labels/изображения"
            / f"缺陷 0001{form}{unicodedata.normalize('NFD' if form == 'NFC' else 'NFC', name)}.TXT"
        )
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.2 0.2")
    data.config["train"] = "images/изображения"
    read = data.read()
    assert [len(record.instances) for record in read.records] == [1, 1] and read.problems == ()
    assert {record.image_id for record in read.records} == {
        path.name for path in (tmp_path / "images/изображения").iterdir()
    }


def test_lists_share_one_folder_without_cross_talk(tmp_path: Path) -> None:
    data = Yolo(tmp_path)
    for i in range(8):
        data.picture(f"{i}.png", f"{i % 2} 0.5 0.5 0.25 0.5")
    (tmp_path / "train.txt").write_text("".join(f"./images/{i}.png\n" for i in range(4)))
    (tmp_path / "val.txt").write_text(
        "\n".join([f"images/{i}.png" for i in range(4, 7)] + [str(tmp_path / "images/7.png")])
    )
    data.config |= {"train": "train.txt", "val": "val.txt"}
    for _ in range(2):
        assert [record.image_id for record in data.read("train").records] == ["0.png", "1.png", "2.png", "3.png"]
        assert [record.image_id for record in data.read("val").records] == ["4.png", "5.png", "6.png", "7.png"]


def test_listed_pictures_that_are_missing_or_listed_twice_are_told(data: Yolo) -> None:
    (data.root / "train.txt").write_text("images/train/0.png\nimages/train/gone.png\nimages/train/0.png\n")
    data.config["train"] = "train.txt"
    read = data.read()
    assert len(read) == 1 and len(read.problems) == 2 and "train.txt:2" in str(read.problems[0])


def test_sub_folders_are_searched_and_ids_stay_apart(data: Yolo) -> None:
    data.picture("train/a/0.png", "0 0.5 0.5 0.25 0.5")
    assert [record.image_id for record in data.read().records] == ["0.png", "1.png", "2.png", "a/0.png"]


def test_one_label_file_for_two_pictures_is_told(data: Yolo) -> None:
    (data.root / "images/train/0.jpg").write_bytes((data.root / "images/train/0.png").read_bytes())
    read = data.read()
    assert len(read) == 4 and "0.jpg and of 0.png" in str(read.problems[0])


def test_labels_lie_beside_pictures_where_no_folder_is_called_images(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "a.png")
    (folder / "a.txt").write_text("0 0.5 0.5 0.25 0.5")
    (tmp_path / "data.yaml").write_text("names: {0: cat}\ntrain: photos\n")
    assert len(read_yolo(tmp_path / "data.yaml", "train").records[0].instances) == 1


@pytest.mark.parametrize(
    "entry", ["../images/train", "../../images/train", "images/train", ["images/train"], "{root}/images/train"]
)
def test_entries_are_found_as_exports_write_them(data: Yolo, entry: Any) -> None:
    data.config["train"] = entry.format(root=data.root) if isinstance(entry, str) else entry
    assert len(data.read()) == 3


def test_path_and_aliases(data: Yolo, tmp_path: Path) -> None:
    data.config |= {"path": str(tmp_path / "images"), "valid": "train", "val": None}
    assert len(data.read("val")) == 3
    with pytest.raises(DataError, match=r"no entry 'test'; its keys are"):
        data.read("test")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": {0: "cat", 2: "dog"}}, "not 0 to 1"),
        ({"names": "cat"}, "not a list"),
        ({"names": []}, "not a list"),
        ({"names": [True, "dog"]}, "quotes"),
        ({"nc": 3}, "nc is 3"),
        ({"train": "nowhere"}, "leads nowhere"),
        ({"train": "labels/train"}, "holds no pictures"),
    ],
)
def test_unusable_yaml_is_refused(data: Yolo, change: dict[str, Any], message: str) -> None:
    data.config |= change
    with pytest.raises(DataError, match=rf"data\.yaml.*{message}"):
        data.read()


@pytest.mark.parametrize("content", [b"", b"a: [", b"names", b"\xff\xff", b"train: x"])
def test_a_file_that_is_no_data_yaml_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "data.yaml").write_bytes(content)
    for name in ("data.yaml", "gone.yaml"):
        with pytest.raises(DataError, match=name):
            read_yolo(tmp_path / name, "train")


def test_names_may_be_a_mapping_in_any_order(data: Yolo) -> None:
    data.config |= {"names": {1: "dog", 0: "cat"}, "nc": 2}
    assert data.read().class_names == ("cat", "dog")


def test_entries_that_lead_out_of_the_data_set_are_refused(data: Yolo, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    outside = str(tmp_path / "images/train")
    for entry in ("../images/train", outside):
        (inner / "data.yaml").write_text(f"names: [cat, dog]\ntrain: {entry}\n")
        with pytest.raises(DataError, match=r"leads out of the data set.*'path'"):
            read_yolo(inner / "data.yaml", "train")
    for path in ("..", str(tmp_path)):
        (inner / "data.yaml").write_text(f"names: [cat, dog]\npath: {path}\ntrain: {outside}\n")
        assert len(read_yolo(inner / "data.yaml", "train")) == 3


def test_listed_pictures_outside_the_data_set_are_not_read(tmp_path: Path) -> None:
    data = Yolo(tmp_path / "set")
    inside = data.picture("0.png", "0 0.5 0.5 0.25 0.5")
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "secret.png")
    rows = ["images/0.png", "../secret.png", str(tmp_path / "secret.png"), "images/../../secret.png", "..\\secret.png"]
    (tmp_path / "set/train.txt").write_text("\n".join(rows))
    data.config["train"] = "train.txt"
    read = data.read()
    assert [record.image for record in read.records] == [inside]
    assert [problem.where for problem in read.problems] == [f"line {i}" for i in (2, 3, 4, 5)]
    assert {problem.kind for problem in read.problems[:3]} == {Kind.PICTURE_OUTSIDE}


def test_links_are_followed_and_those_that_lead_nowhere_or_round_are_not(tmp_path: Path) -> None:
    data = Yolo(tmp_path / "set")
    image = data.picture("train/0.png", "0 0.5 0.5 0.25 0.5")
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "elsewhere.png")
    (image.parent / "1.png").symlink_to(tmp_path / "elsewhere.png")
    (image.parent / "2.png").symlink_to(tmp_path / "gone.png")
    (image.parent / "round").symlink_to(image.parent)
    read = data.read()
    assert [record.image.name for record in read.records] == ["0.png", "1.png"]
    assert [(one.kind, one.file.name) for one in read.problems] == [(Kind.PICTURE_MISSING, "2.png")]


def test_only_folders_of_the_data_set_are_taken_for_images(tmp_path: Path) -> None:
    folder = tmp_path / "images/set/photos"
    folder.mkdir(parents=True)
    Image.new("RGB", (WIDTH, HEIGHT)).save(folder / "a.png")
    (folder / "a.txt").write_text("0 0.5 0.5 0.25 0.5")
    (tmp_path / "labels/set/photos").mkdir(parents=True)
    (tmp_path / "labels/set/photos/a.txt").write_text("0 0.5 0.5 0.1 0.1\n" * 2)
    (tmp_path / "images/set/data.yaml").write_text("names: [cat]\ntrain: photos\n")
    assert len(read_yolo(tmp_path / "images/set/data.yaml", "train").records[0].instances) == 1


def test_rows_that_repeat_are_told_and_kept(data: Yolo) -> None:
    data.picture("train/0.png", "0 0.5 0.5 0.25 0.5\n" * 3)
    read = data.read()
    assert len(read.records[0].instances) == 3
    assert [problem.kind for problem in read.problems] == [Kind.REPEATED_OBJECT] and "2 boxes" in str(read.problems[0])

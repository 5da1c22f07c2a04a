"""Finding a data set on disk."""

import json
from pathlib import Path

import pytest
from PIL import Image

from lucid_core.data.layout import open_split
from lucid_core.data.types import DataError, NoSplit


def coco(root: Path, images: str, annotations: str, name: str) -> None:
    for file in (root / images / f"{name}.png", root / annotations):
        file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48)).save(root / images / f"{name}.png")
    content = {
        "images": [{"id": 1, "file_name": f"{name}.png", "width": 64, "height": 48}],
        "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 1, 9, 9]}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (root / annotations).write_text(json.dumps(content))


def yolo(root: Path, name: str, yaml: str = "data.yaml") -> None:
    for file in (root / f"images/train/{name}.png", root / f"labels/train/{name}.txt"):
        file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (64, 48)).save(root / f"images/train/{name}.png")
    (root / f"labels/train/{name}.txt").write_text("0 0.5 0.5 0.2 0.2")
    (root / yaml).write_text("names: [cat]\ntrain: images/train\nval: images/train\n")


@pytest.mark.parametrize(
    ("images", "annotations", "split"),
    [
        ("train2017", "annotations/instances_train2017.json", "train"),
        ("val2017", "annotations/instances_val2017.json", "val"),
        ("train", "annotations/instances_train.json", "train"),
        ("images/val", "annotations/instances_val.json", "val"),
        ("images/train2017", "annotations/instances_train2017.json", "train"),
        ("images", "annotations/instances_train2017.json", "train"),
        ("test", "test/_annotations.coco.json", "test"),
        ("valid", "valid/_annotations.coco.json", "val"),
    ],
)
def test_coco_layouts_are_found(tmp_path: Path, images: str, annotations: str, split: str) -> None:
    coco(tmp_path, images, annotations, "seen")
    coco(tmp_path, "elsewhere", "annotations/captions.json", "unseen")
    for root in (tmp_path, str(tmp_path)):
        assert open_split(root, split).records[0].image == tmp_path / images / "seen.png"  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"looked for data\.yaml; data\.yml"):
        open_split(tmp_path, split, layout="yolo")  # type: ignore[arg-type]


def test_a_folder_of_all_pictures_gives_way_to_one_of_the_split(tmp_path: Path) -> None:
    coco(tmp_path, "images", "annotations/instances_train.json", "all")
    coco(tmp_path, "images/train", "annotations/instances_train.json", "own")
    assert open_split(tmp_path, "train").records[0].image.name == "own.png"


@pytest.mark.parametrize("name", ["data.yaml", "data.yml", "dataset.yaml"])
def test_yolo_layouts_are_found(tmp_path: Path, name: str) -> None:
    yolo(tmp_path, "seen", name)
    for root in (tmp_path, tmp_path / name):
        assert open_split(root, "train").records[0].image_id == "seen.png"
        with pytest.raises(DataError):
            open_split(root, "train", layout="coco")


def test_two_kinds_at_once_are_refused_until_one_is_named(tmp_path: Path) -> None:
    coco(tmp_path, "train", "annotations/instances_train.json", "coco")
    yolo(tmp_path, "yolo")
    with pytest.raises(DataError, match=r"more than once: COCO .*instances_train\.json.*YOLO .*data\.yaml.*layout"):
        open_split(tmp_path, "train")
    assert open_split(tmp_path, "train", layout="coco").records[0].image.name == "coco.png"
    assert open_split(tmp_path, "train", layout="yolo").records[0].image.name == "yolo.png"


def test_two_of_a_kind_are_refused_until_files_are_named(tmp_path: Path) -> None:
    coco(tmp_path, "train", "annotations/instances_train.json", "a")
    coco(tmp_path, "train2017", "annotations/instances_train2017.json", "b")
    with pytest.raises(DataError, match="more than once"):
        open_split(tmp_path, "train")
    chosen = open_split(tmp_path, "train", images="train2017", annotations="annotations/instances_train2017.json")
    assert chosen.records[0].image.name == "b.png"
    absolute = open_split(
        tmp_path, "train", images=tmp_path / "train", annotations=tmp_path / "annotations/instances_train.json"
    )
    assert absolute.records[0].image.name == "a.png"


def test_half_an_answer_is_refused(tmp_path: Path) -> None:
    coco(tmp_path, "train", "annotations/instances_train.json", "a")
    with pytest.raises(DataError, match="together"):
        open_split(tmp_path, "train", images="train")
    with pytest.raises(DataError, match="together"):
        open_split(tmp_path, "train", annotations="annotations/instances_train.json")


def test_nothing_found_lists_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        open_split(tmp_path, "val")
    for part in (str(tmp_path), "instances_val2017.json", "instances_val.json", "_annotations.coco.json", "data.yaml"):
        assert part in str(caught.value)
    with pytest.raises(DataError, match="no such folder"):
        open_split(tmp_path / "gone", "val")
    with pytest.raises(DataError, match="train, val, test"):
        open_split(tmp_path, "valid")  # type: ignore[arg-type]


def test_a_split_that_is_not_there_is_told_from_one_that_is_broken(tmp_path: Path) -> None:
    coco(tmp_path / "coco", "train", "annotations/instances_train.json", "one")
    yolo(tmp_path / "yolo", "one")
    for root in (tmp_path / "coco", tmp_path / "yolo", tmp_path / "yolo/data.yaml"):
        with pytest.raises(NoSplit):
            open_split(root, "test")
    (tmp_path / "coco/annotations/instances_test.json").write_text("{}")
    (tmp_path / "yolo/data.yaml").write_text("names: [cat]\ntest: images/gone\n")
    for root in (tmp_path / "coco", tmp_path / "yolo", tmp_path / "nowhere"):
        with pytest.raises(DataError) as caught:
            open_split(root, "test")
        assert caught.type is DataError

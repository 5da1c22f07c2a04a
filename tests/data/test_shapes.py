"""The generated data set."""

import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from lucid_core.data.images import ImageReader
from lucid_core.data.layout import open_split
from lucid_core.data.shapes import CLASSES, write_shapes
from lucid_core.data.types import DataError


def digest(root: Path) -> dict[str, str]:
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def writer(root: Path, train: int, val: int) -> "subprocess.Popen[bytes]":
    call = f"write_shapes(Path({str(root)!r}), {train}, {val})"
    return subprocess.Popen(
        [sys.executable, "-c", f"from pathlib import Path; from lucid_core.data.shapes import write_shapes; {call}"]
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("data") / "shapes", train=60, val=12)


def annotations(root: Path, split: str = "train") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((root / f"annotations/instances_{split}.json").read_text())
    return content


def test_is_read_as_coco(root: Path) -> None:
    for split, count in (("train", 60), ("val", 12)):
        data = open_split(root, split)  # type: ignore[arg-type]
        assert len(data) == count and data.class_names == CLASSES and data.problems == ()
        assert all(1 <= len(record.instances) <= 6 for record in data.records)
        for record in data.records:
            points = record.instances.points
            assert points is not None and points.shape[1:] == (4, 2)
            assert ImageReader().decode(record.image).shape == (160, 160, 3)
    labels = np.concatenate([record.instances.labels for record in open_split(root, "train").records])
    assert np.bincount(labels, minlength=len(CLASSES)).min() > 20


def test_same_bytes_in_another_process_and_other_bytes_for_another_seed(root: Path, tmp_path: Path) -> None:
    assert writer(tmp_path / "again", 60, 12).wait() == 0
    assert digest(tmp_path / "again") == digest(root)
    other = digest(write_shapes(tmp_path / "other", train=2, val=1, seed=1))
    assert other["train/000000.png"] != digest(root)["train/000000.png"]


def test_a_larger_set_begins_with_the_smaller(root: Path, tmp_path: Path) -> None:
    small = digest(write_shapes(tmp_path / "small", train=3, val=1))
    assert small["train/000002.png"] == digest(root)["train/000002.png"]
    assert small["train/000000.png"] != small["val/000000.png"]


def test_a_second_call_writes_nothing(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert write_shapes(root, train=60, val=12) == root
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_other_files_and_other_settings_are_left_alone(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="made with"):
        write_shapes(root, train=61, val=12)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(DataError, match="choose another folder"):
        write_shapes(tmp_path, train=1, val=1)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    with pytest.raises(DataError, match="size >= 64"):
        write_shapes(tmp_path / "new", size=10)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cv2, "imwrite", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_shapes(tmp_path / "shapes", train=1, val=1)
    assert list(tmp_path.iterdir()) == []


def test_several_writers_at_once_make_one_set(tmp_path: Path) -> None:
    writers = [writer(tmp_path / "shapes", 9, 3) for _ in range(3)]
    assert [process.wait() for process in writers] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["shapes"]
    assert len(open_split(tmp_path / "shapes", "train")) == 9


def test_labels_fit_the_pixels(root: Path) -> None:
    """Within its polygon an object has its bright fill; just outside of its box the ground goes on."""
    content = annotations(root)
    for row in content["annotations"]:
        outline = np.array(row["segmentation"][0]).reshape(-1, 2)
        x, y, w, h = row["bbox"]
        assert (outline.min(axis=0).tolist(), outline.max(axis=0).tolist()) == ([x, y], [x + w, y + h])
        assert min(x, y) >= 0 and max(x + w, y + h) <= 160 and min(w, h) >= 6
        filled = np.zeros((160 * 4, 160 * 4), np.uint8)
        cv2.fillPoly(filled, [(outline * 4 * 16).round().astype(np.int32)], 1, shift=4)
        assert row["area"] == pytest.approx(filled.sum() / 16, rel=0.15)

    # An image with one object: the pixels that its ground does not explain are the object's.
    single = [
        row
        for row in content["annotations"]
        if sum(r["image_id"] == row["image_id"] for r in content["annotations"]) == 1
    ]
    assert single
    for row in single:
        image = ImageReader().decode(root / "train" / f"{row['image_id'] - 1:06d}.png").astype(int)
        x, y, w, h = row["bbox"]
        outline = (np.array(row["segmentation"][0], np.float32).reshape(-1, 2) - 0.5).round().astype(np.int32)
        inside = np.zeros((160, 160), np.uint8)
        cv2.fillPoly(inside, [outline], 1)
        core = cv2.erode(inside, np.ones((5, 5), np.uint8)).astype(bool)
        fill = np.median(image[core], axis=0)
        alike = np.abs(image - fill).max(axis=2) < 8
        rows, columns = np.nonzero(alike & cv2.dilate(inside, np.ones((3, 3), np.uint8)).astype(bool))
        rim = 0.12 * max(w, h) + 1.5
        assert 0 <= columns.min() - x <= rim * 2 and 0 <= x + w - columns.max() - 1 <= rim * 2
        assert 0 <= rows.min() - y <= rim * 2 and 0 <= y + h - rows.max() - 1 <= rim * 2


def test_oriented_boxes_and_key_points_belong_to_the_outline(root: Path) -> None:
    for row in annotations(root)["annotations"]:
        cx, cy, w, h, theta = row["rbox"]
        assert w >= h > 0 and -math.pi / 4 <= theta < 3 * math.pi / 4
        outline = np.array(row["segmentation"][0]).reshape(-1, 2)
        turn = np.array(((math.cos(theta), -math.sin(theta)), (math.sin(theta), math.cos(theta))))
        local = (outline - (cx, cy)) @ turn
        # Tight on all four sides, to the grid that vertices lie on.
        half = np.array((w / 2, h / 2))
        assert np.abs(local.max(axis=0) - half).max() < 0.1 and np.abs(local.min(axis=0) + half).max() < 0.1

        points = np.array(row["keypoints"]).reshape(4, 3)
        assert set(points[:, 2]) <= {1, 2} and row["num_keypoints"] == 4
        contour = outline.astype(np.float32)
        assert all(abs(cv2.pointPolygonTest(contour, (x, y), True)) < 0.2 for x, y in points[:, :2].tolist())
        top, right, bottom, left = points[:, :2]
        assert top[1] < bottom[1] and left[0] < right[0]


def test_objects_cover_each_other_only_slightly(root: Path) -> None:
    for record in open_split(root, "train").records:
        boxes = record.instances.boxes
        for i, a in enumerate(boxes):
            for b in boxes[i + 1 :]:
                sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
                smaller = min(np.prod(a[2:] - a[:2]), np.prod(b[2:] - b[:2]))
                assert np.prod(sides.clip(0)) / smaller < 0.13

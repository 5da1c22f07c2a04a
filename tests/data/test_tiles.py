"""Cutting large pictures into tiles, and the command that does it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lucid_core.data.check import Verdict, check
from lucid_core.data.geometry import corners
from lucid_core.data.layout import open_split
from lucid_core.data.tiles import Cutter, picture_names, starts, write_tiles
from lucid_core.evaluation.oriented import OrientedEvaluation
from lucid_core.types import Detections

SIZE = (150, 100)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two pictures of noise: three objects in the first, none in the second."""
    for folder in ("images", "labelTxt"):
        (tmp_path / "in" / "train" / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in "ab":
        pixels = rng.integers(0, 256, (SIZE[1], SIZE[0], 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "in/train/images" / f"{name}.png")
    rows = [
        "10 10 30 10 30 20 10 20 plane 0",
        "50 40 70 40 70 50 50 50 plane 1",
        # Most of it in the left window of 64 pixels, a quarter in the next one only.
        "54 70 74 70 74 80 54 80 ship 0",
    ]
    (tmp_path / "in/train/labelTxt/a.txt").write_text("\n".join(rows))
    return tmp_path / "in"


def content(out: Path, split: str = "train") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "annotations" / f"instances_{split}.json").read_text())
    return found


def lucid(*arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "lucid_core", "data", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("length", "patch", "overlap", "expected"),
    [
        (2000, 1024, 512, [0, 512, 976]),
        (3000, 1024, 512, [0, 512, 1024, 1536, 1976]),
        (1024, 1024, 200, [0]),
        (700, 1024, 200, [0]),
        (1025, 1024, 200, [0, 1]),
        (1848, 1024, 200, [0, 824]),
        (10, 5, 0, [0, 5]),
    ],
)
def test_windows_start_one_stride_apart_and_the_last_is_flush(
    length: int, patch: int, overlap: int, expected: list[int]
) -> None:
    assert starts(length, patch, overlap) == expected


def test_tiles_hold_the_pixels_of_their_windows_and_say_which(root: Path, tmp_path: Path) -> None:
    cutter = Cutter(patch=64, overlap=20, workers=2)
    counts, problems = write_tiles({"train": open_split(root, "train", task="obb")}, tmp_path / "out", cutter)
    found = content(tmp_path / "out")
    # Columns start at 0, 44 and 86, rows at 0 and 36.
    assert [image["window"] for image in found["images"][:6]] == [
        [x, y, x + 64, y + 64] for y in (0, 36) for x in (0, 44, 86)
    ]
    assert [image["id"] for image in found["images"]] == list(range(1, 13)) and problems == []
    assert counts["train"][:2] == (2, 12) and counts["train"].objects == len(found["annotations"])
    assert [image["source_image"] for image in found["images"]] == ["a.png"] * 6 + ["b.png"] * 6
    for image in found["images"]:
        left, top, right, bottom = image["window"]
        pixels = np.asarray(Image.open(root / "train/images" / image["source_image"]))
        np.testing.assert_array_equal(
            np.asarray(Image.open(tmp_path / "out/train" / image["file_name"])), pixels[top:bottom, left:right]
        )
    records = open_split(tmp_path / "out", "train", task="obb").records
    assert records[1].tile == ("a.png", (44, 0, 108, 64))


def test_objects_are_whole_or_difficult_and_never_lose_their_difficulty(root: Path, tmp_path: Path) -> None:
    data = open_split(root, "train", task="obb")
    write_tiles({"train": data}, tmp_path / "out", Cutter(64, 20))
    found = content(tmp_path / "out")
    names = {one["id"]: one["name"] for one in found["categories"]}
    seen = [
        (one["image_id"], names[one["category_id"]], one["segmentation"][0], one["difficult"], one["area"])
        for one in found["annotations"]
    ]
    whole = [10, 10, 30, 10, 30, 20, 10, 20]
    assert (1, "plane", whole, 0, 200) in seen
    # 14 of its 20 columns are in the first window: 70 %, so it is kept as it is, and it was difficult.
    assert (1, "plane", [50, 40, 70, 40, 70, 50, 50, 50], 1, 200) in seen
    # 10 of 20 columns of the ship: the box closes around them.
    cut = next(one for one in seen if one[0] == 4 and one[1] == "ship")
    np.testing.assert_allclose(sorted(np.reshape(cut[2], (4, 2)).tolist()), [[54, 34], [54, 44], [64, 34], [64, 44]])
    assert cut[3] == 1 and cut[4] == pytest.approx(100)
    # All of it in the second column: in its own coordinates.
    inside = next(one for one in seen if one[0] == 5 and one[1] == "ship")
    assert inside[2] == [10, 34, 30, 34, 30, 44, 10, 44] and inside[3] == 0
    assert not [one for one in seen if one[0] > 6]


def test_a_sliver_too_thin_to_teach_leaves_its_tile_as_background(root: Path, tmp_path: Path) -> None:
    (root / "train/labelTxt/a.txt").write_text("63.995 10 80 10 80 20 63.995 20 plane 0\n")
    write_tiles({"train": open_split(root, "train", task="obb")}, tmp_path / "out", Cutter(64, 20))
    found = content(tmp_path / "out")
    left = next(one["id"] for one in found["images"] if one["window"] == [0, 0, 64, 64])
    assert left not in {one["image_id"] for one in found["annotations"]}
    tiles = open_split(tmp_path / "out", "train", task="obb")
    assert tiles.problems == () and len(tiles) == 12


def test_a_turned_box_that_is_cut_keeps_its_direction(tmp_path: Path) -> None:
    for folder in ("images", "labelTxt"):
        (tmp_path / "in/train" / folder).mkdir(parents=True)
    Image.new("RGB", (100, 64)).save(tmp_path / "in/train/images/a.png")
    (tmp_path / "in/train/labelTxt/a.txt").write_text("50 10 82 34 76 42 44 18 ship 0")
    write_tiles({"train": open_split(tmp_path / "in", "train", task="obb")}, tmp_path / "out", Cutter(64, 20))
    first, second = open_split(tmp_path / "out", "train", task="obb").records
    assert first.instances.rboxes[0, 4] == pytest.approx(np.arctan2(3, 4), abs=1e-4)  # type: ignore[index]
    assert first.truth.difficult.tolist() == [True] and second.truth.difficult.tolist() == [False]  # type: ignore
    assert first.instances.boxes[0, 2] <= 64


def test_the_command_cuts_tells_and_makes_what_the_check_finds_clean(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = lucid("tiles", root, out, "--patch", 64, "--overlap", 20, "--suffix", ".jpg", "--workers", 2)
    assert (done.returncode, done.stderr) == (0, "")
    assert "train: 2 images, 12 tiles" in done.stdout
    assert check(out, ["train"], task="obb").verdict is Verdict.CLEAN
    again = lucid("tiles", root, out)
    assert again.returncode == 4 and "is there already" in again.stderr and again.stderr.count("\n") == 1
    for wrong in (["--overlap", 64, "--patch", 64], ["--patch", 16], ["--patch", 0], ["--tiles"]):
        assert lucid("tiles", root, tmp_path / "no", *wrong).returncode == 2
    assert lucid("tiles", tmp_path / "nowhere", tmp_path / "no").returncode == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_objects_that_no_tile_shows_enough_of_are_counted(root: Path, tmp_path: Path) -> None:
    # Longer than a tile; the second is difficult anyway, the third is whole in one tile and cut in another.
    rows = ["5 5 145 5 145 15 5 15 plane 0", "5 25 145 25 145 35 5 35 plane 1", "40 40 70 40 70 50 40 50 ship 0"]
    (root / "train/labelTxt/a.txt").write_text("\n".join(rows))
    counts, _ = write_tiles({"train": open_split(root, "train", task="obb")}, tmp_path / "out", Cutter(64, 32))
    found = content(tmp_path / "out")["annotations"]
    assert (counts["train"].unseen, counts["train"].objects) == (1, len(found))
    assert "object" not in found[0]
    said = "  1 objects of the images are shown to 70 % by no tile"
    assert said in lucid("tiles", root, tmp_path / "again", "--patch", 64, "--overlap", 32).stdout
    assert "by no tile" not in lucid("tiles", root, tmp_path / "large", "--patch", 150).stdout


def test_what_is_left_out_of_the_source_is_told_and_changes_the_exit_status(root: Path, tmp_path: Path) -> None:
    (root / "train/labelTxt/b.txt").write_text("1 1 9 1 9 9 1 9 plane 0\n0 0 9 9 9 0 0 9 plane 0\n")
    done = lucid("tiles", root, tmp_path / "out")
    assert done.returncode == 3 and "b.txt:2" in done.stdout and "1 x four corners that cross themselves" in done.stdout


def test_a_failure_leaves_nothing_behind(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cv2.imwrite", lambda *_: False)
    with pytest.raises(OSError, match="could not be written"):
        write_tiles({"train": open_split(root, "train", task="obb")}, tmp_path / "out", Cutter(64, 20))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


STEMS = st.lists(st.sampled_from(["a", "A", "a_1", "a_2", "A_1", "a_1_1", "b"]), max_size=12)


@given(STEMS)
def test_no_two_pictures_have_tiles_of_one_name(stems: list[str]) -> None:
    names = picture_names(stems)
    assert len({name.casefold() for name in names}) == len(stems)
    first = {stem.casefold(): place for place, stem in reversed(list(enumerate(stems)))}
    assert all(names[place] == stems[place] for place in first.values())


def test_pictures_of_one_name_in_two_folders_do_not_meet(tmp_path: Path) -> None:
    for name in ("x/a", "y/a", "z/a_1"):
        for kind in ("images", "labels"):
            (tmp_path / "in" / kind / "train" / name).parent.mkdir(parents=True)
        Image.new("RGB", (40, 40)).save(tmp_path / "in/images/train" / f"{name}.png")
        (tmp_path / "in/labels/train" / f"{name}.txt").write_text("0 0.1 0.1 0.5 0.1 0.5 0.5 0.1 0.5\n")
    (tmp_path / "in/data.yaml").write_text("names: [ship]\ntrain: images/train\n")
    counts, _ = write_tiles(
        {"train": open_split(tmp_path / "in", "train", task="obb")}, tmp_path / "out", Cutter(64, 20)
    )
    assert counts["train"].tiles == 3 == len(list((tmp_path / "out/train").iterdir()))


def test_what_tiles_teach_is_what_they_are_scored_by(tmp_path: Path) -> None:
    for folder in ("images", "labelTxt"):
        (tmp_path / "in/train" / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    Image.new("RGB", (640, 480)).save(tmp_path / "in/train/images/a.png")
    boxes = rng.uniform((20, 20, 20, 10, -0.7), (620, 460, 60, 20, 2.3), (120, 5))
    rows = [" ".join(f"{value:.2f}" for value in quad) + " ship 0" for quad in corners(boxes).reshape(-1, 8)]
    (tmp_path / "in/train/labelTxt/a.txt").write_text("\n".join(rows))
    write_tiles({"train": open_split(tmp_path / "in", "train", task="obb")}, tmp_path / "out", Cutter(160, 40))
    data = open_split(tmp_path / "out", "train", task="obb")
    # Some are cut by their tile and count, others are difficult.
    sides = [side for one in data.records for side in (one.truth.quads.min((1, 2)), one.truth.difficult)]  # type: ignore
    assert data.problems == () and min(part.min() for part in sides if len(part)) < 0
    assert sum(one.truth.difficult.sum() for one in data.records) > 20  # type: ignore[union-attr]
    evaluation = OrientedEvaluation(data)
    for index, record in enumerate(data.records):
        found = record.instances
        scores = torch.ones((1, len(found)), dtype=torch.float32)
        boxes, labels, rboxes = (
            torch.from_numpy(part)[None] for part in (found.boxes, found.labels, found.rboxes) if part is not None
        )
        evaluation.update(
            Detections(boxes, scores, labels, anchors=torch.zeros_like(labels), rboxes=rboxes),
            torch.tensor([index]),
            torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64),
        )
    assert evaluation.compute().scalars()["map"] == pytest.approx(1)
    assert evaluation.compute_merged().scalars()["map"] == pytest.approx(1)

"""``lucid data check``, as typed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import lucid_core
from lucid_core.data.check import Verdict, check
from lucid_core.data.problems import Kind
from lucid_core.data.shapes import write_shapes

from .test_structure import broken_inside
from .test_yolo import Yolo


@pytest.fixture
def data(tmp_path: Path) -> Yolo:
    one = Yolo(tmp_path / "set")
    for split, count in (("train", 4), ("val", 2)):
        for i in range(count):
            one.picture(f"{split}/{i}.png", f"{i % 2} 0.5 0.5 0.25 0.5\n")
    one.read()
    return one


def command(*argv: object) -> tuple[int, str, str]:
    """Run the command in a process of its own, as typed."""
    environment = {**os.environ, "PYTHONPATH": str(Path(lucid_core.__file__).parents[1]), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "lucid_core", "data", *map(str, argv)], capture_output=True, text=True, env=environment
    )
    return done.returncode, done.stdout, done.stderr


def test_a_clean_data_set_is_counted(data: Yolo) -> None:
    data.picture("train/4.png", "")
    data.picture("val/2.png", "1 0.5 0.5 0.25 0.5\n1 0.2 0.2 0.1 0.1")
    status, out, err = command("check", data.root)
    assert (status, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert ["images", "5", "3"] in lines and ["objects", "4", "4"] in lines and ["64", "x", "48", "5", "3"] in lines
    assert ["without", "objects", "1", "0"] in lines and ["cat", "2", "1"] in lines and ["dog", "2", "3"] in lines
    assert out.endswith("clean: training uses all of it, as it is\n")


def test_faults_are_grouped_counted_cut_and_named_by_file_and_line(data: Yolo, tmp_path: Path) -> None:
    data.picture("train/0.png", "0 0.5 0.5 0.25 0.5\n" + "7 0.5 0.5 0.1 0.1\n" * 12 + "0 nan 0.5 0.1 0.1\n")
    (data.root / "images/train/1.png").write_bytes(b"")
    data.picture("val/0.png", "0 0.9 0.5 0.4 0.5")
    status, out, _ = command("check", data.root, "--limit", 3)
    assert status == 3
    assert "12 x unknown class (object left out)" in out and "... and 9 more" in out
    assert f"{data.root}/labels/train/0.txt:2: class 7 is not" in out and "0.txt:5: " not in out
    assert "1 x picture unreadable (image left out)" in out and "1.png: is empty" in out
    assert "1 x object partly outside the image, clipped (changed)" in out
    assert out.endswith(
        "usable with faults: training leaves out 1 images, 13 objects of other images, and changes 1 objects\n"
    )
    status, out, _ = command("check", data.root, "--json")
    told = json.loads(out)
    problems = told["splits"]["train"]["problems"]
    assert status == 3 and told["verdict"] == "faults" and len(problems) == 14
    assert [one["where"] for one in problems if one["kind"] == "unknown_class"] == [f"line {i}" for i in range(2, 14)]
    assert problems[0]["file"] == f"{data.root}/labels/train/0.txt" and problems[0]["effect"] == "object_left_out"
    assert told["splits"]["val"]["classes"] == {"cat": 1, "dog": 1}
    assert told["splits"]["train"]["sizes"] == [{"width": 64, "height": 48, "images": 3}]


def test_remarks_alone_are_clean(data: Yolo) -> None:
    data.picture("train/0.png", "0 0.5 0.5 0.25 0.5\n" * 2)
    status, out, _ = command("check", data.root)
    assert status == 0 and "1 x object twice (kept as it is)" in out


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ({"val": None}, "val: .*no entry 'val'"),
        ({"train": "images/nowhere"}, "train: .*leads nowhere"),
        ({"names": ["cat"], "nc": 2}, "train, val, test: .*nc is 2"),
    ],
)
def test_what_training_would_refuse_is_unusable(data: Yolo, change: dict[str, Any], seen: str) -> None:
    data.config |= change
    (data.root / "data.yaml").write_text(json.dumps(data.config))
    status, out, _ = command("check", data.root)
    assert status == 4
    assert re.search(f"error: {seen}", out)
    assert out.endswith("unusable: training would not start\n")


def test_a_folder_that_is_not_there_is_unusable(tmp_path: Path) -> None:
    status, out, _ = command("check", tmp_path / "gone")
    assert status == 4 and out.count("no such folder") == 1
    assert json.loads(command("check", tmp_path / "gone", "--json")[1])["verdict"] == "unusable"


def test_splits_of_different_classes_are_unusable_with_both_tables(tmp_path: Path) -> None:
    root = write_shapes(tmp_path / "set", train=3, val=2, size=64)
    file = root / "annotations/instances_val.json"
    content = json.loads(file.read_text())
    for row in content["categories"]:
        row["id"] = 6 - row["id"]
    for row in content["annotations"]:
        row["category_id"] = 6 - row["category_id"]
    file.write_text(json.dumps(content))
    swapped = check(root)
    assert swapped.verdict is Verdict.CLEAN and swapped.splits["val"].category_ids == (5, 4, 3, 2, 1)
    content["categories"][0]["name"] = "horse"
    file.write_text(json.dumps(content))
    status, out, _ = command("check", root)
    assert status == 4 and "disagree on their classes" in out and "horse" in out


def test_splits_and_places_can_be_named(tmp_path: Path) -> None:
    root = write_shapes(tmp_path / "set", train=3, val=2, size=64)
    (root / "train").rename(root / "pictures")
    (root / "annotations/instances_train.json").rename(root / "boxes.json")
    assert command("check", root)[0] == 4
    assert command("check", root, "--split", "val")[0] == 0
    assert command("check", root, "--train_images", "pictures", "--train_annotations", "boxes.json")[0] == 0
    status, out, _ = command("check", root, "--split", "test")
    assert status == 4 and "no split 'test' found" in out and "training would not start" not in out


def test_splits_are_read_in_one_order_whatever_the_order_asked(data: Yolo) -> None:
    assert list(check(data.root, ("val", "train")).splits) == ["train", "val"]


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_leaves_early_sees_no_traceback(data: Yolo, options: tuple[str, ...]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lucid_core.__file__).parents[1])}
    argv = [sys.executable, "-m", "lucid_core", "data", "check", str(data.root), *options]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(argv, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_line(data: Yolo) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(lucid_core.__file__).parents[1])}
    argv = [sys.executable, "-c", "import sys; from lucid_core.data.command import main; sys.exit(main(sys.argv[1:]))"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*argv, "check", str(data.root)], stdout=full, stderr=subprocess.PIPE, text=True, env=environment
        )
    assert done.returncode == 1 and done.stderr.startswith("lucid: error: ") and done.stderr.count("\n") == 1


def test_decoding_in_full_is_asked_for(data: Yolo) -> None:
    path = data.root / "images/train/0.png"
    path.write_bytes(broken_inside(path.read_bytes()))
    assert command("check", data.root)[0] == 0
    status, out, _ = command("check", data.root, "--decode")
    assert status == 3 and "0.png: cannot be decoded" in out


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("chekc",),
        ("check",),
        ("check", ".", "--nope"),
        ("check", ".", "--limit", "0"),
        ("check", ".", "--workers", "x"),
    ],
)
def test_command_lines_that_are_not_understood_are_refused_in_one_line(argv: tuple[str, ...]) -> None:
    status, out, err = command(*argv)
    assert (status, out) == (2, "") and err.startswith("lucid: error: ") and err.count("\n") == 1


def test_names_of_any_script_and_of_bytes_that_are_no_text_can_be_printed(tmp_path: Path) -> None:
    data = Yolo(tmp_path / "набор 图片")
    for name in ("train/缺陷 é.png", "val/0.png"):
        data.picture(name, "9 0.5 0.5 0.25 0.5\n0 0.5 0.5 0.25 0.5")
    bad = os.fsdecode(os.fsencode(str(data.root / "images/train")) + b"/\xff.png")
    Path(bad).write_bytes(b"")
    data.read()
    for options in ((), ("--json",)):
        line = [sys.executable, "-m", "lucid_core", "data", "check", str(data.root), *options]
        environment = {**os.environ, "PYTHONPATH": str(Path(lucid_core.__file__).parents[1])}
        done = subprocess.run(line, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (3, "") and "\\udcff.png" in done.stdout


def test_neither_torch_nor_lightning_is_needed(data: Yolo) -> None:
    code = (
        "import sys; from lucid_core.data.command import main; status = main(['check', sys.argv[1]]);"
        "assert not {'torch', 'lightning', 'cv2'} & set(sys.modules), 'a heavy import'; sys.exit(status)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(lucid_core.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code, str(data.root)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_page_says_what_happens_to_every_kind_of_problem() -> None:
    page = (Path(__file__).parents[2] / "docs/data.md").read_text()
    assert not [kind for kind in Kind if f"| {kind.seen} | {kind.effect.value} |" not in page]


def test_a_mistyped_option_is_answered_with_the_one_that_was_meant() -> None:
    status, _, err = command("check", ".", "--decod")
    assert status == 2 and "did you mean --decode?" in err


def test_json_counts_what_the_text_counts_of_oriented_boxes(tmp_path: Path) -> None:
    for folder in ("images", "labelTxt"):
        (tmp_path / "train" / folder).mkdir(parents=True)
    Image.new("RGB", (64, 64)).save(tmp_path / "train/images/a.png")
    rows = ("2 2 20 2 20 12 2 12 ship 0", "30 30 50 30 50 40 30 40 ship 1")
    (tmp_path / "train/labelTxt/a.txt").write_text("\n".join(rows))
    told = json.loads(command("check", tmp_path, "--task", "obb", "--json")[1])
    assert told["splits"]["train"]["difficult"] == 1
    lines = [line.split() for line in command("check", tmp_path, "--task", "obb")[1].splitlines()]
    assert ["difficult", "1"] in lines

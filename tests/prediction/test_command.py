"""Whole command lines of ``lucid predict``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from pycocotools.coco import COCO

from lucid_core.module import Detector
from lucid_core.prediction import command

from .conftest import CATEGORIES, Command

Pixels = NDArray[np.uint8]
CPU = ("--device", "cpu")


@pytest.fixture
def folder(tmp_path: Path, shapes: Path) -> Path:
    """Pictures in a folder and below it, under names of several scripts, two of them of one base name."""
    folder = tmp_path / "in"
    (folder / "изображения").mkdir(parents=True)
    for number, name in enumerate(("a.png", "a.bmp", "изображения/缺陷 0001é.png", "изображения/a.png")):
        Image.open(shapes / "val" / f"00000{number}.png").save(folder / name)
    return folder


def results(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    return json.loads((folder / "predictions.json").read_text()), json.loads((folder / "images.json").read_text())


def test_a_folder_becomes_pictures_and_json(lucid: Command, checkpoint: Path, folder: Path) -> None:
    finished = lucid("predict", checkpoint, "in", *CPU, "--score", "0", "--limit", "4")
    assert finished.status == 0, finished.err
    out = Path("runs/predict_0")
    assert finished.out.splitlines()[0].startswith("pictures: 4, objects: 16 (")
    assert finished.out.splitlines()[1] == f"The results are in {out}"
    drawn = sorted(path.relative_to(out / "pictures").as_posix() for path in out.rglob("*.jpg"))
    assert drawn == ["a-2.jpg", "a.jpg", "изображения/a.jpg", "изображения/缺陷 0001é.jpg"]

    found, table = results(out)
    assert len(found) == 16
    assert set(found[0]) == {"image_id", "category_id", "bbox", "score", "file_name"}
    assert [image["file_name"] for image in table["images"]] == [
        "in/a.bmp", "in/a.png", "in/изображения/a.png", "in/изображения/缺陷 0001é.png"
    ]  # fmt: skip
    assert [image["picture"] for image in table["images"]] == [
        "pictures/a.jpg", "pictures/a-2.jpg", "pictures/изображения/a.jpg", "pictures/изображения/缺陷 0001é.jpg"
    ]  # fmt: skip
    assert [(entry["id"], entry["name"]) for entry in table["categories"]] == list(
        zip(CATEGORIES, ("circle", "square", "triangle", "rectangle", "star"), strict=True)
    )
    assert table["info"]["decoder"] == "end_to_end" and table["info"]["image_size"] == 64
    assert table["skipped"] == []
    # Small pictures are drawn enlarged, by a whole factor.
    assert Image.open(out / "pictures" / "a.jpg").size == (448, 448)

    lucid("predict", checkpoint, "in", *CPU, "--no-pictures")
    assert sorted(path.name for path in Path("runs/predict_1").iterdir()) == ["images.json", "predictions.json"]


def test_pycocotools_loads_the_results(lucid: Command, checkpoint: Path, folder: Path) -> None:
    lucid("predict", checkpoint, "in", *CPU, "--score=0", "--limit=4", "--output=out", "--no_pictures")
    truth = COCO("out/images.json")
    loaded = truth.loadRes("out/predictions.json")
    assert len(loaded.getAnnIds()) == 16 and loaded.getImgIds() == [1, 2, 3, 4]
    assert set(loaded.getCatIds()) == set(CATEGORIES)


def test_the_command_and_python_say_the_same(lucid: Command, checkpoint: Path, folder: Path, loaded: Detector) -> None:
    for decoder in ("end_to_end", "nms"):
        options = ("--score", "0.02", "--decoder", decoder, "--batch_size", "2", "--json")
        finished = lucid("predict", checkpoint, "in/*.*", *options, *CPU)
        assert finished.status == 0, finished.err
        printed = json.loads(finished.out)
        files = [Path("in/a.bmp"), Path("in/a.png")]
        found = loaded.predict(files, score=0.02, decoder=decoder, batch_size=2)
        expected = [{**row, "file_name": str(r.path)} for r in found for row in r.to_coco(r.index + 1)]
        assert printed == expected and len(printed) > 2
    assert sorted(Path().iterdir()) == [Path("in")], "--json writes nothing"


def test_odd_pictures_are_named_counted_and_skipped(
    lucid: Command, checkpoint: Path, folder: Path, photograph: Pixels
) -> None:
    """A18 and its kin: what cannot be read costs no other picture."""
    noise = np.random.default_rng(0).integers(0, 256, (200, 300, 3), np.uint8)
    Image.fromarray(noise).save(folder / "cut.jpg")
    whole = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.jpg").touch()
    (folder / "page.png").write_text("<html>not found</html>")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photograph).save(folder / "turned.jpg", exif=exif)
    Image.fromarray(photograph).convert("CMYK").save(folder / "cmyk.jpg")
    finished = lucid("predict", checkpoint, "in", *CPU, "--output", "out", "--batch-size", "3")
    assert finished.status == 3
    assert "pictures: 6, " in finished.out and "; could not be read and were skipped: 3\n" in finished.out
    lines = [line for line in finished.err.splitlines() if line.startswith("lucid: skipped: ")]
    assert len(lines) == 3
    assert "in/cut.jpg: cannot be decoded" in lines[0] and "in/empty.jpg: is empty" in lines[1]
    assert "in/page.png: is not a picture" in lines[2]
    assert "Traceback" not in finished.err
    _, table = results(Path("out"))
    assert [entry["file_name"] for entry in table["skipped"]] == ["in/cut.jpg", "in/empty.jpg", "in/page.png"]
    assert [image["id"] for image in table["images"]] == [1, 2, 3, 4, 5, 6]
    sizes = {image["file_name"]: (image["width"], image["height"]) for image in table["images"]}
    assert sizes["in/turned.jpg"] == (67, 101) and sizes["in/cmyk.jpg"] == (101, 67)

    finished = lucid("predict", checkpoint, "in/empty.jpg", *CPU, "--output", "none")
    assert finished.status == 1 and "skipped: 1\n" in finished.out


def test_an_original_is_never_written_over(lucid: Command, checkpoint: Path, shapes: Path) -> None:
    original = Path("out/pictures/a.jpg")
    original.parent.mkdir(parents=True)
    Image.open(shapes / "val" / "000000.png").save(original)
    before = original.read_bytes()
    finished = lucid("predict", checkpoint, original, *CPU, "--output", "out")
    assert finished.status == 0 and original.read_bytes() == before
    assert Path("out/pictures/a-2.jpg").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("in/nothing.png",), "in/nothing.png: no such file, folder or pattern"),
        (("in/*.gif",), "no picture matches this pattern"),
        (("in/a.pgn",), "did you mean in/a.png?"),
        (("empty",), "empty: no pictures in this folder"),
        (("in", "--device", "cuda:9"), "device 'cuda:9' is not on this machine; there are auto, cpu"),
        (("in", "--scroe", "0.5"), "no option is called '--scroe'; did you mean --score?"),
        (("in", "--decoder", "soft"), "argument --decoder: invalid choice: 'soft'"),
        (("in", "--limit", "many"), "argument --limit: invalid int value: 'many'"),
        (("--", "--no-such-file.png"), "--no-such-file.png: no such file, folder or pattern"),
        ((), "the following arguments are required: SOURCE"),
    ],
)
def test_what_is_not_understood_is_told_in_one_line(
    lucid: Command, checkpoint: Path, folder: Path, words: tuple[str, ...], told: str
) -> None:
    Path("empty").mkdir()
    finished = lucid("predict", checkpoint, *words)
    assert finished.status == 2 and told in finished.err
    assert finished.err.startswith("lucid: error: ") and finished.err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--score", "2"), "score is 2.0; it must lie in [0, 1]"),
        (("--image_size", "100"), "image_size is 100; it must be a positive multiple of 32"),
        (("--output", "in/a.png"), "in/a.png"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    lucid: Command, checkpoint: Path, folder: Path, words: tuple[str, ...], told: str
) -> None:
    finished = lucid("predict", checkpoint, "in", *CPU, *words)
    assert finished.status == 1 and told in finished.err
    assert finished.err.startswith("lucid: error: ") and finished.err.count("\n") == 1


def test_a_checkpoint_that_is_not_there(lucid: Command, checkpoint: Path, folder: Path) -> None:
    shutil.copy(checkpoint, "best.ckpt")
    finished = lucid("predict", "bets.ckpt", "in")
    assert finished.status == 2 and finished.err.endswith(
        "no checkpoint is called 'bets.ckpt'; did you mean best.ckpt?\n"
    )


def test_too_little_memory_says_what_to_lower(
    lucid: Command, checkpoint: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(Detector, "unpack", fail)
    finished = lucid("predict", checkpoint, "in", *CPU, "--batch_size", "4")
    assert finished.status == 1
    assert finished.err == "lucid: error: the device has too little memory for 4 pictures at once: lower --batch_size\n"


def test_help_names_every_option(lucid: Command) -> None:
    finished = lucid("predict", "--help")
    assert finished.status == 0
    for action in command._parser()._actions:
        assert all(option in finished.out for option in action.option_strings)
        assert action.help
    assert "averaged weights" in finished.out and "exit status" in finished.out
    assert "predict " in lucid("--help").out


def test_it_works_without_the_accelerations(checkpoint: Path, folder: Path, tmp_path: Path) -> None:
    """Also from a checkpoint of an accelerated run, which holds what any other does."""
    code = (
        "import sys; sys.modules['lucid_accel'] = None; from lucid_core.__main__ import main; "
        "sys.argv[0] = 'lucid'; sys.exit(main())"
    )
    words = ["predict", str(checkpoint), "in/a.png", *CPU, "--output", "out"]
    source = str(Path(command.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "LUCID_DISABLE_PLUGINS": "*"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "predictions.json").is_file()
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr

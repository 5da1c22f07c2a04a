"""Verdicts on a collection of hard and broken files, where ``LUCID_ODD`` names its folder.

The collection is no part of this project; small twins of what it holds are in the other tests. Its folders: ``files``
(odd pictures of other projects' tests), ``broken`` (pictures that are damaged), ``ann`` (COCO files with one fault
each), ``labelled`` (two photographs in many encodings and under awkward names, with labels).
"""

from __future__ import annotations

import csv
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lucid_core.data.check import Verdict, check
from lucid_core.data.coco import read_coco
from lucid_core.data.images import ImageReader
from lucid_core.data.problems import Kind
from lucid_core.data.types import DataError, Task

from .test_encodings import score

ODD = Path(os.environ.get("LUCID_ODD") or "nowhere")
pytestmark = pytest.mark.skipif(not ODD.is_dir(), reason="LUCID_ODD does not name the collection")

READER = ImageReader()

#: Pictures that are refused, and what the message says; all others are read.
REFUSED = {
    "files/truncated_jpeg.jpg": "cut short",
    "files/truncated_image.png": "cut short",
    "files/truncated_end_chunk.png": "cut short",
    "files/broken_data_stream.png": "damaged",
    "files/decompression_bomb.gif": "larger than",
    "broken/truncated_60.jpg": "cut short",
    "broken/truncated_2.jpg": "cut short",
    "broken/no_eoi.jpg": "cut short",
    "broken/truncated.png": "cut short",
    "broken/bad_crc.png": "damaged",
    "broken/empty.jpg": "is empty",
    "broken/text.jpg": "not a picture",
    "broken/html.jpg": "not a picture",
    "broken/lfs_pointer.jpg": "not a picture",
    "broken/huge_claim.png": "larger than",
}

#: For each COCO file and task: problems as (kind, how many), and how many images and objects are left to train on.
#: ``None``: the file is refused.
ANNOTATIONS: dict[tuple[str, Task], tuple[dict[Kind, int], int, int] | None] = {
    ("zero_size", "detect"): ({Kind.NO_AREA: 3}, 2, 10),
    ("zero_size", "segment"): ({Kind.NO_MASK: 3}, 2, 10),
    ("tiny", "detect"): ({Kind.NO_AREA: 1, Kind.NO_POLYGON: 1}, 2, 11),
    ("negative_size", "detect"): ({Kind.NO_AREA: 1}, 2, 10),
    ("partly_outside", "detect"): ({Kind.CLIPPED: 2, Kind.NO_POLYGON: 1}, 2, 12),
    ("whole_image", "detect"): ({Kind.CLIPPED: 1}, 2, 12),
    ("nan_inf", "detect"): ({Kind.NOT_FINITE: 2}, 2, 10),
    ("string_numbers", "detect"): ({}, 2, 11),
    ("short_box", "detect"): ({Kind.MALFORMED: 2}, 2, 10),
    ("no_bbox", "detect"): ({Kind.NO_BOX: 1}, 2, 11),
    ("no_bbox", "segment"): ({Kind.NO_BOX: 1}, 2, 11),
    ("no_area_iscrowd", "detect"): ({}, 2, 10),
    ("no_area_iscrowd", "segment"): None,
    ("rle_wrong_size", "detect"): ({}, 2, 10),
    ("rle_wrong_size", "segment"): ({Kind.NO_MASK: 1}, 2, 10),
    ("only_crowd", "detect"): ({}, 2, 0),
    ("only_crowd", "segment"): ({}, 2, 0),
    ("many_parts", "detect"): ({}, 2, 11),
    ("many_parts", "segment"): ({}, 2, 11),
    ("unknown_category", "detect"): ({Kind.UNKNOWN_CLASS: 1}, 2, 10),
    ("duplicate_annotation_ids", "detect"): ({Kind.REPEATED_ID: 1}, 2, 10),
    ("annotation_id_zero", "detect"): ({}, 2, 10),
    ("no_annotation_ids", "detect"): ({}, 2, 10),
    ("duplicate_image_ids", "detect"): None,
    ("duplicate_images", "detect"): ({Kind.REPEATED_IMAGE: 1}, 3, 10),
    ("duplicate_boxes", "detect"): ({Kind.REPEATED_OBJECT: 2}, 2, 20),
    ("orphan_annotation", "detect"): ({Kind.IMAGE_UNLISTED: 1}, 2, 10),
    ("broken_image", "detect"): ({Kind.PICTURE_OUTSIDE: 1}, 2, 10),
    ("no_size", "detect"): ({}, 2, 10),
    ("no_annotations", "detect"): ({Kind.NO_LABELS: 1}, 2, 0),
    ("unlabelled_image", "detect"): ({}, 2, 8),
    ("absolute_path", "detect"): ({Kind.PICTURE_OUTSIDE: 1}, 1, 2),
    ("parent_path", "detect"): ({Kind.PICTURE_OUTSIDE: 1}, 1, 2),
    ("windows_path", "detect"): ({}, 3, 10),
    ("many_boxes", "detect"): ({Kind.NO_POLYGON: 1}, 2, 3010),
    ("many_boxes", "segment"): ({Kind.NO_MASK: 3000}, 2, 10),
    ("kp_all_zero", "keypoints"): ({Kind.REPEATED_OBJECT: 1}, 2, 3),
    ("kp_wrong_count", "detect"): ({Kind.KEY_POINTS: 2, Kind.REPEATED_OBJECT: 1}, 2, 4),
    ("kp_wrong_count", "keypoints"): ({Kind.KEY_POINTS: 2, Kind.REPEATED_OBJECT: 1}, 2, 4),
    ("kp_bad_visibility", "keypoints"): ({Kind.KEY_POINTS: 1, Kind.REPEATED_OBJECT: 1}, 2, 3),
    ("kp_wrong_num", "keypoints"): ({Kind.REPEATED_OBJECT: 1}, 2, 3),
    ("kp_nan", "keypoints"): ({Kind.KEY_POINTS: 1, Kind.REPEATED_OBJECT: 1}, 2, 3),
    ("kp_no_skeleton", "keypoints"): ({Kind.NO_MIRROR: 1}, 2, 2),
    ("not_json", "detect"): None,
    ("bom", "detect"): ({}, 2, 8),
}

#: For each file of DOTA text: kinds of problems in their order, and how many objects are left to train on. ``None``:
#: its picture is left out.
ORIENTED: dict[str, tuple[list[Kind], int | None]] = {
    "blank_lines": ([], 1),
    "class_with_blank": ([], 1),
    "concave": ([Kind.CONCAVE], 1),
    "crlf_tabs": ([], 1),
    "degenerate": ([Kind.NO_AREA, Kind.NO_AREA, Kind.NO_USABLE_LABEL], None),
    "difficulty_2": ([], 1),
    "header": ([], 1),
    "nan": ([Kind.NOT_FINITE, Kind.NO_USABLE_LABEL], None),
    "outside": ([Kind.NO_AREA, Kind.NO_USABLE_LABEL], None),
    "partly_outside": ([Kind.CLIPPED], 1),
    "square_45": ([], 1),
    "start_corner": ([Kind.REPEATED_OBJECT], 4),
    "unknown_class": ([Kind.UNKNOWN_CLASS, Kind.NO_USABLE_LABEL], None),
    "yolo_normalised": ([Kind.DIALECT, Kind.NO_USABLE_LABEL], None),
}


def listed(folder: str) -> list[dict[str, str]]:
    with (ODD / folder / "manifest.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("folder", ["files", "broken"])
def test_every_picture_has_its_verdict(folder: str) -> None:
    seen = {}
    for row in listed(folder):
        path, name = ODD / folder / row["file"], f"{folder}/{row['file']}"
        try:
            seen[name] = READER.inspect(path)
        except DataError as error:
            assert REFUSED.get(name, "?") in str(error) and "\n" not in str(error), name
            with pytest.raises(DataError):
                READER.decode(path)
            continue
        pixels = READER.decode(path)
        assert pixels.dtype == np.uint8 and pixels.shape == (*seen[name][::-1], 3), name
        if row["size"]:
            stored = tuple(map(int, row["size"].split("x")))
            assert seen[name] in (stored, stored[::-1]), name
    assert len(seen) == len(listed(folder)) - sum(name.startswith(folder) for name in REFUSED)


@pytest.mark.parametrize(("name", "task"), ANNOTATIONS)
def test_every_annotation_file_has_its_verdict(name: str, task: Task) -> None:
    given = {"train": ("labelled/images", f"ann/{name}.json")}
    found = check(ODD, ["train"], places=given, task=task)
    expected = ANNOTATIONS[name, task]
    if expected is None:
        assert found.verdict is Verdict.UNUSABLE and f"{name}.json" in found.errors[0]
        return
    (data,) = found.splits.values()
    kinds = [problem.kind for problem in data.problems]
    counted = {kind: kinds.count(kind) for kind in kinds}
    assert (counted, len(data), sum(len(one.instances) for one in data.records)) == expected, data.report()
    faults = any(kind.effect.is_fault for kind in counted)
    assert found.verdict is (Verdict.FAULTS if faults else Verdict.CLEAN)
    for record in data.records:
        boxes = record.instances.boxes
        assert np.isfinite(boxes).all() and (boxes[:, 2:] > boxes[:, :2]).all()
        assert boxes.min(initial=0) >= 0 and (boxes[:, 2:] <= (record.width, record.height)).all()


def test_every_file_of_oriented_boxes_has_its_verdict(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("plane\nship\nstorage tank\n")
    for folder in ("images", "labelTxt"):
        (tmp_path / "train" / folder).mkdir(parents=True)
    for row in listed("obb"):
        shutil.copy(ODD / "obb" / row["file"], tmp_path / "train/labelTxt")
        shutil.copy(ODD / "labelled/images/plain.jpg", tmp_path / f"train/images/{Path(row['file']).stem}.jpg")
    found = check(tmp_path, ["train"], task="obb")
    (data,) = found.splits.values()
    records = {one.image.stem: one for one in data.records}
    seen = {name: [one.kind for one in data.problems if one.file.stem == name] for name in ORIENTED}
    left = {name: len(records[name].instances) if name in records else None for name in ORIENTED}
    assert {name: (seen[name], left[name]) for name in ORIENTED} == ORIENTED, data.report()
    assert sum(map(len, seen.values())) == len(data.problems) and found.verdict is Verdict.FAULTS
    difficult = {name: one.truth.difficult.tolist() for name, one in records.items() if one.truth.difficult is not None}
    assert [name for name, hard in difficult.items() if any(hard)] == ["difficulty_2", "partly_outside"]
    # One box is the same from each of its corners.
    four = records["start_corner"].instances.rboxes
    assert four is not None and np.ptp(four, axis=0).max() < 1e-4


def test_the_tables_are_complete() -> None:
    assert {path.stem for path in (ODD / "ann").glob("*.json")} == {name for name, _ in ANNOTATIONS}
    assert {path.stem for path in (ODD / "obb").glob("*.txt")} == set(ORIENTED)
    assert all((ODD / name).is_file() for name in REFUSED)


def test_every_encoding_has_right_labels_and_pixels() -> None:
    data = read_coco(ODD / "labelled/images", ODD / "labelled/instances.json")
    assert data.problems == () and len(data) == len(listed("labelled"))
    assert score(data, size=640) == pytest.approx(1.0)
    for i, record in enumerate(data.records):
        assert score(data, [i], 640) == pytest.approx(1.0), record.image.name
    photographs = [Image.open(ODD / f"labelled/images/{name}.jpg").convert("RGB") for name in ("plain", "plain2")]
    for record in data.records:
        pixels = READER.decode(record.image)
        assert pixels.shape == (record.height, record.width, 3)
        tone = 12 if "gray16_dark" not in record.image.name else 120
        apart = min(_apart(pixels, one) for one in photographs)
        assert apart < (60 if record.image.name == "onebit.png" else tone), record.image.name


def _apart(pixels: np.ndarray, photograph: Image.Image) -> float:
    """How far a picture is from a photograph, both in grey and small: a turned or inverted one is far away."""
    small = Image.fromarray(pixels).convert("L").resize((80, 60), Image.Resampling.BOX)
    other = photograph.convert("L").resize((80, 60), Image.Resampling.BOX)
    return float(np.abs(np.asarray(small, int) - np.asarray(other, int)).mean())

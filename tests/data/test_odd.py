"""Verdicts on a collection of hard and broken files, where ``LUCID_ODD`` names its folder.

The collection is no part of this project; small twins of what it holds are in the other tests. Its folders: ``files``
(odd pictures of other projects' tests), ``broken`` (pictures that are damaged), ``ann`` (COCO files with one fault
each), ``labelled`` (two photographs in many encodings and under awkward names, with labels).
"""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lucid_core.data.check import Verdict, check
from lucid_core.data.coco import read_coco
from lucid_core.data.images import ImageReader
from lucid_core.data.problems import Kind
from lucid_core.data.types import DataError

from .test_encodings import score

ODD = Path(os.environ.get("LUCID_ODD", "nowhere"))
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

#: For each COCO file: problems as (kind, how many), and how many images and objects are left to train on. ``None``:
#: the file is refused.
ANNOTATIONS: dict[str, tuple[dict[Kind, int], int, int] | None] = {
    "zero_size": ({Kind.NO_AREA: 3}, 2, 10),
    "tiny": ({Kind.NO_AREA: 1, Kind.NO_POLYGON: 1}, 2, 11),
    "negative_size": ({Kind.NO_AREA: 1}, 2, 10),
    "partly_outside": ({Kind.CLIPPED: 2, Kind.NO_POLYGON: 1}, 2, 12),
    "whole_image": ({Kind.CLIPPED: 1}, 2, 12),
    "nan_inf": ({Kind.NOT_FINITE: 2}, 2, 10),
    "string_numbers": ({}, 2, 11),
    "short_box": ({Kind.MALFORMED: 2}, 2, 10),
    "no_bbox": ({Kind.NO_BOX: 1}, 2, 11),
    "no_area_iscrowd": ({}, 2, 10),
    "rle_wrong_size": ({}, 2, 10),
    "only_crowd": ({}, 2, 0),
    "many_parts": ({}, 2, 11),
    "unknown_category": ({Kind.UNKNOWN_CLASS: 1}, 2, 10),
    "duplicate_annotation_ids": ({Kind.REPEATED_ID: 1}, 2, 10),
    "annotation_id_zero": ({}, 2, 10),
    "no_annotation_ids": ({}, 2, 10),
    "duplicate_image_ids": None,
    "duplicate_images": ({Kind.REPEATED_IMAGE: 1}, 3, 10),
    "duplicate_boxes": ({Kind.REPEATED_OBJECT: 2}, 2, 20),
    "orphan_annotation": ({Kind.IMAGE_UNLISTED: 1}, 2, 10),
    "broken_image": ({Kind.PICTURE_OUTSIDE: 1}, 2, 10),
    "no_size": ({}, 2, 10),
    "no_annotations": ({Kind.NO_LABELS: 1}, 2, 0),
    "unlabelled_image": ({}, 2, 8),
    "absolute_path": ({Kind.PICTURE_OUTSIDE: 1}, 1, 2),
    "parent_path": ({Kind.PICTURE_OUTSIDE: 1}, 1, 2),
    "windows_path": ({}, 3, 10),
    "many_boxes": ({Kind.NO_POLYGON: 1}, 2, 3010),
    "kp_all_zero": ({Kind.REPEATED_OBJECT: 1}, 2, 3),
    "kp_wrong_count": ({Kind.KEY_POINTS: 2, Kind.REPEATED_OBJECT: 1}, 2, 4),
    "kp_bad_visibility": ({Kind.KEY_POINTS: 1, Kind.REPEATED_OBJECT: 1}, 2, 3),
    "kp_wrong_num": ({Kind.REPEATED_OBJECT: 1}, 2, 3),
    "kp_nan": ({Kind.KEY_POINTS: 1, Kind.REPEATED_OBJECT: 1}, 2, 3),
    "kp_no_skeleton": ({}, 2, 2),
    "not_json": None,
    "bom": ({}, 2, 8),
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


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_every_annotation_file_has_its_verdict(name: str) -> None:
    given = {"train": ("labelled/images", f"ann/{name}.json")}
    found = check(ODD, ["train"], places=given)
    expected = ANNOTATIONS[name]
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


def test_the_table_is_complete() -> None:
    assert {path.stem for path in (ODD / "ann").glob("*.json")} == set(ANNOTATIONS)
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

"""From a file in any encoding, under any name, to AP 1.0 for perfect predictions: labels and pixels belong together."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from lucid_core.data.coco import read_coco
from lucid_core.data.images import ImageReader
from lucid_core.data.loader import EvaluationLoader
from lucid_core.data.records import DataSet
from lucid_core.data.source import SourceReader
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.types import Detections

from .test_images import photograph, upright

WIDTH, HEIGHT = 96, 64
#: One object over each of two quarters: upright pixels.
BOXES = [(4, 3, 40, 26), (52, 36, 40, 25)]


def save(path: Path, mode: str = "RGB", turn: int = 1, **options: Any) -> None:
    image = Image.fromarray(unturned(turn))
    image = image.quantize(16) if mode == "P" else image.convert(mode)
    if turn != 1:
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = turn
    image.save(path, **options)


def unturned(turn: int) -> NDArray[np.uint8]:
    """The pixels to store so that they come upright as the photograph."""
    sides = (HEIGHT, WIDTH) if turn < 5 else (WIDTH, HEIGHT)
    places = np.arange(WIDTH * HEIGHT).reshape(*sides, 1)
    order = upright(np.repeat(places, 3, 2), turn)[..., 0].ravel()
    stored = np.empty((WIDTH * HEIGHT, 3), np.uint8)
    stored[order] = photograph(WIDTH, HEIGHT).reshape(-1, 3)
    return stored.reshape(*sides, 3)


FILES: dict[str, dict[str, Any]] = {
    **{f"exif_{turn}.jpg": {"turn": turn, "quality": 95, "subsampling": 0} for turn in range(1, 9)},
    "progressive.jpg": {"progressive": True, "quality": 95},
    "gray.jpg": {"mode": "L", "quality": 95},
    "cmyk.jpg": {"mode": "CMYK", "quality": 95},
    "palette.png": {"mode": "P"},
    "rgba.png": {"mode": "RGBA"},
    "la.png": {"mode": "LA"},
    "onebit.png": {"mode": "1"},
    "photo.bmp": {},
    "photo.tif": {},
    "photo.gif": {"mode": "P"},
    "photo.webp": {"lossless": True},
    "really_png.jpg": {"format": "PNG"},
    "UPPER.JPG": {"quality": 95},
    "no_extension": {"format": "PNG"},
    "фото 图片 ñ é.jpg": {"quality": 95},
    unicodedata.normalize("NFD", "café.jpg"): {"quality": 95},
    "dots.in.name.v2.jpg": {"quality": 95},
    "quote's & (1) #%20.jpg": {"quality": 95},
    "a/same.jpg": {"quality": 95},
    "b/same.jpg": {"quality": 95},
    "same.png": {},
}
GREY = {"gray.jpg", "la.png", "onebit.png"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    root = tmp_path_factory.mktemp("encodings")
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": 2, "name": "cat"}, {"id": 5, "name": "dog"}],
    }
    for folder in ("a", "b"):
        (root / folder).mkdir()
    for i, (name, options) in enumerate(FILES.items()):
        save(root / name, **options)
        content["images"].append(
            {"id": i, "file_name": unicodedata.normalize("NFC", name), "width": WIDTH, "height": HEIGHT}
        )
        content["annotations"] += [
            {"id": 2 * i + k, "image_id": i, "category_id": (2, 5)[k], "bbox": box} for k, box in enumerate(BOXES)
        ]
    (root / "instances.json").write_text(json.dumps(content))
    read = read_coco(root, root / "instances.json")
    assert read.problems == () and len(read) == len(FILES)
    return read


def score(data: DataSet, images: Sequence[int] = (), size: int = 320) -> float:
    """AP of the labels that the evaluation loader delivers, taken for predictions."""
    records = [data.records[i] for i in images] if images else data.records
    chosen = DataSet(tuple(records), data.class_names, data.category_ids)
    loader = EvaluationLoader(SourceReader(records, size), records, size, 4, len(data.class_names))
    evaluation = CocoEvaluation(chosen)
    for batch in loader:
        targets = batch.targets
        perfect = Detections(targets.boxes, targets.valid.float(), targets.labels, targets.labels)
        evaluation.update(perfect, batch.records, batch.letterbox)
    return evaluation.compute().map


def test_perfect_predictions_score_one_for_every_encoding(data: DataSet) -> None:
    assert score(data) == pytest.approx(1.0)
    for i, record in enumerate(data.records):
        assert score(data, [i]) == pytest.approx(1.0), record.image.name


@pytest.mark.parametrize("index", range(len(FILES)), ids=FILES)
def test_the_pixels_under_the_boxes_are_those_of_the_photograph(data: DataSet, index: int) -> None:
    record = data.records[index]
    pixels = ImageReader().decode(record.image)
    assert pixels.shape == (HEIGHT, WIDTH, 3) and pixels.dtype == np.uint8
    expected: Any = photograph(WIDTH, HEIGHT)
    if record.image.name in GREY:
        mode = "1" if record.image.name == "onebit.png" else "L"
        expected = np.asarray(Image.fromarray(expected).convert(mode).convert("RGB"))
    difference = np.abs(pixels.astype(int) - expected)
    assert difference.mean() < 4, "all of it"
    for x1, y1, x2, y2 in record.instances.boxes.astype(int).tolist():
        assert np.median(difference[y1:y2, x1:x2]) <= 12

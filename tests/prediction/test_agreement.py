"""Prediction and validation are one computation: the same rows, and the AP that ``lucid validate`` prints."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from lucid_core.data.layout import open_split
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.evaluation.found import Found
from lucid_core.module import Detector

from .conftest import CATEGORIES, Command

DECODERS = ("end_to_end", "nms")


class Labelled(NamedTuple):
    annotations: Path
    images: Path


@pytest.fixture
def labelled(tmp_path: Path, shapes: Path, loaded: Detector, photograph: NDArray[np.uint8]) -> Labelled:
    """Pictures of many kinds, labelled with some of what the detector finds, so that its AP is neither 0 nor 1.

    The ids of the images are texts (E09), and one file is a JPEG so large that it is decoded at a part of its size.
    """
    images = tmp_path / "pictures"
    images.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photograph).save(images / "turned.jpg", exif=exif, quality=95)
    Image.fromarray(photograph).resize((505, 335)).save(images / "large.jpg", quality=95)
    Image.fromarray(photograph).convert("L").save(images / "grey.png")
    for number in range(3):
        Image.open(shapes / "val" / f"00000{number}.png").save(images / f"00{number}.png")
    content: dict[str, Any] = {
        "images": [],
        "annotations": [],
        "categories": json.loads((shapes / "annotations" / "instances_val.json").read_text())["categories"],
    }
    for found in loaded.predict(sorted(images.iterdir()), score=0.0):
        assert found.path is not None
        image = f"00{found.index}"
        content["images"].append(
            {"id": image, "file_name": found.path.name, "width": found.width, "height": found.height}
        )
        large = [row for row in found.to_coco(image) if min(row["bbox"][2:]) >= 2]
        for row in large[1:12:3]:
            number = len(content["annotations"]) + 1
            content["annotations"].append({**row, "id": number, "iscrowd": 0, "area": row["bbox"][2] * row["bbox"][3]})
    annotations = tmp_path / "labels.json"
    annotations.write_text(json.dumps(content))
    return Labelled(annotations, images)


@pytest.mark.parametrize("by_command", [False, True])
def test_the_ap_is_that_of_validate(
    lucid: Command,
    checkpoint: Path,
    shapes: Path,
    loaded: Detector,
    labelled: Labelled,
    by_command: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    monkeypatch.setattr("lucid_core.module.rank_zero_info", told.append)
    finished = lucid(
        "validate", "--ckpt_path", checkpoint, "--data.root", shapes, "--data.val_images", labelled.images,
        "--data.val_annotations", labelled.annotations, "--data.image_size=64", "--data.batch_size=16",
        "--data.workers=0", "--data.val_workers=0", "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false",
        "--model.decoders=[end_to_end,nms]",
    )  # fmt: skip
    assert finished.status == 0, finished.err
    run = Path("runs/version_0")
    with (run / "metrics.csv").open() as file:
        measured = {name: float(value) for name, value in next(csv.DictReader(file)).items() if value}

    data = open_split(shapes, "val", images=labelled.images, annotations=labelled.annotations)
    place = {record.image.name: row for row, record in enumerate(data.records)}
    for decoder in DECODERS:
        rows = {index: np.empty((0, 6)) for index in place.values()}
        if by_command:
            options = ("--device=cpu", "--score=0", f"--decoder={decoder}", "--json")
            for found in json.loads(lucid("predict", checkpoint, labelled.images, *options).out):
                x, y, width, height = found["bbox"]
                row = [x, y, x + width, y + height, found["score"], CATEGORIES.index(found["category_id"])]
                index = place[Path(found["file_name"]).name]
                rows[index] = np.vstack([rows[index], row])
        else:
            for result in loaded.predict(sorted(labelled.images.iterdir()), score=0.0, decoder=decoder):
                assert result.path is not None
                rows[place[result.path.name]] = np.column_stack([result.boxes, result.scores, result.labels])

        # Row by row, what validate wrote down is what predict found, to the rounding of its float32 boxes.
        written = json.loads((run / f"detections-{decoder}.json").read_text())
        ids = [record.image_id for record in data.records]
        assert {entry["image_id"] for entry in written} <= set(ids)
        for index, image_id in enumerate(ids):
            own = [entry for entry in written if entry["image_id"] == image_id]
            boxes = np.array([[x, y, x + w, y + h] for x, y, w, h in (entry["bbox"] for entry in own)])
            assert len(own) == len(rows[index]) > 10
            np.testing.assert_allclose(rows[index][:, :4], boxes, atol=1e-3)
            np.testing.assert_allclose(rows[index][:, 4], [entry["score"] for entry in own], atol=1e-6)
            assert [CATEGORIES[int(label)] for label in rows[index][:, 5]] == [entry["category_id"] for entry in own]

        evaluation = CocoEvaluation(data)
        found = {i: Found(part[:, :4], part[:, 4], part[:, 5].astype(np.int64)) for i, part in rows.items()}
        evaluation.merge([found])
        scalars = evaluation.compute().scalars()
        prefix = "val/" if decoder == "end_to_end" else "val/nms/"
        for name in ("map", "map_50", "mar_100"):
            assert scalars[name] == pytest.approx(measured[f"{prefix}{name}"], abs=1e-4), name
        if decoder == "end_to_end":
            assert 0.1 < scalars["map"] < 0.95
            printed = re.findall(r"^all .*", "\n".join(told), re.MULTILINE)[0]
            assert f"{scalars['map']:.3f}" in printed

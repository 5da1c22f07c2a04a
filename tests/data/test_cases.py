"""Faults that people who train detectors have reported in public, each by its number in the list this project follows.

A case is a test here, or a test elsewhere that ``ELSEWHERE`` names, or cannot occur, for the reason in ``NOT_HERE``.
Group A is about data and labels, group E about evaluation. Group B is in ``tests/training``, group D in ``tests/cli``.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Trainer
from PIL import Image

from lucid_core.data.augment import Recipe
from lucid_core.data.check import Verdict, check
from lucid_core.data.coco import read_coco
from lucid_core.data.loader import EvaluationLoader
from lucid_core.data.module import DataModule
from lucid_core.data.problems import Kind
from lucid_core.data.records import match_classes
from lucid_core.data.source import SourceReader
from lucid_core.data.types import DataError
from lucid_core.data.yolo import read_yolo
from lucid_core.module import Detector

from .test_coco import Coco, coco  # noqa: F401 - a fixture
from .test_encodings import score
from .test_yolo import Yolo, data  # noqa: F401 - a fixture

ELSEWHERE = {
    "A06": "data/test_oriented.py::test_yolo_rows_in_dota_text_are_told_and_alone_refused",
    "A12": "data/test_datamodule.py::test_a_second_fit_in_one_process_sees_labels_and_pictures_as_they_are_now",
    "A13": "data/test_yolo.py::test_lists_share_one_folder_without_cross_talk",
    "A15": "data/test_images.py::test_16_bit_grey_is_scaled_not_cut",
    "A18": "data/test_datamodule.py::test_a_fit_goes_on_without_the_pictures_that_cannot_be_decoded",
    "A19": "data/test_yolo.py::test_names_in_any_script_case_and_normal_form_are_paired",
    "A22": "data/test_coco.py::test_bad_polygons_leave_the_box_usable",
    "A25": "data/test_tasks.py::test_images_are_not_mirrored_where_left_and_right_are_not_known",
    "A27": "data/test_augment.py::test_sources_are_never_written_to_nor_shared_with_samples",
    "A28": "data/test_colour.py::test_all_colours_equal_the_integer_definition",
    "E03": "evaluation/test_coco.py::test_two_objects_alike_are_two_objects",
    "E08": "training/test_keypoints.py::test_any_number_of_points_is_scored_by_the_spreads_that_are_stated",
    "E10": "data/test_coco.py::test_area_falls_back_to_the_box",
    "E11": "evaluation/test_coco.py::test_a_class_without_objects_is_left_out_of_the_mean",
    "E12": "packaging/test_distributions.py::test_every_dependency_has_a_floor_that_can_be_installed_alone",
}

NOT_HERE = {
    "E13": "nothing is exported",
    "E14": "nothing is exported",
}

CASES = [f"A{n:02}" for n in (2, 4, 6, 7, 9, 11, 12, 13, 15, 16, 18, 19, 21, 22, 24, 25, 27, 28, 29, 30)]
CASES += [f"E{n:02}" for n in (3, 6, 8, 9, 10, 11, 12, 13, 14)]

GOOD = "0 0.5 0.5 0.25 0.5\n"


def kinds(found: Any) -> list[tuple[Kind, str, str]]:
    return [(one.kind, one.file.name, one.where) for one in found.problems]


def test_every_case_is_somewhere() -> None:
    here = {name.split("_")[1].upper() for name in globals() if name.startswith(("test_a", "test_e"))} - {"EVERY"}
    assert sorted([*here, *ELSEWHERE, *NOT_HERE]) == CASES
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        tree = ast.parse((Path(__file__).parents[1] / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, place


def test_a02_rows_of_boxes_among_rows_of_polygons_are_boxes(data: Yolo) -> None:  # noqa: F811
    polygon = "1 0.25 0.25 0.75 0.25 0.5 0.75\n"
    for i in range(3):
        data.picture(f"train/{i}.png", polygon + (GOOD if i == 2 else ""))
    read = data.read()
    assert read.problems == () and [len(one.instances) for one in read.records] == [1, 1, 2]
    assert [[len(rings) for rings in one.instances.polygons] for one in read.records] == [[1], [1], [1, 0]]
    # Where masks are the task, the box is no object, and the others keep their masks.
    masks = read_yolo(data.root / "data.yaml", "train", task="segment")
    assert kinds(masks) == [(Kind.NO_MASK, "2.txt", "line 2")]
    assert [[len(rings) for rings in one.instances.polygons] for one in masks.records] == [[1], [1], [1]]


def test_a04_coordinates_out_of_range_are_refused_with_file_and_value(data: Yolo) -> None:  # noqa: F811
    for i, row in enumerate(("0 1.0005 0.5 0.2 0.2", "0 1.86 0.5 0.2 0.2", "0 nan 0.5 0.2 0.2", "0 320 240 50 40")):
        data.picture(f"train/{i}.png", row)
    data.picture("train/4.png", GOOD)
    read = data.read()
    assert [one.image.name for one in read.records] == ["0.png", "4.png"]
    rows = [one for one in kinds(read) if one[2] and one[0] is not Kind.CLIPPED]
    assert rows == [
        (Kind.OUT_OF_RANGE, "1.txt", "line 1"),
        (Kind.NOT_FINITE, "2.txt", "line 1"),
        (Kind.OUT_OF_RANGE, "3.txt", "line 1"),
    ]
    found = check(data.root, ["train"])
    assert found.verdict is Verdict.FAULTS and "leaves out 3 images" in found.text(1)


def test_a07_rows_with_commas_are_no_background(data: Yolo) -> None:  # noqa: F811
    data.picture("train/1.png", "0,0.5,0.5,0.2,0.2")
    read = data.read()
    assert [one.image.name for one in read.records] == ["0.png", "2.png"]
    assert kinds(read) == [(Kind.MALFORMED, "1.txt", "line 1"), (Kind.NO_USABLE_LABEL, "1.png", "")]


def test_a09_rows_with_class_names_are_told(data: Yolo) -> None:  # noqa: F811
    data.picture("train/1.png", GOOD + "cat 0.5 0.5 0.2 0.2")
    read = data.read()
    assert len(read) == 3 and kinds(read) == [(Kind.MALFORMED, "1.txt", "line 2")]


def test_a11_fewer_names_give_the_diagnosis_of_a_clean_copy(data: Yolo) -> None:  # noqa: F811
    data.picture("train/1.png", "2 0.5 0.5 0.2 0.2")
    data.config["names"] = ["cat", "dog", "cow"]
    assert data.read().problems == ()
    data.config["names"] = ["cat", "dog"]
    assert kinds(data.read())[0] == (Kind.UNKNOWN_CLASS, "1.txt", "line 1")


def test_a16_pictures_of_all_modes_make_one_batch(coco: Coco) -> None:  # noqa: F811
    coco.content["images"], coco.content["annotations"] = [], []
    red = Image.new("RGB", (64, 48), (255, 0, 0))
    modes = {
        "rgb.png": red,
        "rgba.png": red.convert("RGBA"),
        "palette.png": red.quantize(4),
        "la.png": red.convert("LA"),
        "cmyk.jpg": Image.new("CMYK", (64, 48), (0, 255, 255, 0)),
    }
    for i, (name, image) in enumerate(modes.items()):
        coco.image(i, name)
        image.save(coco.folder / name)
        coco.add(i)
    read = coco.read()
    (batch,) = EvaluationLoader(SourceReader(read.records, 64), read.records, 64, 5, 2)
    assert batch.images.shape == (5, 3, 64, 64) and batch.images.dtype == torch.uint8
    middle = batch.images[:, :, 32, 32].int()
    assert (middle[[0, 1, 2, 4]] - torch.tensor([255, 0, 0])).abs().max() <= 10
    assert middle[3].unique().numel() == 1


def test_a21_class_tables_are_matched_by_name_or_refused_with_both(coco: Coco) -> None:  # noqa: F811
    coco.content["categories"] = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    coco.content["annotations"][0]["category_id"] = 1
    train = coco.read()
    coco.content["categories"] = [{"id": 1, "name": "dog"}, {"id": 2, "name": "cat"}]
    coco.content["annotations"][0]["category_id"] = 2
    val = match_classes(train, coco.read())
    assert val.records[1].truth.labels.tolist() == train.records[1].truth.labels.tolist() == [0]
    assert val.category_ids == (2, 1) and score(val) == pytest.approx(1.0)
    coco.content["categories"][0]["name"] = "wolf"
    with pytest.raises(DataError, match=r"1: cat, 2: dog.*1: wolf, 2: cat"):
        match_classes(train, coco.read())


@pytest.mark.parametrize("mosaic", [0.0, 1.0])
def test_a24_batches_without_objects_train_whether_label_files_are_empty_or_absent(
    data: Yolo,  # noqa: F811
    tmp_path: Path,
    mosaic: float,
) -> None:
    for i in range(8):
        data.picture(f"train/{i}.png", "" if i < 4 else None)
    for i in range(4, 8):
        (data.root / f"labels/train/{i}.txt").unlink(missing_ok=True)
    data.picture("val/0.png", GOOD)
    read = data.read()
    assert read.problems == () and {one.instances.boxes.shape for one in read.records} == {(0, 4)}
    recipe = Recipe(mosaic=mosaic)
    module = DataModule(str(data.root), image_size=64, batch_size=4, workers=0, recipe=recipe, close_mosaic=0)
    model = Detector(["cat", "dog"], warmup_epochs=0)
    before = [one.detach().clone() for one in model.parameters()]
    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        num_sanity_val_steps=0,
        default_root_dir=tmp_path,
        log_every_n_steps=1,
        **options,
    )
    trainer.fit(model, module)
    logged = {name: float(value) for name, value in trainer.logged_metrics.items() if name.startswith("train/")}
    assert logged and np.isfinite(list(logged.values())).all()
    assert [value for name, value in logged.items() if "box" in name] and not any(
        value for name, value in logged.items() if "box" in name
    )
    after = list(model.parameters())
    assert all(one.isfinite().all() for one in after)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a29_a_strip_is_scaled_to_a_pixel_and_back(coco: Coco) -> None:  # noqa: F811
    coco.content["images"], coco.content["annotations"] = [], []
    coco.image(1, "strip.png", width=8192, height=16)
    Image.new("RGB", (8192, 16)).save(coco.folder / "strip.png")
    coco.add(1, (1000, 3, 400, 10))
    read = coco.read()
    loader = EvaluationLoader(SourceReader(read.records, 64), read.records, 64, 1, 2)
    (batch,) = loader
    assert batch.images.shape == (1, 3, 64, 64)
    ratio, *pad = batch.letterbox[0].tolist()
    back = (batch.targets.boxes[0, 0].double() - torch.tensor(pad * 2)) / ratio
    assert (back - torch.tensor([1000.0, 3, 1400, 13])).abs().max() < 1


def test_a30_classes_written_as_floats_are_read_if_whole(data: Yolo) -> None:  # noqa: F811
    data.picture("train/0.png", "1.0 0.5 0.5 0.2 0.2\n1.5 0.5 0.5 0.2 0.2")
    read = data.read()
    assert read.records[0].instances.labels.tolist() == [1]
    assert kinds(read) == [(Kind.UNKNOWN_CLASS, "0.txt", "line 2")]


def test_e06_ignored_objects_are_neither_taught_nor_missed(coco: Coco) -> None:  # noqa: F811
    coco.add(1, (0, 0, 9, 9))
    coco.add(1, (30, 20, 20, 20), ignore=1, iscrowd=0)
    read = coco.read()
    assert len(read.records[0].instances) == 1
    assert score(read) == pytest.approx(1.0)


def test_e09_ids_that_are_text_keep_their_objects(tmp_path: Path) -> None:
    rows: dict[str, Any] = {"images": [], "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    for i, key in enumerate(("0001", "1", "a", "007", "7")):
        Image.new("RGB", (64, 48)).save(tmp_path / f"{key}.png")
        rows["images"].append({"id": key, "file_name": f"{key}.png", "width": 64, "height": 48})
        rows["annotations"].append({"id": i, "image_id": key, "category_id": 1, "bbox": [i * 9, i, 8 + i, 9]})
    (tmp_path / "a.json").write_text(json.dumps(rows))
    read = read_coco(tmp_path, tmp_path / "a.json")
    assert read.problems == () and [len(one.instances) for one in read.records] == [1] * 5
    assert all(one.image.stem == one.image_id for one in read.records)
    assert score(read) == pytest.approx(1.0)

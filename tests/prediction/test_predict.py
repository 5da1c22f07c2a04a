"""Prediction from Python: what may be given, what comes back, and what it depends on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from lucid_core.data.types import DataError
from lucid_core.module import Detector
from lucid_core.prediction.results import ImageDetections

from .conftest import CATEGORIES

Pixels = NDArray[np.uint8]


def same(one: ImageDetections, other: ImageDetections) -> bool:
    """Equal but for the last bits: the vectors in which a CPU computes a batch end elsewhere in each picture."""
    if not len(one) == len(other) > 0 or not np.array_equal(one.labels, other.labels):
        return False
    alike = np.allclose(one.boxes, other.boxes, rtol=1e-6, atol=1e-3)
    return alike and np.allclose(one.scores, other.scores, rtol=1e-5, atol=0)


def test_results_are_typed_and_frozen(loaded: Detector, shapes: Path) -> None:
    path = shapes / "val" / "000000.png"
    (found,) = loaded.predict(path, score=0.0)
    assert isinstance(found, ImageDetections)
    assert (len(found), found.width, found.height, found.index, found.path) == (84, 64, 64, 0, path)
    assert (found.boxes.dtype, found.scores.dtype, found.labels.dtype) == (np.float32, np.float32, np.int64)
    assert found.boxes.shape == (84, 4) and found.scores.shape == found.labels.shape == (84,)
    assert (np.diff(found.scores) <= 0).all()
    assert found.boxes.min() >= 0 and found.boxes.max() <= 64 and (found.boxes[:, 2:] >= found.boxes[:, :2]).all()
    assert found.class_names == ("circle", "square", "triangle", "rectangle", "star")
    assert found.names == [found.class_names[label] for label in found.labels]
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.width = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        found.boxes[0] = 0


def test_files_pictures_and_pixels_give_the_same(loaded: Detector, tmp_path: Path, photograph: Pixels) -> None:
    Image.fromarray(photograph).save(path := tmp_path / "a.png")
    many: list[Any] = [path, str(path), Image.open(path), Image.fromarray(photograph), photograph]
    results = loaded.predict(many, score=0.0)
    assert [result.index for result in results] == [0, 1, 2, 3, 4]
    assert [result.path for result in results] == [path, path, None, None, None]
    assert all(same(results[0], result) for result in results)
    for one in many:
        (alone,) = loaded.predict(one, score=0.0)
        assert np.allclose(alone.boxes, results[0].boxes, atol=1e-2)


def test_a_stack_of_arrays_is_many_pictures(loaded: Detector, photograph: Pixels) -> None:
    stack = np.stack([photograph, photograph[::-1]])
    found = loaded.predict(stack, score=0.0)
    assert len(found) == 2
    assert same(found[1], loaded.predict([photograph, photograph[::-1]], score=0.0)[1])
    assert loaded.predict([], score=0.0) == []


def test_grey_and_transparent_arrays(loaded: Detector, photograph: Pixels) -> None:
    grey = photograph[..., 0]
    alpha = np.dstack([photograph, grey])
    found = loaded.predict([grey, grey[..., None], np.dstack([grey] * 3), alpha, photograph], score=0.0)
    assert same(found[0], found[1]) and same(found[0], found[2]) and same(found[3], found[4])


def test_a_picture_is_left_as_it_is(loaded: Detector, photograph: Pixels) -> None:
    """A27: what fits the network exactly is not shared with it."""
    exact = np.ascontiguousarray(np.resize(photograph, (64, 64, 3)))
    before = exact.copy()
    loaded.predict([exact, exact], score=0.0)
    assert np.array_equal(exact, before) and exact.flags.writeable


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_are_in_the_upright_picture(
    loaded: Detector, tmp_path: Path, photograph: Pixels, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(photograph).save(path := tmp_path / "turned.png", exif=exif)
    from PIL import ImageOps

    upright = ImageOps.exif_transpose(Image.open(path))
    found = loaded.predict([path, Image.open(path), np.asarray(upright), upright], score=0.0)
    assert (found[0].width, found[0].height) == upright.size
    assert all(same(found[0], other) for other in found)


def test_odd_pictures_are_those_they_look_like(loaded: Detector, tmp_path: Path, photograph: Pixels) -> None:
    """A15, A16: twins of one picture in other modes give the objects of their RGB twin."""
    image = Image.fromarray(photograph)
    grey = image.convert("L")
    deep = np.asarray(grey).astype(np.uint16) * 257
    twins = {
        "rgb.png": image,
        "rgba.png": image.convert("RGBA"),
        "palette.png": image.quantize(64),
        "cmyk.tif": image.convert("CMYK"),
        "grey.png": grey,
        "grey alpha.png": grey.convert("LA"),
        "deep.png": Image.fromarray(deep),
        "no suffix": grey,
    }
    for name, twin in twins.items():
        twin.save(tmp_path / name, format="PNG" if "." not in name else None)
    found = dict(zip(twins, loaded.predict([tmp_path / name for name in twins], score=0.0), strict=True))
    for name in ("rgba.png", "palette.png", "cmyk.tif"):
        assert same(found["rgb.png"], found[name]), name
    for name in ("grey alpha.png", "deep.png", "no suffix"):
        assert same(found["grey.png"], found[name]), name
    assert not same(found["rgb.png"], found["grey.png"])


def test_a_strip_keeps_a_side(loaded: Detector) -> None:
    """A29: the short side of an extreme picture does not vanish."""
    (found,) = loaded.predict(np.full((8, 8192, 3), 90, np.uint8), score=0.0)
    assert len(found) > 0 and found.boxes[:, 1::2].max() <= 8 and found.boxes[:, 0::2].max() <= 8192


@pytest.mark.parametrize(
    ("picture", "told"),
    [
        (np.zeros((4, 4, 3), np.float32), r"picture 1: is float32 \(4, 4, 3\); give uint8 RGB pixels"),
        (np.zeros((4, 4, 2), np.uint8), r"picture 1: is uint8 \(4, 4, 2\)"),
        (np.zeros((0, 4, 3), np.uint8), r"picture 1: is uint8 \(0, 4, 3\)"),
        (torch.zeros(3, 4, 4), "picture 1: is a Tensor; give a path"),
        (None, "picture 1: is a NoneType"),
        (Image.new("F", (4, 4)), "picture 1: cannot be decoded .floating-point grey"),
        ("nowhere.png", "nowhere.png: no such picture file"),
        (Path(__file__), "test_predict.py: is not a picture of a known format"),
    ],
)
def test_what_is_no_picture_is_named(loaded: Detector, photograph: Pixels, picture: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        loaded.predict([photograph, picture])


@pytest.mark.parametrize("images", [5, None, 0.5, b"a.png", {"a.png": 1}])
def test_what_is_neither_a_picture_nor_several_is_named(loaded: Detector, images: Any) -> None:
    told = f"images is of type {type(images).__name__}; give a path, a picture of Pillow's, .* or a list of these"
    with pytest.raises(TypeError, match=told):
        loaded.predict(images)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"score": 1.5}, r"score is 1.5; it must lie in \[0, 1\]"),
        ({"score": float("nan")}, "score is nan"),
        ({"limit": 0}, r"limit is 0; it must lie in \[1, 300\]"),
        ({"limit": 301}, "limit is 301"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"image_size": 100}, "image_size is 100; it must be a positive multiple of 32"),
        ({"image_size": 0}, "image_size is 0; it must be a positive multiple of 32"),
        ({"decoder": "soft"}, "decoder is soft; it must be one of end_to_end, nms"),
        ({"precision": "64"}, "precision is 64; it must be one of 32-true"),
    ],
)
def test_options_out_of_range_are_refused(loaded: Detector, photograph: Pixels, option: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        loaded.predict(photograph, **option)


def test_threshold_and_limit_take_the_best(loaded: Detector, photograph: Pixels) -> None:
    for decoder in ("end_to_end", "nms"):
        (everything,) = loaded.predict(photograph, score=0.0, decoder=decoder)
        middle = float(everything.scores[len(everything) // 2])
        for (fewer,), kept in (
            (loaded.predict(photograph, score=middle, decoder=decoder), everything.scores >= np.float32(middle)),
            (loaded.predict(photograph, score=0.0, limit=5, decoder=decoder), np.arange(len(everything)) < 5),
        ):
            assert 0 < kept.sum() < len(everything)
            assert np.array_equal(fewer.boxes, everything.boxes[kept])
            assert np.array_equal(fewer.scores, everything.scores[kept])
    assert len(loaded.predict(photograph, score=1.0)[0]) == 0


def test_the_two_decoders_read_two_branches(loaded: Detector, photograph: Pixels) -> None:
    plain, suppressed = (loaded.predict(photograph, score=0.0, decoder=d)[0] for d in ("end_to_end", "nms"))
    assert not same(plain, suppressed)
    assert same(plain, loaded.predict(photograph, score=0.0)[0])
    assert suppressed.scores.min() >= 0.001


def test_the_batch_size_changes_nothing(loaded: Detector, shapes: Path, photograph: Pixels) -> None:
    """Exactly equal on the CPU at one thread but for the rounding of convolutions: 1e-3 px and 1e-5 of score."""
    pictures = [*sorted((shapes / "val").iterdir()), photograph]
    reference = loaded.predict(pictures, score=0.0, batch_size=1)
    for size in (2, 4, 16):
        found = loaded.predict(pictures, score=0.0, batch_size=size)
        assert [(result.index, result.path) for result in found] == [(r.index, r.path) for r in reference]
        assert [result.index for result in found] == [0, 1, 2, 3, 4, 5]
        for one, other in zip(reference, found, strict=True):
            # Near ties may change places; the best box of each class is looked at.
            assert len(one) == len(other)
            assert np.allclose(one.scores, other.scores, atol=1e-5)
            for label in np.unique(one.labels):
                best, again = (result.boxes[result.labels == label][0] for result in (one, other))
                assert np.allclose(best, again, atol=1e-3)


def test_a_detector_that_trains_is_not_disturbed(checkpoint: Path, photograph: Pixels) -> None:
    detector = Detector.from_checkpoint(checkpoint, device="cpu")
    still = detector.predict(photograph, score=0.0)[0]
    detector.train()
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    assert same(still, detector.predict(photograph, score=0.0)[0])
    assert detector.training and all(module.training for module in detector.network.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in detector.state_dict().items())
    # Nothing that prediction made keeps gradients from being computed afterwards.
    losses = detector.network(torch.rand(1, 3, 64, 64)).one_to_one.logits.sum()
    losses.backward()


def test_other_sizes_and_precisions(loaded: Detector, photograph: Pixels) -> None:
    (usual,) = loaded.predict(photograph, score=0.0)
    (larger,) = loaded.predict(photograph, score=0.0, image_size=96)
    assert len(usual) == 84 and len(larger) == 189
    assert larger.boxes[:, 0::2].max() <= 101 and larger.boxes[:, 1::2].max() <= 67
    (coarse,) = loaded.predict(photograph, score=0.0, precision="bf16-mixed")
    assert np.allclose(coarse.scores, usual.scores, atol=0.02) and not np.array_equal(coarse.scores, usual.scores)


def test_results_can_be_drawn_and_written(loaded: Detector, shapes: Path, photograph: Pixels) -> None:
    path = shapes / "val" / "000001.png"
    (found,) = loaded.predict(path, score=0.0, limit=3)
    drawn = found.draw()
    assert drawn.shape == (64, 64, 3) and drawn.dtype == np.uint8
    assert np.array_equal(drawn, found.draw(Image.open(path)))
    assert (drawn != np.asarray(Image.open(path).convert("RGB"))).any()
    assert found.draw(scale=4).shape == (256, 256, 3)
    with pytest.raises(ValueError, match="is 101 x 67 pixels, but the objects were found in one of 64 x 64"):
        found.draw(photograph)
    with pytest.raises(ValueError, match="give draw"):
        loaded.predict(photograph)[0].draw()

    rows = found.to_coco("a")
    assert [row["score"] for row in rows] == found.scores.tolist()
    assert [row["category_id"] for row in rows] == [CATEGORIES[label] for label in found.labels]
    x1, y1, x2, y2 = found.boxes[0].tolist()
    assert rows[0] | {"bbox": None, "score": None} == {
        "image_id": "a", "category_id": rows[0]["category_id"], "bbox": None, "score": None
    }  # fmt: skip
    assert rows[0]["bbox"] == [x1, y1, x2 - x1, y2 - y1]

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from lucid_core.evaluation.masks import encode, masks_in, rle_of


@settings(max_examples=200, deadline=None)
@given(
    arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=7)),
    st.tuples(*[st.integers(0, 3)] * 4),
)
def test_a_window_is_encoded_as_the_whole_picture_is(window: NDArray[np.bool_], around: tuple[int, ...]) -> None:
    left, right, top, bottom = around
    whole = np.pad(window, ((top, bottom), (left, right)))
    if not whole.size:
        return
    expected = coco_mask.encode(np.asfortranarray(whole.astype(np.uint8)))
    found = encode(window, left, top, whole.shape[1], whole.shape[0])
    assert (found["size"], found["counts"]) == (list(whole.shape), expected["counts"])


def assembled(
    coefficients: NDArray[np.float32],
    prototypes: NDArray[np.float32],
    box: list[float],
    frame: tuple[float, float, float],
    width: int,
    height: int,
) -> NDArray[np.bool_]:
    """The definition, over the whole picture in float64."""
    field = np.tensordot(coefficients.astype(np.float64), prototypes.astype(np.float64), 1)
    mask = np.zeros((height, width), bool)
    for row in range(height):
        for column in range(width):
            if not (box[0] <= column + 0.5 < box[2] and box[1] <= row + 0.5 < box[3]):
                continue
            x = min(max(((column + 0.5) * frame[0] + frame[1]) / 4 - 0.5, 0), field.shape[1] - 1)
            y = min(max(((row + 0.5) * frame[0] + frame[2]) / 4 - 0.5, 0), field.shape[0] - 1)
            j, i = min(int(x), field.shape[1] - 2), min(int(y), field.shape[0] - 2)
            upper = field[i, j] + (x - j) * (field[i, j + 1] - field[i, j])
            lower = field[i + 1, j] + (x - j) * (field[i + 1, j + 1] - field[i + 1, j])
            mask[row, column] = upper + (y - i) * (lower - upper) > 0
    return mask


@pytest.mark.parametrize(
    ("width", "height", "frame"),
    [(50, 32, (1.28, 0.0, 11.0)), (20, 31, (2.0645, 11.0, 0.0)), (90, 90, (0.7, 0.0, 0.0))],
)
def test_masks_are_sampled_at_the_centres_of_the_pixels(
    width: int, height: int, frame: tuple[float, float, float]
) -> None:
    rng = np.random.default_rng(0)
    prototypes = rng.normal(size=(32, 16, 16)).astype(np.float32)
    coefficients = rng.uniform(-1, 1, (3, 32)).astype(np.float32)
    boxes = np.array([[0, 0, width, height], [3.5, 4.2, 11.5, 17.49], [7, 7, 7.4, 7.4]], np.float64)
    found = list(masks_in(coefficients, prototypes, boxes, frame, width, height))
    for rle, factors, box in zip(found, coefficients, boxes.tolist(), strict=True):
        expected = assembled(factors, prototypes, box, frame, width, height)
        assert (coco_mask.decode(rle) == expected).mean() > 0.999
    assert 0.3 < coco_mask.decode(found[0]).mean() < 0.7 and not coco_mask.decode(found[2]).any()


def test_boxes_without_area_have_an_empty_mask() -> None:
    factors, prototypes = np.ones((1, 32), np.float32), np.ones((32, 8, 8), np.float32)
    (found,) = masks_in(factors, prototypes, np.array([[5.0, 5, 5, 9]]), (1.0, 0.0, 0.0), 32, 20)
    assert not coco_mask.decode(found).any() and found["size"] == [20, 32]


def test_rings_of_an_object_are_joined() -> None:
    rings = tuple(np.array([[x, 2], [x + 4, 2], [x + 4, 8], [x, 8]], np.float32) for x in (1, 9))
    assert int(coco_mask.area(rle_of(rings, 20, 10))) == 48
    assert int(coco_mask.area(rle_of((), 20, 10))) == 0
    stated = rle_of(rings, 20, 10)
    assert rle_of(stated, 20, 10) is stated

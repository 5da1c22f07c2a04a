"""The exact colour jitter."""

from fractions import Fraction

import cv2
import numpy as np
import pytest

from lucid_core.data.colour import apply_colour, colour_matrix

GAINS = [(0.015, 0.7, 0.4), (-0.015, -0.7, -0.4), (0.5, 1.0, 1.0), (-0.5, -1.0, -1.0), (0.31, -0.2, 0.9), (0, 0, 0)]


def by_integers(pixels: np.ndarray, gains: tuple[float, float, float]) -> np.ndarray:
    """The definition again, with whole numbers only: sums in 1/4096, then rounding half to even."""
    matrix = np.array([[int(Fraction(float(c)) * 4096) for c in row] for row in colour_matrix(np.array(gains))])
    sums = pixels.reshape(-1, 3).astype(np.int64) @ matrix.T
    floor, rest = sums >> 12, sums & 4095
    rounded = floor + ((rest > 2048) | ((rest == 2048) & (floor & 1 == 1)))
    return np.clip(rounded, 0, 255).astype(np.uint8).reshape(pixels.shape)


def colours(step: int = 1) -> np.ndarray:
    axis = np.arange(0, 256, step, dtype=np.uint8)
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1)
    return np.ascontiguousarray(grid.reshape(len(axis), -1, 3))


@pytest.mark.parametrize("gains", GAINS[:2])
def test_all_colours_equal_the_integer_definition(gains: tuple[float, float, float]) -> None:
    image = colours()
    assert image.size == 3 * 2**24
    result = apply_colour(image, colour_matrix(np.array(gains)))
    for rows in range(0, 256, 32):
        part = slice(rows, rows + 32)
        np.testing.assert_array_equal(result[part], by_integers(image[part], gains))


@pytest.mark.parametrize("gains", GAINS)
@pytest.mark.parametrize("width", [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 37, 64, 255])
def test_bytes_do_not_depend_on_the_width(width: int, gains: tuple[float, float, float]) -> None:
    pixels = colours(5).reshape(-1, 3)[: 255 * 64]
    matrix = colour_matrix(np.array(gains))
    whole = by_integers(pixels, gains)
    rows = len(pixels) // width
    image = pixels[: rows * width].reshape(rows, width, 3)
    np.testing.assert_array_equal(apply_colour(image, matrix).reshape(-1, 3), whole[: rows * width])


def test_products_and_sums_are_exact_in_float32_in_any_order() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10_000, 3)).astype(np.float32)
    matrix = colour_matrix(np.array([-0.5, 1.0, 1.0]))
    for row in matrix:
        a, b, c = (pixels[:, channel] * row[channel] for channel in range(3))
        wide = pixels.astype(np.float64) @ row.astype(np.float64)
        for total in ((a + b) + c, a + (b + c), (a + c) + b):
            np.testing.assert_array_equal(total, wide)


def test_neutral_gains_are_an_identity_of_the_arithmetic() -> None:
    image = colours(3)
    np.testing.assert_array_equal(colour_matrix(np.zeros(3)), np.eye(3))
    np.testing.assert_array_equal(apply_colour(image, colour_matrix(np.zeros(3))), image)


@pytest.mark.parametrize("gains", GAINS)
def test_grey_stays_grey_and_follows_the_value_alone(gains: tuple[float, float, float]) -> None:
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[:, None, None], 3, 2)
    result = apply_colour(ramp, colour_matrix(np.array(gains)))
    np.testing.assert_array_equal(result, result[..., :1].repeat(3, 2))
    np.testing.assert_array_equal(result, apply_colour(ramp, colour_matrix(np.array([0, 0, gains[2]]))))


def test_a_positive_hue_turns_red_towards_green_and_saturation_off_is_grey() -> None:
    red = np.array([[[200, 0, 0]]], np.uint8)
    turned = apply_colour(red, colour_matrix(np.array([0.05, 0, 0])))[0, 0]
    assert turned[0] > turned[1] > turned[2]
    grey = apply_colour(red, colour_matrix(np.array([0, -1.0, 0])))[0, 0]
    np.testing.assert_array_equal(grey, [67, 67, 67])


@pytest.mark.parametrize("gains", [(0, 40.0, 0), (np.nan, 0, 0), (0, 0, np.inf)])
def test_gains_that_would_not_be_exact_are_refused(gains: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="gains"):
        colour_matrix(np.array(gains))


def test_the_round_trip_of_opencv_is_why_this_exists() -> None:
    image = colours(5)
    back = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2HSV), cv2.COLOR_HSV2RGB)
    assert (back != image).any(-1).mean() > 0.5

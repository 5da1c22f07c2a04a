"""Laying images on the canvas."""

import numpy as np
import pytest

from lucid_core.data.mosaic import FILL, Picture, draw_centre, draw_scale, mosaic, single, warp

from .synthetic import make_instances

S = 64


def flat(value: int, width: int = S, height: int = S, box: tuple[float, ...] | None = None) -> Picture:
    """One grey value; original pixels are twice as many as those at evaluation scale."""
    boxes = np.array([box or (0, 0, 2 * width, 2 * height)], np.float32)
    return Picture(np.full((height, width, 3), value, np.uint8), make_instances(boxes), 2 * width, 2 * height)


def marked(width: int, height: int, box: tuple[int, int, int, int]) -> Picture:
    """A white block on black whose label is the block, at twice the size."""
    pixels = np.zeros((height, width, 3), np.uint8)
    x1, y1, x2, y2 = box
    pixels[y1:y2, x1:x2] = 255
    return Picture(pixels, make_instances(2 * np.array([box])), 2 * width, 2 * height)


def bounds(image: np.ndarray, low: int = 128) -> list[int]:
    rows, columns = np.nonzero(image[..., 0] >= low)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def test_four_images_meet_with_the_right_corners() -> None:
    pictures = [
        marked(64, 48, (54, 38, 64, 48)),
        marked(64, 48, (0, 38, 10, 48)),
        marked(64, 48, (54, 0, 64, 10)),
        marked(64, 48, (0, 0, 10, 10)),
    ]
    image, instances = mosaic(pictures, S, 1.0, (40, 30))
    assert bounds(image, 200) == [30, 20, 50, 40]
    np.testing.assert_array_equal(
        instances.boxes, [[30, 20, 40, 30], [40, 20, 50, 30], [30, 30, 40, 40], [40, 30, 50, 40]]
    )


def test_an_image_at_evaluation_scale_keeps_its_bytes() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (48, 64, 3), np.uint8)
    pixels.setflags(write=False)
    picture = Picture(pixels, make_instances(np.zeros((0, 4))), 640, 480)
    image, _ = mosaic([picture] * 4, S, 1.0, (40, 30))
    np.testing.assert_array_equal(image[30:, 40:], pixels[:34, :24])
    np.testing.assert_array_equal(image[:30, :40], pixels[18:, 24:])
    image, _ = single(picture, S, 1.0, (0, 0))
    np.testing.assert_array_equal(image[8:56], pixels)
    assert (image[:8] == FILL).all()


@pytest.mark.parametrize("scale", [0.37, 0.5, 0.83, 1.0, 1.21, 1.9])
@pytest.mark.parametrize("centre", [(32, 32), (11, 50), (-20, 70), (64, 0), (80, 90)])
def test_labels_lie_on_their_pixels(scale: float, centre: tuple[int, int]) -> None:
    blocks = [marked(64, 41, (20, 9, 47, 33)), *(flat(0, 64, 41) for _ in range(3))]
    for turn in range(4):
        pictures = blocks[-turn:] + blocks[:-turn]
        image, instances = mosaic(pictures, S, scale, centre)
        # Of what is left out on purpose, less than a tenth is visible.
        if (image[..., 0] >= 200).sum() > 0.15 * scale**2 * 27 * 24:
            assert np.abs(instances.boxes - bounds(image)).max(1).min() <= 1.0


@pytest.mark.parametrize("scale", [0.61, 1.0, 1.7])
@pytest.mark.parametrize("shift", [(0.0, 0.0), (-13.0, 9.0), (20.0, 20.0)])
def test_one_image_is_cut_at_the_canvas_and_labelled_where_it_lies(scale: float, shift: tuple[float, float]) -> None:
    image, instances = single(marked(64, 41, (20, 9, 47, 33)), S, scale, shift)
    np.testing.assert_allclose(instances.boxes[0], bounds(image), atol=1.0)


def test_no_more_than_the_canvas_is_ever_made_of_an_image_of_any_shape() -> None:
    strip = flat(7, 640, 1, (0, 0, 1280, 2))
    image, instances = mosaic([strip] * 4, 640, 0.5, (320, 320))
    assert image.shape == (640, 640, 3)
    assert set(np.unique(image)) == {7, FILL}
    assert len(instances) == 0


def test_an_image_wholly_outside_brings_neither_pixels_nor_labels() -> None:
    image, instances = mosaic([flat(1), flat(2), flat(3), flat(4)], S, 1.0, (0, 0))
    assert set(np.unique(image)) == {4}
    assert len(instances) == 1
    image, instances = single(flat(1, 4, 4), S, 1.0, (500.0, 0))
    assert len(instances) == 0
    assert (image == FILL).all()


@pytest.mark.parametrize("degrees", [0.0, 25.0, -90.0])
def test_turned_labels_lie_on_turned_pixels(degrees: float) -> None:
    picture = marked(64, 64, (20, 24, 44, 36))
    image, instances = warp(*single(picture, S, 1.0, (0, 0)), degrees, (4.0, 0.0))
    assert image.dtype == np.uint8
    np.testing.assert_allclose(instances.boxes[0], bounds(image), atol=1.3)


@pytest.mark.parametrize("spread", [0.0, 0.5, 0.9])
def test_scales_stay_in_their_range_and_their_squares_are_uniform(spread: float) -> None:
    rng = np.random.default_rng(0)
    four = np.array([draw_scale(rng, spread, 4) for _ in range(20_000)]) / 1.1
    one = np.array([draw_scale(rng, spread, 1) for _ in range(20_000)])
    top = 1 + spread
    for values, power in ((four, 2), (one, 1)):
        assert values.min() >= 1 / top - 1e-9
        assert values.max() <= top + 1e-9
        middle = (top**-power + top**power) / 2
        assert np.mean(values**power) == pytest.approx(middle, rel=0.02)


def test_the_meeting_point_reaches_as_far_as_the_canvas_over_the_images() -> None:
    rng = np.random.default_rng(0)
    points = np.array([draw_centre(rng, 100, 1.0, 0.1) for _ in range(5_000)])
    assert points.min() == -10
    assert points.max() == 110
    np.testing.assert_allclose(points.mean(0), 50, atol=2)

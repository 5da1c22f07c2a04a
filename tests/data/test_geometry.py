"""Labels under affine maps, clipping and mirroring."""

import math

import numpy as np
import pytest

from lucid_core.data.geometry import affine, area, clip, concatenate, flip, select
from lucid_core.data.letterbox import letterbox, letterbox_sample, to_canvas, to_original
from lucid_core.data.types import Instances

from .synthetic import PaintedSource, make_instances, make_record, rectangle

CORNER = np.array([[0, 0], [10, 0], [0, 10]], np.float32)


def full() -> Instances:
    """Two objects with every kind of label."""
    boxes = np.array([[0, 0, 10, 10], [20, 30, 40, 40]], np.float32)
    return Instances(
        boxes,
        np.array([0, 1]),
        ((CORNER,), (rectangle(20, 30, 40, 40), rectangle(25, 32, 35, 38))),
        np.array([[5, 5, 10, 10, 0], [30, 35, 20, 10, 0]], np.float32),
        np.array([[[1, 2], [-50, 3]], [[21, 31], [39, 39]]], np.float32),
        np.array([[2, 1], [2, 0]]),
    )


def test_scale_and_offset_move_every_kind_of_label() -> None:
    moved = affine(full(), np.array([[2.0, 0, 5], [0, 3, -1]]))
    np.testing.assert_allclose(moved.boxes, [[5, -1, 25, 29], [45, 89, 85, 119]], atol=1e-4)
    np.testing.assert_array_equal(moved.polygons[0][0], [[5, -1], [25, -1], [5, 29]])
    np.testing.assert_allclose(moved.rboxes[1], [65, 104, 40, 30, 0], atol=1e-4)
    np.testing.assert_allclose(moved.rboxes[0], [15, 14, 30, 20, math.pi / 2], atol=1e-4)
    np.testing.assert_array_equal(moved.points[0], [[7, 5], [-95, 8]])
    np.testing.assert_array_equal(moved.visibility, full().visibility)


def test_a_turn_takes_the_envelope_of_the_polygon_rather_than_of_the_box() -> None:
    half = math.sqrt(0.5)
    turn = np.array([[half, -half, 0], [half, half, 0]])
    diamond = np.array([[5, 0], [10, 5], [5, 10], [0, 5]], np.float32)
    instances = Instances(np.array([[0, 0, 10, 10]] * 2, np.float32), np.zeros(2, np.int64), ((diamond,), ()))
    boxes = affine(instances, turn).boxes
    np.testing.assert_allclose(boxes[0, 2:] - boxes[0, :2], math.sqrt(50), rtol=1e-5)
    np.testing.assert_allclose(boxes[1, 2:] - boxes[1, :2], 20 * half, rtol=1e-5)


@pytest.mark.parametrize(
    ("box", "kept"),
    [
        ((0, 0, 2, 2), True),
        ((0, 0, 1.9, 9), False),
        ((-18, 0, 2, 10), True),
        ((-18.2, 0, 2, 10), False),
        ((-4, 0, 1.9, 10), False),
        ((200, 0, 220, 10), False),
        ((-5, -5, 105, 105), True),
    ],
)
def test_an_object_stays_while_enough_of_it_is_visible(box: tuple[float, ...], kept: bool) -> None:
    clipped = clip(make_instances(np.array([box]), outlined=False), (0, 0, 100, 100))
    assert len(clipped) == kept
    assert (clipped.boxes >= 0).all()
    assert (clipped.boxes <= 100).all()


def test_the_box_of_a_cut_object_closes_around_what_is_visible_of_its_polygon() -> None:
    triangle = np.array([[-10, 0], [10, 20], [-10, 20]], np.float32)
    instances = Instances(np.array([[-10, 0, 10, 20]], np.float32), np.zeros(1, np.int64), ((triangle,),))
    clipped = clip(instances, (0, 0, 100, 100))
    np.testing.assert_allclose(clipped.boxes, [[0, 10, 10, 20]], atol=1e-5)
    np.testing.assert_allclose(sorted(clipped.polygons[0][0].tolist()), [[0, 10], [0, 20], [10, 20]], atol=1e-5)


def test_an_object_whose_polygon_is_outside_goes_although_its_box_is_not() -> None:
    triangle = np.array([[-100, 0], [10, 0], [-100, 50]], np.float32)
    instances = Instances(np.array([[-100, 0, 10, 50]], np.float32), np.zeros(1, np.int64), ((triangle,),))
    assert len(clip(instances, (0, 30, 100, 100))) == 0


def test_a_cut_rotated_box_keeps_its_direction() -> None:
    rbox = np.array([[0, 50, 40, 10, math.pi / 4]], np.float32)  # half of it is inside
    corner = 25 / math.sqrt(2)
    instances = Instances(
        np.array([[-corner, 50 - corner, corner, 50 + corner]], np.float32), np.zeros(1, np.int64), ((),), rbox
    )
    clipped = clip(instances, (0, 0, 100, 100))
    assert clipped.rboxes[0, 4] == pytest.approx(math.pi / 4)
    assert clipped.rboxes[0, 3] == pytest.approx(10, abs=1e-4)
    assert 20 < clipped.rboxes[0, 2] < 30
    assert clipped.boxes[0, 0] == 0


@pytest.mark.parametrize(("x", "length"), [(8.0, 40), (7.9, 27.9)])
def test_a_rotated_box_of_which_seven_tenths_are_seen_stays_whole(x: float, length: float) -> None:
    rbox = np.array([[x, 50, 40, 10, 0]], np.float32)
    instances = Instances(np.array([[x - 20, 45, x + 20, 55]], np.float32), np.zeros(1, np.int64), ((),), rbox)
    clipped = clip(instances, (0, 0, 100, 100))
    assert clipped.rboxes[0, 2] == pytest.approx(length, abs=1e-4)
    np.testing.assert_allclose(clipped.boxes, [[0, 45, x + 20, 55]], atol=1e-4)


def test_key_points_are_never_clipped() -> None:
    clipped = clip(full(), (2, 2, 100, 100))
    np.testing.assert_array_equal(clipped.points, full().points)


def test_mirroring_twice_changes_nothing_and_once_swaps_pairs() -> None:
    once = flip(full(), 100, pairs=[(0, 1)])
    np.testing.assert_array_equal(once.boxes, [[90, 0, 100, 10], [60, 30, 80, 40]])
    np.testing.assert_array_equal(once.points[0], [[150, 3], [99, 2]])
    np.testing.assert_array_equal(once.visibility[0], [1, 2])
    assert once.rboxes[0, 0] == 95
    twice = flip(once, 100, pairs=[(0, 1)])
    for name in ("boxes", "points", "visibility", "rboxes"):
        np.testing.assert_allclose(getattr(twice, name), getattr(full(), name), atol=1e-5)
    np.testing.assert_array_equal(flip(full(), 100).visibility, full().visibility)


@pytest.mark.parametrize("theta", [-math.pi / 4 + 1e-3, -0.1, 0.0, 1.0, math.pi / 2, 2.3])
def test_angles_stay_in_range_and_keep_their_bits(theta: float) -> None:
    rboxes = np.array([[5, 5, 9, 4, theta]], np.float32)
    instances = Instances(np.array([[0, 0, 10, 10]], np.float32), np.zeros(1, np.int64), ((),), rboxes)
    mirrored = flip(instances, 10).rboxes
    assert -math.pi / 4 <= float(mirrored[0, 4]) < 3 * math.pi / 4
    np.testing.assert_allclose(flip(flip(instances, 10), 10).rboxes, rboxes, atol=1e-6)


def test_joining_keeps_rows_and_skips_parts_without_objects() -> None:
    empty = select(full(), np.zeros(0, np.intp))
    joined = concatenate([empty, full(), make_instances(np.zeros((0, 4))), full()])
    assert len(joined) == 4
    assert len(joined.polygons) == 4
    assert joined.points.shape == (4, 2, 2)
    assert len(concatenate([empty, empty])) == 0


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [
        (640, 480, (1, 0, 80)),
        (640, 427, (1, 0, 106)),
        (750, 1000, (0.64, 80, 0)),
        (16, 8192, (0.078125, 319, 0)),
    ],
)
def test_letterbox_vectors(width: int, height: int, expected: tuple[float, float, float]) -> None:
    box = letterbox(width, height, 640)
    assert box == expected
    corners = np.array([[0, 0, width, height], [1.5, 2.5, 7.25, height / 3]], np.float64)
    np.testing.assert_allclose(to_original(to_canvas(corners, box), box), corners, rtol=1e-12, atol=1e-12)


def test_letterbox_sample_pads_with_grey_and_leaves_the_source_alone() -> None:
    records = (
        make_record(0, 640, 427, make_instances(np.array([[0, 0, 640, 427]]))),
        make_record(1, 64, 64, make_instances(np.array([[0, 0, 64, 64]]))),
        make_record(2, 8192, 16, make_instances(np.array([[100, 3, 500, 13]]))),
    )
    source = PaintedSource(records)
    sample = letterbox_sample(source, records, 0, 64)
    np.testing.assert_array_equal(sample.image[10:53], source.source(0))
    assert (sample.image[:10] == 114).all()
    assert (sample.image[53:] == 114).all()
    np.testing.assert_allclose(sample.instances.boxes, [[0, 10, 64, 52.7]], atol=1e-4)
    square = letterbox_sample(source, records, 1, 64)
    square.image[:] = 0
    assert source.source(1).any()
    strip = letterbox_sample(source, records, 2, 64)
    assert strip.letterbox == (64 / 8192, 0, 31)
    back = to_original(strip.instances.boxes.astype(float), strip.letterbox)
    np.testing.assert_allclose(back[0, [0, 2]], [100, 500], atol=1)


@pytest.mark.parametrize("offset", [0.0, 1e5])
def test_the_area_of_a_polygon_does_not_depend_on_where_it_lies(offset: float) -> None:
    triangle = np.array([[0.25, 0.5], [8.5, 0.5], [3.0, 6.25]])
    for ring in (triangle, triangle[::-1], np.roll(triangle, 1, 0)):
        assert area(ring + offset) == pytest.approx(8.25 * 5.75 / 2, rel=1e-9)
    assert area(triangle[:2]) == 0

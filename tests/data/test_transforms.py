"""Every kind of label under transforms and their inverses."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lucid_core.data.geometry import affine, clip, corners, flip
from lucid_core.data.masks import rasterise
from lucid_core.data.mosaic import warp
from lucid_core.data.types import Instances

SIZE = 128
PAIRS = ((0, 2),)


@st.composite
def instances(draw: st.DrawFn) -> Instances:
    """One to three objects with a polygon, an oriented box and three key points each, within the canvas."""
    count = draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    centres, sides = rng.uniform(40, 88, (count, 2)), np.sort(rng.uniform(8, 36, (count, 2)), 1)[:, ::-1]
    upper = np.where(sides[:, 0] == sides[:, 1], math.pi / 4, 3 * math.pi / 4)
    rboxes = np.column_stack([centres, sides, rng.uniform(-math.pi / 4 + 1e-3, upper - 1e-3)]).astype(np.float32)
    quads = corners(rboxes)
    boxes = np.concatenate([quads.min(1), quads.max(1)], 1)
    hole = [(quad - quad.mean(0)) / 2 + quad.mean(0) for quad in quads]
    rings = tuple((quad, inner) for quad, inner in zip(quads, hole, strict=True))
    points = rng.uniform(0, SIZE, (count, 3, 2)).astype(np.float32)
    return Instances(boxes, np.arange(count), rings, rboxes, points, rng.integers(0, 3, (count, 3)))


def similarity(angle: float, scale: float, shift: tuple[float, float]) -> NDArray[np.float64]:
    cos, sin = scale * math.cos(angle), scale * math.sin(angle)
    return np.array([[cos, -sin, shift[0]], [sin, cos, shift[1]]])


def inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = np.linalg.inv(matrix[:, :2])
    return np.column_stack([linear, -linear @ matrix[:, 2]])


def assert_alike(one: Instances, other: Instances, within: float) -> None:
    np.testing.assert_allclose(one.boxes, other.boxes, atol=within)
    np.testing.assert_array_equal(one.labels, other.labels)
    for ours, theirs in zip(one.polygons, other.polygons, strict=True):
        for ring, twin in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(ring, twin, atol=within)
    assert one.rboxes is not None and other.rboxes is not None
    # Of boxes that are nearly square, rounding may take either side for the long one: their corners are compared.
    for mine, yours in zip(corners(one.rboxes), corners(other.rboxes), strict=True):
        assert min(np.abs(np.roll(mine, turn, 0) - yours).max() for turn in range(4)) <= within
    assert one.points is not None and other.points is not None
    np.testing.assert_allclose(one.points, other.points, atol=within)
    np.testing.assert_array_equal(one.visibility, other.visibility)


@settings(max_examples=80, deadline=None)
@given(
    instances(),
    st.floats(-math.pi, math.pi),
    st.floats(0.3, 3),
    st.tuples(st.floats(-200, 200), st.floats(-200, 200)),
)
def test_a_map_and_its_inverse_give_back_every_kind_of_label(
    labels: Instances, angle: float, scale: float, shift: tuple[float, float]
) -> None:
    matrix = similarity(angle, scale, shift)
    moved = affine(labels, matrix)
    assert_alike(affine(moved, inverse(matrix)), labels, within=2e-2)
    assert moved.rboxes is not None
    np.testing.assert_allclose(moved.rboxes[:, 2:4], labels.rboxes[:, 2:4] * scale, rtol=1e-3)  # type: ignore[index]
    assert ((moved.rboxes[:, 4] >= -math.pi / 4) & (moved.rboxes[:, 4] < 3 * math.pi / 4)).all()
    # The oriented box and the outer ring were one shape, and still are.
    for quad, rings in zip(corners(moved.rboxes), moved.polygons, strict=True):
        assert min(np.abs(np.roll(quad, turn, 0) - rings[0]).max() for turn in range(4)) <= 2e-2


@settings(max_examples=80, deadline=None)
@given(instances())
def test_mirroring_twice_is_the_identity_and_once_swaps_pairs(labels: Instances) -> None:
    once = flip(labels, SIZE, PAIRS)
    assert_alike(flip(once, SIZE, PAIRS), labels, within=1e-3)
    assert once.points is not None and labels.points is not None and once.visibility is not None
    np.testing.assert_allclose(once.points[:, 0, 0], SIZE - labels.points[:, 2, 0], atol=1e-3)
    np.testing.assert_allclose(once.points[:, 1, 0], SIZE - labels.points[:, 1, 0], atol=1e-3)
    np.testing.assert_array_equal(once.visibility, labels.visibility[:, [2, 1, 0]])  # type: ignore[index]
    for quad, rings in zip(corners(once.rboxes), once.polygons, strict=True):  # type: ignore[type-var]
        mirrored = rings[0][::-1]
        assert min(np.abs(np.roll(quad, turn, 0) - mirrored).max() for turn in range(4)) <= 1e-3


def thick_border(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Cells with a neighbour, also a diagonal one, of the other kind."""
    framed = np.pad(mask, 1, mode="edge")
    near = [framed[dy : dy + len(mask), dx : dx + len(mask)] for dy in range(3) for dx in range(3)]
    return np.any(near, 0) & ~np.all(near, 0)


@settings(max_examples=40, deadline=None)
@given(instances(), st.floats(-40, 40), st.tuples(st.floats(-10, 10), st.floats(-10, 10)))
def test_a_mask_that_is_warped_is_the_mask_of_the_warped_polygon_to_one_cell(
    labels: Instances, degrees: float, shear: tuple[float, float]
) -> None:
    for row in range(len(labels)):
        one = Instances(labels.boxes[row : row + 1], labels.labels[row : row + 1], labels.polygons[row : row + 1])
        painted = np.repeat(rasterise(one.polygons, SIZE, stride=1)[0][..., None], 3, 2).astype(np.uint8) * 255
        pixels, moved = warp(painted, one, degrees, shear)
        if not len(moved):
            continue
        # The warped picture sampled at the centre of each cell of four pixels: the mean of the four about it.
        about = np.mean([pixels[dy::4, dx::4, 0] for dy in (1, 2) for dx in (1, 2)], 0) >= 127.5
        mask = rasterise(moved.polygons, SIZE)[0]
        # Outside the canvas pixels are grey; the object's own box says where to look.
        x1, y1, x2, y2 = moved.boxes[0] / 4
        part = slice(max(0, math.floor(y1)), math.ceil(y2)), slice(max(0, math.floor(x1)), math.ceil(x2))
        grey = pixels[1::4, 1::4, 0] == 114
        differ = (mask != about) & ~thick_border(mask) & ~thick_border(about) & ~grey
        assert not differ[part].any()


@settings(max_examples=40, deadline=None)
@given(instances(), st.floats(0, 60), st.floats(0, 60))
def test_clipping_never_makes_an_object_larger(labels: Instances, left: float, top: float) -> None:
    window = (left, top, left + 64, top + 64)
    clipped = clip(labels, window)
    assert (clipped.boxes >= np.float32(window[:2] * 2) - 1e-3).all()
    assert (clipped.boxes <= np.float32(window[2:] * 2) + 1e-3).all()
    shifted = affine(clipped, np.array([[1.0, 0, -left], [0, 1, -top]]))
    whole = affine(labels, np.array([[1.0, 0, -left], [0, 1, -top]]))
    kept = [int(label) for label in clipped.labels]
    # The mask of what is left is the part of the whole mask that the window shows.
    np.testing.assert_array_equal(rasterise(shifted.polygons, 64), rasterise([whole.polygons[row] for row in kept], 64))

"""Masks on the grid of the prototypes, and masks in run lengths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from pycocotools import mask as coco_mask

from lucid_core.data.masks import rasterise
from lucid_core.data.problems import Fault, Kind
from lucid_core.data.rle import outline, read_rle

MASKS = arrays.arrays(np.bool_, st.tuples(st.integers(1, 12), st.integers(1, 12)))
RINGS = st.lists(
    st.lists(st.tuples(st.floats(-20, 80, width=32), st.floats(-20, 80, width=32)), min_size=3, max_size=8),
    min_size=0,
    max_size=3,
).map(lambda rings: tuple(np.array(ring, np.float32) for ring in rings))


def union(rings: tuple[NDArray[np.float32], ...], size: int, stride: int) -> NDArray[np.bool_]:
    """The textbook definition, one centre and one edge at a time."""
    mask = np.zeros((size // stride,) * 2, np.bool_)
    for row, column in np.ndindex(mask.shape):
        x, y = (column + 0.5) * stride, (row + 0.5) * stride
        for ring in rings:
            odd = False
            for (x1, y1), (x2, y2) in zip(ring.tolist(), np.roll(ring, -1, 0).tolist(), strict=True):
                if (y1 <= y) != (y2 <= y) and x1 + (y - y1) / (y2 - y1) * (x2 - x1) <= x:
                    odd = not odd
            mask[row, column] |= odd
    return mask


@settings(max_examples=60, deadline=None)
@given(st.lists(RINGS, min_size=1, max_size=3))
def test_a_cell_is_marked_where_its_centre_is_inside(polygons: list[tuple[NDArray[np.float32], ...]]) -> None:
    masks = rasterise(polygons, 64)
    assert masks.shape == (len(polygons), 16, 16) and masks.dtype == np.bool_
    for mask, rings in zip(masks, polygons, strict=True):
        wanted = union(rings, 64, 4)
        # Rounding may tell a centre on an edge to either side; nothing else may differ.
        assert (mask != wanted).sum() <= 2


def test_borders_belong_to_the_right_and_below_and_parts_that_overlap_are_no_hole() -> None:
    outer = np.array([[2, 2], [10, 2], [10, 14], [2, 14]], np.float32)
    other = np.array([[6, 6], [14, 6], [14, 10], [6, 10]], np.float32)
    mask = rasterise([(outer, other), ()], 16)
    # Centres are at 2, 6, 10 and 14: the parts hold those at 2 or 6, and not those at 14.
    assert mask[0].tolist() == [
        [True, True, False, False],
        [True, True, True, False],
        [True, True, False, False],
        [False, False, False, False],
    ]
    assert not mask[1].any()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 64)), min_size=4, max_size=4, unique=True))
def test_rings_that_share_an_edge_leave_no_gap_and_share_no_cell(quad: list[tuple[int, int]]) -> None:
    one, two, three, four = (np.array(corner, np.float32) for corner in quad)
    left, right, whole = (np.stack(ring) for ring in ([one, two, three], [three, four, one], [one, two, three, four]))
    halves = rasterise([(left,), (right,)], 64, stride=1)
    # Where the diagonal leaves the quadrilateral, the halves overlap, and it has neither there.
    np.testing.assert_array_equal(halves[0] ^ halves[1], rasterise([(whole,)], 64, stride=1)[0])


def test_pasted_objects_take_their_cells_from_all_before_them() -> None:
    first, second, third = (np.array([[x, 0], [x + 8, 0], [x + 8, 4], [x, 4]], np.float32) for x in (0, 4, 8))
    masks = rasterise([(first,), (second,), (third,)], 16, pasted=[2])
    assert masks[:, 0].tolist() == [[True, True, False, False], [False, True, False, False], [False, False, True, True]]
    masks = rasterise([(first,), (second,), (third,)], 16, pasted=range(1, 3))
    assert masks[:, 0].tolist() == [[True] + [False] * 3, [False, True, False, False], [False, False, True, True]]


def test_polygons_may_lead_out_of_the_canvas_or_lie_outside() -> None:
    around = np.array([[-50, -50], [150, -50], [150, 150], [-50, 150]], np.float32)
    assert rasterise([(around,)], 64).all()
    assert not rasterise([(around + 500,), (around - 500,)], 64).any()
    assert rasterise([], 64).shape == (0, 16, 16)


@settings(max_examples=100, deadline=None)
@given(MASKS)
def test_an_outline_gives_back_its_mask(mask: NDArray[np.bool_]) -> None:
    rings = outline(mask)
    back = rasterise([rings], 12, stride=1)[0]
    np.testing.assert_array_equal(back[: mask.shape[0], : mask.shape[1]], mask)
    assert back.sum() == mask.sum()
    assert bool(rings) == bool(mask.any())


@settings(max_examples=50, deadline=None)
@given(MASKS)
def test_run_lengths_are_read_as_pycocotools_reads_them(mask: NDArray[np.bool_]) -> None:
    height, width = mask.shape
    packed = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    flat = mask.T.ravel()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flat])))
    runs = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    for counts in (packed["counts"], packed["counts"].decode(), runs):
        again, decoded = read_rle({"size": [height, width], "counts": counts}, width, height)
        np.testing.assert_array_equal(decoded, mask)
        assert coco_mask.decode(again).astype(bool).tolist() == mask.tolist()


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"size": [10, 8], "counts": [0, 80]}, "size [10, 8], not height and width [8, 10]"),
        ({"counts": [0, 80]}, "no size, not height"),
        ({"size": [8, 10]}, "no counts, neither a list of whole numbers"),
        ({"size": [8, 10], "counts": [0, 79]}, "run lengths that sum to 79, not to the 80 of 8 x 10 pixels"),
        ({"size": [8, 10], "counts": [90, -10]}, "run length -10, which is negative"),
        ({"size": [8, 10], "counts": [0, 80.0]}, "counts [0, 80.0], neither a list of whole numbers of"),
        ({"size": [8, 10], "counts": "`"}, "sum to 0, not to the 80"),
        ({"size": [8, 10], "counts": "\x00"}, "counts '\\x00', neither"),
        ({"size": [8, 10], "counts": "oooooooooooo"}, "counts 'oooooooooooo', neither"),
        ({"size": [8, 10], "counts": "é"}, "counts 'é', neither"),
        ({"size": "8x10", "counts": [0, 80]}, "size '8x10', not height"),
    ],
)
def test_what_is_no_mask_of_the_picture_is_a_fault(stated: dict[str, object], said: str) -> None:
    with pytest.raises(Fault) as fault:
        read_rle(stated, 10, 8)
    assert fault.value.kind is Kind.NO_MASK and said in str(fault.value)

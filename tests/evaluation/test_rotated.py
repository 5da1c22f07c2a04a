from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lucid_core.evaluation.rotated import areas, corners, envelope, overlaps, shared_areas

Rbox = tuple[float, float, float, float, float]


def clipped_area(quad: NDArray[np.float64], window: NDArray[np.float64]) -> float:
    """Sutherland and Hodgman's clipping of one convex quadrilateral by another, vertex by vertex."""
    ring = [tuple(corner) for corner in quad]
    for start, end in zip(window, np.roll(window, -1, 0), strict=True):
        sides = [
            (end[0] - start[0]) * (y - start[1]) - (end[1] - start[1]) * (x - start[0]) for x, y in ring
        ]  # above 0 inside
        kept: list[tuple[float, float]] = []
        for n, (x, y) in enumerate(ring):
            (next_x, next_y), here, there = ring[(n + 1) % len(ring)], sides[n], sides[(n + 1) % len(ring)]
            if here >= 0:
                kept.append((x, y))
            if (here >= 0) != (there >= 0):
                share = here / (here - there)
                kept.append((x + share * (next_x - x), y + share * (next_y - y)))
        ring = kept
        if not ring:
            return 0.0
    x, y = np.array(ring).T
    return abs(float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())) / 2


def rbox(cx: float, cy: float, w: float, h: float, angle: float) -> torch.Tensor:
    return torch.tensor([cx, cy, w, h, angle], dtype=torch.float64)


rboxes = st.tuples(
    st.floats(-30, 30), st.floats(-30, 30), st.floats(0.1, 60), st.floats(0.1, 60), st.floats(-math.pi, math.pi)
)


@settings(max_examples=300, deadline=None)
@given(rboxes, rboxes)
def test_the_shared_area_is_that_of_the_clipped_polygon(one: Rbox, two: Rbox) -> None:
    a, b = rbox(*one), rbox(*two)
    expected = clipped_area(corners(a).numpy(), corners(b).numpy())
    assert float(shared_areas(corners(a), b)) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert float(shared_areas(corners(b), a)) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(rboxes, st.sampled_from([0.0, 1e-16, 1e-12, 1e-7]), st.booleans(), st.integers(0, 3))
def test_a_box_and_itself_overlap_fully_however_it_is_written(
    one: Rbox, moved: float, reverse: bool, start: int
) -> None:
    """Edges that lie on each other, or nearly so, are where clipping goes wrong."""
    box = rbox(*one)
    quad = corners(box * (1 + moved)).roll(start, 0)
    assert float(overlaps(quad.flip(0) if reverse else quad, box)) == pytest.approx(
        1, abs=1e-4 if moved > 1e-8 else 1e-7
    )


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [
        ((0, 0, 4, 4, 0), (2, 0, 4, 4, 0), 8 / 24),
        ((0, 0, 4, 4, 0), (4, 0, 4, 4, 0), 0.0),  # touching
        ((0, 0, 4, 4, 0), (0, 0, 2, 2, 0.3), 4 / 16),  # inside
        ((0, 0, 2, 2, 0), (0, 0, 2, 2, math.pi / 4), 8 * (math.sqrt(2) - 1) / (8 - 8 * (math.sqrt(2) - 1))),
        ((0, 0, 10, 2, 0), (0, 0, 10, 2, math.pi / 2), 4 / 36),
        ((3, 3, 2, 9, 0.1), (3, 3, 9, 2, 0.1 - math.pi / 2), 1.0),
    ],
)
def test_known_overlaps(one: Rbox, two: Rbox, expected: float) -> None:
    assert float(overlaps(corners(rbox(*one)), rbox(*two))) == pytest.approx(expected, abs=1e-12)


def test_float32_is_as_good_far_from_the_origin_as_near_it() -> None:
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.rand(500, 5, generator=generator) * torch.tensor([8, 8, 20, 9, 3]) for _ in range(2))
    one, two = ((box * 64).round() / 64 for box in (one, two))  # so that moving them is exact
    offset = torch.tensor([8192.0, 8192, 0, 0, 0])
    near, exact = overlaps(corners(one), two), overlaps(corners(one.double()), two.double())
    assert (near.double() - exact).abs().max() < 2e-6
    # Corners that far are themselves rounded to a thousandth of a pixel; what comes after adds nothing.
    quads = corners(one.double() + offset).float()
    assert (
        overlaps(quads, two + offset).double() - overlaps(quads.double(), (two + offset).double())
    ).abs().max() < 2e-6


def test_a_quadrilateral_with_a_corner_pushed_in_counts_as_it_is() -> None:
    arrow = torch.tensor([[0.0, 0], [4, 2], [0, 4], [2, 2]], dtype=torch.float64)
    assert float(areas(arrow)) == 4
    assert float(shared_areas(arrow, rbox(2, 2, 4, 4, 0))) == pytest.approx(4)
    assert float(shared_areas(arrow, rbox(1, 2, 2, 4, 0))) == pytest.approx(2)


@pytest.mark.parametrize("bad", [(0, 0, 0, 3, 0), (0, 0, -2, 3, 0), (math.nan, 0, 2, 3, 0), (0, 0, math.inf, 3, 0)])
def test_boxes_that_are_none_overlap_nothing(bad: Rbox) -> None:
    good = rbox(0, 0, 2, 3, 0)
    assert float(overlaps(corners(good), rbox(*bad))) == 0
    if bad[2] >= 0:  # corners hide that a side is under 0
        assert float(overlaps(corners(rbox(*bad)), good)) == 0


def test_corners_go_along_the_long_side_first() -> None:
    quad = corners(rbox(0, 0, 4, 2, math.pi / 2))
    assert torch.allclose(quad, torch.tensor([[1.0, -2], [1, 2], [-1, 2], [-1, -2]], dtype=torch.float64))
    assert envelope(quad).tolist() == pytest.approx([-1, -2, 1, 2])

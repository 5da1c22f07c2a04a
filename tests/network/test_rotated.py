"""The one form of an oriented box."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lucid_core.network.rotated import canonical, decode_rotated

SIDES = st.floats(0.25, 512, width=32)
ANGLES = st.floats(-50, 50, width=32)
DTYPES = st.sampled_from([torch.float32, torch.float64])


def corners(box: Tensor) -> Tensor:
    """The four corners, sorted, in float64."""
    x, y, w, h, angle = box.double().unbind()
    u, v = torch.stack((angle.cos(), angle.sin())), torch.stack((-angle.sin(), angle.cos()))
    found = [torch.stack((x, y)) + a * w / 2 * u + b * h / 2 * v for a in (-1, 1) for b in (-1, 1)]
    return torch.stack(sorted(found, key=lambda p: (round(float(p[0]), 2), float(p[1]))))


@given(SIDES, SIDES, ANGLES, DTYPES)
@settings(max_examples=300, deadline=None)
def test_it_is_the_same_box_in_its_range_and_comes_back_bit_for_bit(
    w: float, h: float, angle: float, dtype: torch.dtype
) -> None:
    box = torch.tensor([3.0, -2.0, w, h, angle], dtype=dtype)
    found = canonical(box)
    assert torch.equal(canonical(found), found)
    assert found[2] >= found[3]
    low, high = torch.tensor([-math.pi / 4, math.pi / 4 if w == h else 3 * math.pi / 4], dtype=dtype)
    assert low <= found[4] < high
    there = torch.cdist(corners(found), corners(box)).amin(1)
    assert there.max() < 1e-4 * max(w, h)


@given(st.integers(-7, 7), st.integers(-3, 3), st.booleans(), DTYPES)
@settings(max_examples=300, deadline=None)
def test_angles_about_the_ends_of_the_range_stay_below_the_upper_one(
    quarters: int, ulps: int, square: bool, dtype: torch.dtype
) -> None:
    kind = np.float32 if dtype == torch.float32 else np.float64
    angle = kind(quarters * math.pi / 4)
    for _ in range(abs(ulps)):
        angle = np.nextafter(angle, kind(math.copysign(9, ulps)))
    sides = (4.0, 4.0) if square else (9.0, 4.0)
    found = canonical(torch.tensor([0.0, 0.0, *sides, angle], dtype=dtype))
    low, high = torch.tensor([-math.pi / 4, math.pi / 4 if square else 3 * math.pi / 4], dtype=dtype)
    assert low <= found[4] < high
    assert torch.equal(canonical(found), found)
    turns = (float(found[4]) - float(angle)) / (math.pi / 2 if square else math.pi)
    assert abs(turns - round(turns)) < 1e-6


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((4.0, 2.0, 0.3), (4, 2, 0.3)),
        ((2.0, 4.0, 0.3), (4, 2, 0.3 + math.pi / 2)),
        ((2.0, 4.0, 1.0), (4, 2, 1.0 - math.pi / 2)),
        ((4.0, 2.0, -1.0), (4, 2, math.pi - 1)),
        ((4.0, 4.0, 1.0), (4, 4, 1.0 - math.pi / 2)),
        ((4.0, 2.0, -math.pi / 4), (4, 2, -math.pi / 4)),
        ((4.0, 2.0, 3 * math.pi / 4), (4, 2, -math.pi / 4)),
    ],
)
def test_values(given: tuple[float, ...], expected: tuple[float, ...]) -> None:
    found = canonical(torch.tensor([1.0, 2.0, *given], dtype=torch.float64)).tolist()
    assert found == pytest.approx([1, 2, *expected])


def test_an_upright_prediction_stays_as_it_is_and_an_inverted_one_has_negative_sides() -> None:
    boxes = torch.tensor([[10.0, 20, 30, 24], [30.0, 24, 10, 20]])
    found = decode_rotated(boxes, torch.tensor([[0.0], [0.25]]))
    assert found[0].tolist() == [20, 22, 20, 4, 0]
    assert found[1, :4].tolist() == [20, 22, -4, -20]


def test_a_prediction_turns_about_its_own_centre() -> None:
    found = decode_rotated(torch.tensor([[10.0, 20, 14, 40]]), torch.tensor([[0.5]], dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    assert found[0].tolist() == pytest.approx([12, 30, 20, 4, 0.5 + math.pi / 2])


def test_gradients_pass_through_swaps_and_turns() -> None:
    boxes = torch.tensor([[1.0, 2, 3, 8, 5], [1.0, 2, 8, 3, -4]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(canonical, (boxes,))
    (gradient,) = torch.autograd.grad(canonical(boxes)[..., 4].sum(), boxes)
    assert gradient[:, 4].tolist() == [1, 1]

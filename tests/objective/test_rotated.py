"""Arithmetic of oriented boxes against values and laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lucid_core.network.rotated import canonical
from lucid_core.objective.assign import candidates
from lucid_core.objective.rotated import bhattacharyya, hellinger, rotated_candidates
from lucid_core.types import Anchors, Targets

COORDINATE = st.floats(-500, 500)
SIDE = st.floats(0.5, 500)
ANGLE = st.floats(-4, 4)
BOX = st.tuples(COORDINATE, COORDINATE, SIDE, SIDE, ANGLE)


def box(*numbers: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(numbers, dtype=dtype)


def literal(a: Tensor, b: Tensor) -> float:
    """The Bhattacharyya distance as textbooks have it, by matrices."""
    means, covariances = [], []
    for x, y, w, h, angle in (a.tolist(), b.tolist()):
        turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]).double()
        covariances.append(turn @ torch.diag(torch.tensor([w * w / 12, h * h / 12]).double()) @ turn.T)
        means.append(torch.tensor([x, y]).double())
    middle = (covariances[0] + covariances[1]) / 2
    apart = means[0] - means[1]
    first = apart @ torch.linalg.inv(middle) @ apart / 8
    return float(
        first + torch.log(torch.det(middle) / (torch.det(covariances[0]) * torch.det(covariances[1])).sqrt()) / 2
    )


def test_published_pair() -> None:
    a, b = box(3, 4, 9, 2, 0.4), box(5, 1, 7, 3, -0.2)
    assert bhattacharyya(a, b).item() == pytest.approx(1.84947, abs=1e-5)
    assert hellinger(a, b).item() == pytest.approx(0.917976, abs=1e-6)


@given(BOX, BOX)
@settings(max_examples=200, deadline=None)
def test_it_is_the_textbook_distance(a: tuple[float, ...], b: tuple[float, ...]) -> None:
    expected = literal(box(*a), box(*b))
    assert bhattacharyya(box(*a), box(*b)).item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@given(BOX, BOX, COORDINATE, COORDINATE, ANGLE, st.floats(0.1, 10))
@settings(max_examples=100, deadline=None)
def test_it_is_a_symmetric_distance_that_no_motion_or_scale_changes(
    a: tuple[float, ...], b: tuple[float, ...], x: float, y: float, turn: float, scale: float
) -> None:
    first, second = box(*a), box(*b)
    value = hellinger(first, second).item()
    assert 0 <= value <= 1
    assert hellinger(second, first).item() == pytest.approx(value, abs=1e-6)
    assert hellinger(canonical(first), canonical(second)).item() == pytest.approx(value, abs=1e-6)

    def moved(given: Tensor) -> Tensor:
        cx, cy, w, h, angle = given.tolist()
        c, s = math.cos(turn), math.sin(turn)
        return box(scale * (c * cx - s * cy) + x, scale * (s * cx + c * cy) + y, scale * w, scale * h, angle + turn)

    assert hellinger(moved(first), moved(second)).item() == pytest.approx(value, abs=1e-5)


@given(BOX)
@settings(max_examples=100, deadline=None)
def test_equal_boxes_are_at_distance_zero_exactly_and_without_a_gradient(numbers: tuple[float, ...]) -> None:
    for dtype in (torch.float32, torch.float64):
        a = box(*numbers, dtype=dtype).requires_grad_()
        value = hellinger(a, a.detach().clone())
        assert value.item() == 0
        (gradient,) = torch.autograd.grad(value, a)
        assert not gradient.any()


def test_gradient_of_the_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(20, 5, generator=generator, dtype=torch.float64) * 9 + 1 for _ in range(2))
    assert torch.autograd.gradcheck(hellinger, (a.requires_grad_(), b.requires_grad_()))
    assert torch.autograd.gradcheck(bhattacharyya, (a, b))


@pytest.mark.parametrize("sides", [(0.0, 5.0), (-3.0, 5.0), (-3.0, -40.0), (1e-9, 1e-9), (1e5, 1e-5)])
def test_collapsed_and_inverted_sides_are_finite_and_get_no_gradient(sides: tuple[float, float]) -> None:
    a = torch.tensor([31.0, 41.0, *sides, 0.7], requires_grad=True)
    value = hellinger(a, torch.tensor([30.0, 40, 20, 6, 0.1]))
    assert 0.9 < value.item() <= 1
    (gradient,) = torch.autograd.grad(value, a)
    assert gradient.isfinite().all()
    assert not gradient[2:4][torch.tensor(sides) < 1e-4].any()


def test_narrow_numbers_are_widened_and_the_result_is_as_narrow() -> None:
    a, b = box(300, 400, 90, 20, 0.4).bfloat16(), box(310, 390, 70, 30, -0.2).bfloat16()
    value = hellinger(a, b)
    assert value.dtype == torch.bfloat16
    assert torch.equal(value, hellinger(a.float(), b.float()).bfloat16())


@given(st.tuples(st.floats(0, 64), st.floats(0, 64), st.floats(8, 60), st.floats(8, 60), ANGLE))
@settings(max_examples=200, deadline=None)
def test_what_is_inside_is_what_lies_between_the_sides(numbers: tuple[float, ...]) -> None:
    ticks = torch.arange(0.5, 64, 1.0)
    grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).reshape(-1, 2)
    inside = rotated_candidates(
        box(*numbers, dtype=torch.float32).view(1, 1, 5), torch.ones(1, 1) > 0, Anchors(grid, grid[:, :1])
    )
    x, y, w, h, angle = box(*numbers, dtype=torch.float32).double().tolist()
    apart = grid.double() - box(x, y)
    along = (apart @ box(math.cos(angle), math.sin(angle))).abs() - w / 2
    across = (apart @ box(-math.sin(angle), math.cos(angle))).abs() - h / 2
    clear = (along.abs() > 1e-3) & (across.abs() > 1e-3)
    assert torch.equal(inside[0, 0][clear], ((along < 0) & (across < 0))[clear])


@pytest.mark.parametrize("quarter", [0, 1, 2, -1])
def test_edges_are_inside_as_they_are_of_upright_boxes(quarter: int) -> None:
    ticks = torch.arange(0.0, 41, 2)
    grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).reshape(-1, 2)
    anchors = Anchors(grid, grid[:, :1])
    upright = torch.tensor([[[10.0, 12, 30, 20], [4.0, 4, 8, 40]]])
    valid = torch.ones(1, 2, dtype=torch.bool)
    expected = candidates(Targets(upright, valid.long(), valid), anchors)
    sides = upright[..., 2:] - upright[..., :2]
    sides = sides.flip(2) if quarter % 2 else sides
    angle = torch.full((1, 2, 1), quarter * math.pi / 2)
    turned = torch.cat(((upright[..., :2] + upright[..., 2:]) / 2, sides, angle), 2)
    assert torch.equal(rotated_candidates(turned, valid, anchors), expected)
    assert not rotated_candidates(turned, ~valid, anchors).any()


def test_short_sides_are_widened_and_long_ones_are_not() -> None:
    """A line of 60 x 1 pixels along the diagonal holds the anchors within 8 pixels of it."""
    ticks = torch.arange(4.0, 64, 8)
    grid = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1).reshape(-1, 2)
    line = torch.tensor([[[32.0, 32, 60, 1, math.pi / 4]]])
    inside = rotated_candidates(line, torch.ones(1, 1) > 0, Anchors(grid, grid[:, :1]))[0, 0]
    apart = (grid[:, 0] - grid[:, 1]).abs() / math.sqrt(2)
    along = ((grid - 32).sum(1) / math.sqrt(2)).abs()
    assert torch.equal(inside, (apart <= 8) & (along <= 30))
    assert 15 < int(inside.sum()) < 25

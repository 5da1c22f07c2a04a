"""Gathering of the anchors that learn something."""

from __future__ import annotations

import pytest
import torch

from lucid_core.objective.positives import mean_of, rows_of, select_positives
from lucid_core.types import Assignment


def assignment() -> Assignment:
    weight = torch.tensor([[0.0, 0.2, 0.5, 0.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    foreground = weight > 0
    foreground[0, 0] = True  # one that learns, by a weight of 0
    owner = torch.tensor([[3, 1, 2, 0, 1, 0], [0] * 6])
    return Assignment(foreground, owner, weight)


def test_the_best_come_first_and_equal_ones_in_their_order() -> None:
    found = select_positives(assignment(), 5)
    assert found.anchors.tolist() == [[2, 4, 1, 0, 3], [0, 1, 2, 3, 4]]
    assert found.owner.tolist() == [[2, 1, 1, 3, 0], [0] * 5]
    assert found.real.tolist() == [[True, True, True, True, False], [False] * 5]


@pytest.mark.parametrize(("capacity", "expected"), [(1, [2]), (2, [2, 4]), (3, [2, 4, 1])])
def test_what_there_is_no_place_for_is_what_weighs_least(capacity: int, expected: list[int]) -> None:
    found = select_positives(assignment(), capacity)
    assert found.anchors[0].tolist() == expected
    assert found.real[0].all()


def test_there_are_no_more_places_than_anchors() -> None:
    assert select_positives(assignment(), 100).anchors.shape == (2, 6)


def test_rows_are_taken_by_image_and_the_others_get_zeros() -> None:
    values = torch.arange(2 * 4 * 3 * 2.0).reshape(2, 4, 3, 2).requires_grad_()
    index = torch.tensor([[3, 0], [1, 1]])
    taken = rows_of(values, index)
    assert torch.equal(taken[0], values[0, [3, 0]])
    assert torch.equal(taken[1], values[1, [1, 1]])
    (gradient,) = torch.autograd.grad(taken.sum(), values)
    assert gradient[:, :, 0, 0].tolist() == [[1, 0, 0, 1], [0, 2, 0, 0]]


def test_a_mean_over_nothing_is_zero() -> None:
    values, none = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3, dtype=torch.bool)
    assert mean_of(values, none) == 0
    (gradient,) = torch.autograd.grad(mean_of(values, none), values)
    assert not gradient.any()
    assert mean_of(values * 5, torch.eye(2, 3, dtype=torch.bool)) == 5

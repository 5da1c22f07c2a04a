"""Mask and semantic terms against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lucid_core.objective.positives import rows_of, select_positives
from lucid_core.objective.segment import SegmentObjective, mask_term, semantic_target, semantic_term
from lucid_core.types import Targets
from tests.objective.tasks import CLASSES, objective_of, predictions_of, targets_of


def one_mask(box: tuple[float, ...], logit: float = 0.0, mask: Tensor | None = None) -> Tensor:
    """The term of one object on a grid of 4 x 4 cells, that is of 16 pixels, with the same logit everywhere."""
    mask = torch.zeros(4, 4, dtype=torch.bool) if mask is None else mask
    prototypes = torch.full((1, 1, 4, 4), logit, dtype=torch.float64)
    boxes = torch.tensor([[box]], dtype=torch.float64)
    return mask_term(
        torch.ones(1, 1, 1, dtype=torch.float64), prototypes, mask[None, None], boxes, torch.ones(1, 1) > 0
    )


@pytest.mark.parametrize(
    ("box", "value"),
    [
        ((0, 0, 16, 16), math.log(2)),
        ((4, 4, 12, 8), math.log(2)),
        ((8, 8, 8, 8), 0.0),
        ((12, 12, 4, 4), 0.0),
        ((12, 4, 4, 12), 0.0),
        ((0, 0, 4, 4), math.log(2)),
        ((0, 0, 2, 2), 0.0),
        ((0, 0, 2.5, 2.5), math.log(2)),
    ],
)
def test_a_cell_counts_where_its_centre_is_in_the_box(box: tuple[float, ...], value: float) -> None:
    """Zero logits cost ln 2 a cell. A box of less than a cell is divided by 1."""
    assert one_mask(box).item() == pytest.approx(value, abs=1e-12)


def test_the_left_and_the_upper_edge_are_inside_and_the_others_are_not() -> None:
    """Edges of 2 to 6 pixels run through the centres of the first and of the second cell: one cell, over one."""
    assert one_mask((2, 2, 6, 6)).item() == pytest.approx(math.log(2))


def test_what_is_outside_the_box_costs_nothing_and_the_area_divides() -> None:
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[1, 1] = mask[3, 3] = True
    value = one_mask((4, 4, 12, 12), 2.0, mask).item()
    softplus = math.log1p(math.exp(2.0))
    assert value == pytest.approx((3 * softplus + softplus - 2) / 4)


def test_objects_count_alike_and_empty_places_not_at_all() -> None:
    generator = torch.Generator().manual_seed(0)
    coefficients = torch.randn(2, 3, 4, generator=generator)
    prototypes = torch.randn(2, 4, 8, 8, generator=generator)
    masks = torch.rand(2, 3, 8, 8, generator=generator) > 0.5
    boxes = torch.tensor(
        [[[0.0, 0, 30, 30], [4, 4, 12, 20], [0, 0, 0, 0]], [[8, 0, 16, 32], [0, 0, 9, 9], [1, 1, 5, 5]]]
    )
    real = torch.tensor([[True, True, False], [True, False, False]])
    alone = [
        mask_term(
            *(x[b : b + 1, p : p + 1] for x in (coefficients,)),
            prototypes[b : b + 1],
            masks[b : b + 1, p : p + 1],
            boxes[b : b + 1, p : p + 1],
            real[b : b + 1, p : p + 1],
        )
        for b, p in ((0, 0), (0, 1), (1, 0))
    ]
    together = mask_term(coefficients, prototypes, masks, boxes, real)
    assert together.item() == pytest.approx(sum(x.item() for x in alone) / 3, rel=1e-6)
    spoilt = torch.where(real[..., None], coefficients, math.nan)
    assert torch.equal(
        mask_term(spoilt, prototypes, masks, torch.where(real[..., None], boxes, math.inf), real), together
    )


def test_gradient_of_the_mask_term() -> None:
    generator = torch.Generator().manual_seed(0)
    coefficients = torch.randn(1, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    prototypes = torch.randn(1, 2, 4, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    masks = torch.rand(1, 3, 4, 4, generator=generator) > 0.5
    boxes = torch.tensor([[[0.0, 0, 16, 16], [2, 3, 9, 15], [0, 0, 9, 9]]], dtype=torch.float64)
    real = torch.tensor([[True, True, False]])
    assert torch.autograd.gradcheck(lambda c, p: mask_term(c, p, masks, boxes, real), (coefficients, prototypes))
    (gradient,) = torch.autograd.grad(mask_term(coefficients, prototypes, masks, boxes, real), coefficients)
    assert not gradient[0, 2].any()


def test_semantic_values() -> None:
    """A constant half on four cells, of which two are of the class: ln 2, and a Dice loss of 0.4."""
    target = torch.tensor([1.0, 1, 0, 0]).view(1, 1, 2, 2)
    assert semantic_term(torch.zeros(1, 1, 2, 2), target).item() == pytest.approx(math.log(2) + 0.4)
    nothing = torch.zeros(1, 1, 2, 2)
    assert semantic_term(nothing, nothing).item() == pytest.approx(math.log(2) + 1 - 1 / 3)
    both = torch.cat((target, nothing))
    assert semantic_term(torch.zeros(2, 1, 2, 2), both).item() == pytest.approx(math.log(2) + (0.4 + 2 / 3) / 2)


def test_gradient_of_the_semantic_term() -> None:
    logits = torch.randn(
        2, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    target = (torch.rand(2, 2, 3, 3, generator=torch.Generator().manual_seed(1)) > 0.5).double()
    assert torch.autograd.gradcheck(lambda x: semantic_term(x, target), (logits,))


def test_a_cell_of_eight_pixels_is_of_every_class_that_touches_it() -> None:
    masks = torch.zeros(1, 4, 4, 6, dtype=torch.bool)
    masks[0, 0, 0, 1] = masks[0, 1, 0, 0] = masks[0, 2, 3, 5] = masks[0, 3, 2, 2] = True
    labels = torch.tensor([[1, 0, 1, 0]])
    valid = torch.tensor([[True, True, True, False]])
    found = semantic_target(Targets(torch.zeros(1, 4, 4), labels, valid), masks, 2)
    assert found.shape == (1, 2, 2, 3)
    assert found.nonzero().tolist() == [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 2]]


def test_the_objective_scores_the_masks_of_both_branches() -> None:
    objective, predictions, targets = objective_of("segment"), predictions_of("segment"), targets_of("segment")
    objective.write_scalars(0.3)
    _, *assignments = objective.detection(predictions, targets)
    terms = []
    for branch, assignment in zip(predictions[:2], assignments, strict=True):
        index, owner, real = select_positives(assignment, 12)
        assert targets.masks is not None
        parts = rows_of(branch.coefficients, index), predictions.prototypes, rows_of(targets.masks, owner)
        terms.append(mask_term(*parts, rows_of(targets.boxes, owner), real))
    found = objective(predictions, targets).scalars()
    assert found["mask"].item() == pytest.approx((0.3 * terms[0] + 0.7 * terms[1]).item(), rel=1e-6)
    assert terms[0] != terms[1]
    assert predictions.semantic is not None
    expected = semantic_term(predictions.semantic, semantic_target(targets, targets.masks, CLASSES))
    assert torch.equal(found["semantic"], expected.detach())


def test_capacity_leaves_out_the_masks_of_the_worst_anchors_alone() -> None:
    predictions, targets = predictions_of("segment"), targets_of("segment")
    found = {n: SegmentObjective(capacity=n)(predictions, targets).scalars() for n in (2, 12, 40, 84)}
    assert torch.equal(found[40]["mask"], SegmentObjective()(predictions, targets).scalars()["mask"])
    assert found[2]["mask"] != found[12]["mask"] != found[40]["mask"]
    torch.testing.assert_close(found[40]["mask"], found[84]["mask"])
    assert all(torch.equal(found[2][name], found[84][name]) for name in ("o2m_box", "o2o_cls", "semantic"))


def test_evaluation_has_no_semantic_term() -> None:
    predictions = predictions_of("segment")
    scalars = objective_of("segment")(predictions._replace(semantic=None), targets_of("segment")).scalars()
    assert "mask" in scalars and "semantic" not in scalars
    assert scalars["mask"] > 0

"""The terms of oriented boxes."""

from __future__ import annotations

import math

import pytest
import torch

from lucid_core.network.anchors import decode
from lucid_core.network.rotated import decode_rotated
from lucid_core.objective.oriented import angle_cost, oriented_terms
from lucid_core.objective.rotated import hellinger, rotated_candidates
from lucid_core.types import Assignment
from tests.objective.tasks import objective_of, predictions_of, targets_of


def test_published_angle_value() -> None:
    angle = torch.tensor([0.1, 0.9, 0.3])
    wanted = torch.tensor([[0, 0, 9, 9, 0.05], [0, 0, 8, 8, 0.1], [0, 0, 8, 2, 0.3]])
    weight = torch.tensor([0.6, 0.9, 0.5])
    assert ((weight * angle_cost(angle, wanted)).sum() / weight.sum().clamp(min=1)).item() == pytest.approx(
        0.4526, abs=5e-5
    )


@pytest.mark.parametrize(("aspect", "factor"), [(1, 1.0), (2, 0.948), (5, 0.750), (10, 0.555), (20, 0.369)])
def test_the_angle_of_a_longer_box_counts_less(aspect: float, factor: float) -> None:
    wanted = torch.tensor([0.0, 0, 4 * aspect, 4, 0])
    assert angle_cost(torch.tensor(math.pi / 4), wanted).item() == pytest.approx(factor, abs=6e-4)


@pytest.mark.parametrize("turns", [-3, -1, 0, 1, 2, 9])
def test_a_quarter_turn_costs_nothing(turns: int) -> None:
    angle = torch.tensor(0.3 + turns * math.pi / 2, dtype=torch.float64, requires_grad=True)
    wanted = torch.tensor([0.0, 0, 8, 4, 0.1], dtype=torch.float64)
    cost = angle_cost(angle, wanted)
    expected = math.exp(-((math.log(2) / 3) ** 2)) * math.sin(0.4) ** 2
    assert cost.item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(cost, angle)
    assert gradient.item() == pytest.approx(math.exp(-((math.log(2) / 3) ** 2)) * 2 * math.sin(0.8))


def test_gradient_of_the_angle_term() -> None:
    angle = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    wanted = torch.rand(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    assert torch.autograd.gradcheck(angle_cost, (angle, wanted.requires_grad_()))


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_terms_of_a_known_assignment(scale: float) -> None:
    """Two anchors learn. The sum of their weights, under 1, does not divide; above, it does."""
    predictions, targets = predictions_of("obb", 1), targets_of("obb", (2,))
    branch, anchors = predictions.one_to_one, predictions.anchors
    assert branch.angles is not None
    assert targets.rboxes is not None
    boxes = decode(branch.distances, anchors)
    foreground = torch.zeros(1, boxes.shape[1], dtype=torch.bool)
    owner, weight = foreground.long(), foreground.float()
    chosen = ((10, 1, 0.5 * scale, 8), (70, 0, 0.25 * scale, 16))
    for anchor, row, value, _ in chosen:
        foreground[0, anchor], owner[0, anchor], weight[0, anchor] = True, row, value
    found = oriented_terms(branch.logits, boxes, branch.angles, anchors, targets, Assignment(foreground, owner, weight))
    rbox = rl1 = angle = 0.0
    for anchor, row, value, stride in chosen:
        given = decode_rotated(boxes[0, anchor], branch.angles[0, anchor])
        wanted = targets.rboxes[0, row]
        rbox += value * hellinger(given, wanted).item()
        rl1 += value * (given - wanted)[:4].abs().sum().item() / stride
        angle += value * angle_cost(branch.angles[0, anchor, 0], wanted).item()
    total = max(0.75 * scale, 1.0)
    assert found.rbox.item() == pytest.approx(rbox / total, rel=1e-5)
    assert found.rl1.item() == pytest.approx(rl1 / total, rel=1e-5)
    assert found.angle.item() == pytest.approx(angle / total, rel=1e-5)
    moved = torch.autograd.grad(found.rbox + found.rl1 + found.angle, [branch.distances, branch.angles])
    for gradient in moved:
        assert gradient.any(2).nonzero().tolist() == [[0, 10], [0, 70]]


def test_anchors_inside_the_oriented_box_learn_it() -> None:
    objective, predictions, targets = objective_of("obb"), predictions_of("obb"), targets_of("obb")
    assert targets.rboxes is not None
    inside = rotated_candidates(targets.rboxes, targets.valid, predictions.anchors)
    assert torch.equal(objective.inside(targets, predictions.anchors), inside)
    _, many, one = objective.detection(predictions, targets)
    for found in (many, one):
        assert found.foreground.any(1).all()
        owned = inside.gather(1, found.owner.unsqueeze(1)).squeeze(1)
        assert (owned | ~found.foreground).all()


def test_a_perfect_prediction_costs_nothing_but_its_class() -> None:
    """Boxes of anchors in the middle of an object, turned as it is."""
    predictions, targets = predictions_of("obb", 1), targets_of("obb", (1,))
    assert targets.rboxes is not None
    x, y, w, h, angle = targets.rboxes[0, 0].tolist()
    centres, strides = predictions.anchors
    low, high = torch.tensor([x - w / 2, y - h / 2]), torch.tensor([x + w / 2, y + h / 2])
    distances = torch.cat((centres - low, high - centres), 1)[None] / strides
    branch = predictions.one_to_one._replace(distances=distances, angles=torch.full((1, len(centres), 1), angle))
    found = objective_of("obb")(predictions._replace(one_to_many=branch, one_to_one=branch), targets).scalars()
    assert all(found[f"{b}_{name}"] < 1e-3 for b in ("o2m", "o2o") for name in ("rbox", "rl1", "angle"))
    assert found["o2m_cls"] > 0.1

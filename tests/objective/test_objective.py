"""The objective: its values, and the promises that let a step be recorded."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from lucid_core.network.anchors import decode, make_anchors
from lucid_core.network.detector import Network
from lucid_core.objective.boxes import complete_iou
from lucid_core.objective.objective import Gains, Objective, progressive_weight
from lucid_core.objective.terms import branch_terms
from lucid_core.types import Assignment, BranchOutput, Losses, Predictions, Targets

CANVAS, CLASSES = 64, 3


def random_predictions(batch: int = 2, seed: int = 0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    anchors = make_anchors(CANVAS, CANVAS, torch.device("cpu"))
    count = len(anchors.centres)

    def branch() -> BranchOutput:
        logits = torch.randn(batch, count, CLASSES, generator=generator)
        distances = torch.rand(batch, count, 4, generator=generator) * 3
        return BranchOutput(logits.requires_grad_(), distances.requires_grad_())

    return Predictions(branch(), branch(), anchors)


def scene(capacity: int = 4) -> Targets:
    boxes, labels = torch.zeros(2, capacity, 4), torch.zeros(2, capacity, dtype=torch.int64)
    valid = torch.zeros(2, capacity, dtype=torch.bool)
    boxes[0, :3] = torch.tensor([[4, 4, 40, 44], [20, 10, 60, 50], [30, 30, 35, 36]])
    boxes[1, :1] = torch.tensor([[2, 30, 50, 62]])
    labels[0, :3] = torch.tensor([0, 2, 1])
    valid[0, :3] = valid[1, :1] = True
    return Targets(boxes, labels, valid)


def run(predictions: Predictions, targets: Targets) -> tuple[Losses, list[Tensor]]:
    leaves = [*predictions.one_to_many[:2], *predictions.one_to_one[:2]]
    losses = Objective()(predictions, targets)
    return losses, list(torch.autograd.grad(losses.total, leaves))


def test_padding_is_inert_in_bits() -> None:
    losses, grads = run(random_predictions(), scene(4))
    for capacity in (8, 64, 256):
        grown, grown_grads = run(random_predictions(), scene(capacity))
        assert all(torch.equal(a, b) for a, b in zip(losses.scalars().values(), grown.scalars().values(), strict=True))
        assert all(torch.equal(a, b) for a, b in zip(grads, grown_grads, strict=True))
    other = scene(8)
    other.valid[1, 1] = True
    other.boxes[1, 1] = torch.tensor([0.0, 0, 30, 30])
    assert not torch.equal(run(random_predictions(), other)[0].total, losses.total)


def test_terms_of_a_known_assignment() -> None:
    """Two anchors are responsible, with weights 0.5 and 0.25; their sum, under 1, does not divide."""
    predictions = random_predictions(1)
    targets = Targets(*(t[:1] for t in scene()[:3]))
    boxes = decode(predictions.one_to_one.distances, predictions.anchors)
    logits = predictions.one_to_one.logits
    count = boxes.shape[1]
    foreground = torch.zeros(1, count, dtype=torch.bool)
    owner = torch.zeros(1, count, dtype=torch.int64)
    weight = torch.zeros(1, count)
    for anchor, row, value in ((10, 1, 0.5), (70, 0, 0.25)):
        foreground[0, anchor], owner[0, anchor], weight[0, anchor] = True, row, value
    terms = branch_terms(logits, boxes, predictions.anchors, targets, Assignment(foreground, owner, weight))
    soft = torch.zeros_like(logits)
    soft[0, 10, 2], soft[0, 70, 0] = 0.5, 0.25
    entropy = -(soft * logits.sigmoid().log() + (1 - soft) * (1 - logits.sigmoid()).log()).sum()
    l1 = sum(
        value * ((boxes[0, anchor].detach() - targets.boxes[0, row]).abs().sum() / stride)
        for anchor, row, value, stride in ((10, 1, 0.5, 8), (70, 0, 0.25, 16))
    )
    apart = sum(
        value * (1 - complete_iou(boxes[0, anchor].detach(), targets.boxes[0, row]))
        for anchor, row, value in ((10, 1, 0.5), (70, 0, 0.25))
    )
    assert terms.cls.item() == pytest.approx(entropy.item(), rel=1e-5)
    assert terms.box.item() == pytest.approx(float(apart), rel=1e-5)
    assert terms.l1.item() == pytest.approx(float(l1), rel=1e-5)


def test_terms_are_divided_by_the_sum_of_weights_above_one() -> None:
    predictions = random_predictions(1)
    targets = Targets(*(t[:1] for t in scene()[:3]))
    boxes = decode(predictions.one_to_one.distances, predictions.anchors)
    foreground = torch.zeros(1, boxes.shape[1], dtype=torch.bool)
    foreground[0, [3, 40, 70]] = True
    assigned = [
        Assignment(foreground, torch.zeros_like(foreground, dtype=torch.int64), foreground * value)
        for value in (1.0, 2.0)
    ]
    logits = predictions.one_to_one.logits
    once, twice = (branch_terms(logits, boxes, predictions.anchors, targets, a) for a in assigned)
    assert once.box.item() == pytest.approx(twice.box.item(), rel=1e-5)
    assert once.l1.item() == pytest.approx(twice.l1.item(), rel=1e-5)
    assert twice.l1.item() < 100


def test_published_settings() -> None:
    objective = Objective()
    assert objective.gains == Gains(box=7.5, cls=0.5, l1=6.0)
    many, one = objective.assign_many, objective.assign_one
    assert (many.topk, many.single, many.alpha, many.beta) == (10, False, 1.0, 6)
    assert (one.topk, one.single, one.alpha, one.beta) == (7, True, 1.0, 6)


def test_total_blends_branches_with_gains() -> None:
    predictions, targets = random_predictions(), scene()
    gains = Gains(box=2.0, cls=3.0, l1=5.0)
    objective = Objective(gains)
    for weight in (0.0, 0.3, 1.0):
        objective.write_scalars(weight)
        losses = objective(predictions, targets)
        many, one = (2 * t.box + 3 * t.cls + 5 * t.l1 for t in (losses.one_to_many, losses.one_to_one))
        assert losses.total.item() == pytest.approx((weight * many + (1 - weight) * one).item(), rel=1e-6)


def test_empty_batch_is_finite_and_every_parameter_has_a_gradient() -> None:
    torch.manual_seed(0)
    network = Network("n", CLASSES).train()
    for targets in (Targets(*(torch.zeros_like(t)[:, :1] for t in scene()[:3])), scene()):
        network.zero_grad(set_to_none=True)
        losses = Objective()(network(torch.rand(2, 3, CANVAS, CANVAS)), targets)
        losses.total.backward()
        grads = [p.grad for p in network.parameters()]
        assert all(g is not None and bool(g.isfinite().all()) for g in grads)
        if not bool(targets.valid.any()):
            assert losses.one_to_many.box.item() == losses.one_to_one.l1.item() == 0.0
            boxes = [p.grad for name, p in network.named_parameters() if ".boxes." in name]
            assert boxes
            assert all(g is not None and not bool(g.any()) for g in boxes)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_batches_pass_through_the_same_arithmetic(bad: float) -> None:
    predictions = random_predictions()
    with torch.no_grad():
        predictions.one_to_many.logits[0].fill_(bad)
        predictions.one_to_one.distances[1, :7].fill_(bad)
    losses, grads = run(predictions, scene())
    assert losses.total.shape == ()
    leaves = [*predictions.one_to_many[:2], *predictions.one_to_one[:2]]
    assert all(g.shape == leaf.shape for g, leaf in zip(grads, leaves, strict=True))


def test_one_to_one_has_at_most_one_anchor_per_target() -> None:
    _, many, one = Objective().detection(random_predictions(), scene())
    for image in range(2):
        counts = one.owner[image][one.foreground[image]].bincount(minlength=4)
        assert counts.max() == 1
        assert many.owner[image][many.foreground[image]].bincount(minlength=4).max() > 1


def test_gradients_do_not_leak_into_the_assignment() -> None:
    _, many, one = Objective().detection(random_predictions(), scene())
    assert not many.weight.requires_grad
    assert not one.weight.requires_grad


def test_objective_is_float32_under_autocast() -> None:
    predictions = random_predictions()
    many, one = (BranchOutput(*(t.bfloat16() for t in branch[:2])) for branch in predictions[:2])
    low = Predictions(many, one, predictions.anchors)
    with torch.autocast("cpu", torch.bfloat16):
        total = Objective()(low, scene()).total
    assert total.dtype == torch.float32


def test_scalars_are_owned_and_detached() -> None:
    losses, _ = run(random_predictions(), scene())
    scalars = losses.scalars()
    assert list(scalars) == ["loss", "o2m_box", "o2m_cls", "o2m_l1", "o2o_box", "o2o_cls", "o2o_l1"]
    before = {name: value.clone() for name, value in scalars.items()}
    with torch.no_grad():
        losses.total.zero_()
        losses.one_to_many[0].zero_()
    assert all(torch.equal(scalars[name], before[name]) and not scalars[name].requires_grad for name in scalars)


def test_progressive_weight() -> None:
    values = [progressive_weight(t, 50) for t in (0, 1, 25, 49)]
    assert values == pytest.approx([0.8, 0.7857, 0.4429, 0.1], abs=5e-5)
    assert progressive_weight(0, 1) == pytest.approx(0.8)
    assert progressive_weight(7, None) == 0.5


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Gains)])
def test_gains_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Gains(**{name: math.nan})

"""The terms of key points, and the flow."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lucid_core.objective.flow import Flow
from lucid_core.objective.keypoints import KeypointGains, KeypointObjective, Pairs, oks_cost
from lucid_core.oks import oks_sigmas
from lucid_core.types import Predictions, Targets
from tests.objective.tasks import POINTS, objective_of, predictions_of, targets_of

AREA = torch.tensor([[[10.0, 10.0]]])


def one_point(sigma: float = 0.0) -> Pairs:
    """Predicted at the corner of a box of 10 x 10 pixels, labelled at (0.2, -0.1) of its sides from there."""
    wanted = torch.tensor([2.0, -1.0]).view(1, 1, 1, 2)
    return Pairs(torch.zeros(1, 1, 1, 2), wanted, torch.full((1, 1, 1, 2), sigma), torch.ones(1, 1, 1) > 0, AREA)


def test_published_values() -> None:
    assert KeypointObjective(1, flow=False).cost(one_point()).item() == pytest.approx(0.600000)
    assert KeypointObjective(1).cost(one_point()).item() == pytest.approx(2.537877, abs=1e-6)


def test_published_similarity() -> None:
    """Errors of 5 and of 1 pixel, spreads 0.1 and 0.2, an area of 100."""
    given = torch.tensor([[3.0, 4], [0, 1]]).view(1, 1, 2, 2)
    pairs = Pairs(given, torch.zeros(1, 1, 2, 2), given, torch.ones(1, 1, 2) > 0, AREA)
    spread = torch.tensor([0.1, 0.2])
    assert oks_cost(pairs, spread).item() == pytest.approx(0.493415, abs=1e-6)
    first = pairs._replace(labelled=torch.tensor([[[True, False]]]))
    assert oks_cost(first, spread).item() == pytest.approx(1 - math.exp(-3.125), abs=1e-6)
    assert oks_cost(pairs._replace(sides=torch.tensor([[[0.5, 1.5]]])), spread).item() == pytest.approx(
        1 - (math.exp(-25 / 0.08) + math.exp(-1 / 0.32)) / 2, abs=1e-6
    )


def test_spreads_of_a_person_are_those_of_coco() -> None:
    found = oks_sigmas(17)
    assert found[:5] == (0.026, 0.025, 0.025, 0.035, 0.035)
    assert found[5:] == (0.079, 0.079, 0.072, 0.072, 0.062, 0.062, 0.107, 0.107, 0.087, 0.087, 0.089, 0.089)
    assert oks_sigmas(4) == (0.072,) * 4
    assert sorted(found)[8] == 0.072


def test_a_box_under_a_pixel_does_not_magnify_errors() -> None:
    objective = KeypointObjective(1, flow=False)
    small = one_point()._replace(sides=torch.tensor([[[0.25, 0.0]]]))
    assert objective.cost(small).item() == pytest.approx(2 * (2 + 1) + 2 * math.log(2) + 2 * math.log(0.5))


def test_the_spread_has_a_floor_with_no_gradient_under_it() -> None:
    sigmas = torch.tensor([-30.0, 0.0]).view(1, 1, 1, 2).requires_grad_()
    cost = KeypointObjective(1, flow=False).cost(one_point()._replace(sigmas=sigmas))
    assert cost.item() == pytest.approx(0.2 / 1e-6 + 0.2 + 2 * math.log(2) + math.log(1e-6) + math.log(0.5))
    (gradient,) = torch.autograd.grad(cost.sum(), sigmas)
    assert gradient[..., 0] == 0
    assert gradient[..., 1] != 0


@pytest.mark.parametrize("flow", [True, False])
def test_gradient_of_likelihood_and_similarity(flow: bool) -> None:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    objective = KeypointObjective(2, flow=flow).double()
    for parameter in objective.parameters():
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    given, wanted, sigmas = (torch.randn(2, 3, 2, 2, generator=generator, dtype=torch.float64) for _ in range(3))
    labelled = torch.rand(2, 3, 2, generator=generator) > 0.3
    sides = 1 + torch.rand(2, 3, 2, generator=generator, dtype=torch.float64) * 4
    inputs = given.requires_grad_(), sigmas.requires_grad_()
    assert torch.autograd.gradcheck(lambda g, s: objective.cost(Pairs(g, wanted, s, labelled, sides)), inputs)
    spread = torch.tensor([0.1, 0.5], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda g: oks_cost(Pairs(g, wanted, sigmas, labelled, sides), spread), (given,))


def test_the_flow_is_a_density_that_begins_as_the_normal_one() -> None:
    flow = Flow().double()
    points = torch.randn(5, 4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(points).sum(-1)
    torch.testing.assert_close(flow(points), expected)


def changed_flow(seed: int = 0) -> Flow:
    torch.manual_seed(seed)
    flow, generator = Flow().double(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return flow


def test_what_the_flow_learns_stays_a_density() -> None:
    ticks = torch.linspace(-10, 10, 201, dtype=torch.float64)
    points = torch.stack(torch.meshgrid(ticks, ticks, indexing="xy"), -1)
    with torch.no_grad():
        density = changed_flow()(points).exp()
    assert density.sum().item() * 0.1**2 == pytest.approx(1, abs=1e-3)
    normal = torch.exp(-ticks.square() / 2) / math.sqrt(2 * math.pi)
    for axis in (0, 1):  # each coordinate is transformed, and not its condition alone
        assert (density.sum(axis) * 0.1 - normal).abs().max() > 0.01


def test_scales_are_bounded_whatever_the_flow_learns() -> None:
    flow = changed_flow()
    with torch.no_grad():
        for coupling in flow.couplings:
            coupling.layers[-1].weight *= 1e4
            coupling.layers[-1].bias[1] = coupling.layers[-1].weight[1] = 0
    found = flow(torch.tensor([[3.0, -2.0], [0.5, 0.1]], dtype=torch.float64))
    assert found.isfinite().all()
    # Three scales of a coordinate, each within its gain.
    assert found.min() > -9 * math.exp(2 * 3 * 1.5)


def test_parts_of_the_flow() -> None:
    parameters = list(Flow().parameters())
    assert [sum(p.ndim == n for p in parameters) for n in (2, 1, 0)] == [18, 18, 6]
    flow = changed_flow()
    flow(torch.randn(7, 2, dtype=torch.float64)).sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in flow.parameters())


class Counts(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.products += func.overloadpacket in (torch.ops.aten.addmm, torch.ops.aten.mm)
        return func(*args, **(kwargs or {}))


def test_one_call_of_the_flow_serves_both_branches() -> None:
    objective, predictions, targets = objective_of("keypoints"), predictions_of("keypoints"), targets_of("keypoints")
    with Counts() as counts, torch.no_grad():
        objective(predictions, targets)
    assert counts.products == 18


def by_hand(
    objective: KeypointObjective, predictions: Predictions, targets: Targets, branch: int
) -> tuple[float, float]:
    """Both terms of a branch, point by point over all anchors that learn."""
    assignment = objective.detection(predictions, targets)[1 + branch]
    output, (centres, strides) = predictions[branch], predictions.anchors
    costs, similarities = [], []
    for image, anchor in assignment.foreground.nonzero().tolist():
        row = int(assignment.owner[image, anchor])
        seen = targets.visibility[image, row] > 0
        box = targets.boxes[image, row]
        given = (centres[anchor] + output.points[image, anchor] * strides[anchor])[None, None]
        wanted = targets.points[image, row][None, None]
        sides = (box[2:] - box[:2])[None, None]
        pairs = Pairs(given, wanted, output.sigmas[image, anchor][None, None], seen[None, None], sides)
        costs += objective.cost(pairs)[0, 0][seen].tolist()
        if seen.any():
            similarities.append(oks_cost(pairs, objective.spread).item())
    return sum(costs) / len(costs), sum(similarities) / len(similarities)


def test_the_objective_scores_labelled_points_of_both_branches() -> None:
    predictions, targets = predictions_of("keypoints"), targets_of("keypoints")
    targets.visibility[0, 1] = 0
    objective = KeypointObjective(POINTS, KeypointGains(oks=2.0), capacity=84)
    objective.write_scalars(0.3)
    found = objective(predictions, targets).scalars()
    many, one = (by_hand(objective, predictions, targets, branch) for branch in (0, 1))
    assert found["keypoint"].item() == pytest.approx(0.3 * many[0] + 0.7 * one[0], rel=1e-5)
    assert found["oks"].item() == pytest.approx(0.3 * many[1] + 0.7 * one[1], rel=1e-5)


def test_hidden_points_count_as_seen_ones() -> None:
    objective, predictions, targets = objective_of("keypoints"), predictions_of("keypoints"), targets_of("keypoints")
    seen = targets._replace(visibility=(targets.visibility > 0).long() * 2)
    assert torch.equal(objective(predictions, targets).total, objective(predictions, seen).total)


def test_without_a_flow_there_is_nothing_to_train() -> None:
    assert not list(KeypointObjective(3, flow=False).parameters())
    assert not KeypointObjective(3, flow=False).state_dict()
    assert all(name.startswith("flow.") for name in KeypointObjective(3).state_dict())


@pytest.mark.parametrize("sigmas", [(), (0.1,), (0.1, 0.0), (0.1, math.nan), (0.1, -0.1), (0.1, 26.0)])
def test_spreads_are_checked(sigmas: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"2 key points need 2 sigmas, each from 0\.0001 to 1 of"):
        KeypointObjective(2, sigmas=sigmas)

"""What every objective promises, whatever its task, so that a step of it can be recorded."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lucid_core.network.anchors import make_anchors
from lucid_core.network.detector import Network
from lucid_core.objective.keypoints import KeypointGains, KeypointObjective
from lucid_core.objective.objective import Objective
from lucid_core.objective.oriented import OrientedGains
from lucid_core.objective.segment import SegmentGains, SegmentObjective
from lucid_core.types import BranchOutput, Losses, Predictions, Targets, Task
from tests.objective.tasks import (
    CANVAS,
    CLASSES,
    POINTS,
    TASKS,
    grown,
    leaves_of,
    objective_of,
    predictions_of,
    targets_of,
)

SCALARS: dict[Task, list[str]] = {
    "detect": ["loss", "o2m_box", "o2m_cls", "o2m_l1", "o2o_box", "o2o_cls", "o2o_l1"],
    "segment": ["loss", "o2m_box", "o2m_cls", "o2m_l1", "o2o_box", "o2o_cls", "o2o_l1", "mask", "semantic"],
    "obb": [
        "loss",
        *(f"{branch}_{term}" for branch in ("o2m", "o2o") for term in ("rbox", "cls", "rl1", "angle")),
    ],
    "keypoints": ["loss", "o2m_box", "o2m_cls", "o2m_l1", "o2o_box", "o2o_cls", "o2o_l1", "keypoint", "oks"],
}


def run(objective: Objective, predictions: Predictions, targets: Targets) -> tuple[Losses, list[Tensor]]:
    losses = objective(predictions, targets)
    return losses, list(torch.autograd.grad(losses.total, [*leaves_of(predictions), *objective.parameters()]))


def same(a: tuple[Losses, list[Tensor]], b: tuple[Losses, list[Tensor]]) -> bool:
    pairs = [*zip(a[0].scalars().values(), b[0].scalars().values(), strict=True), *zip(a[1], b[1], strict=True)]
    return all(torch.equal(x, y) for x, y in pairs)


def spoiled(targets: Targets, bad: float) -> Targets:
    """Padding, and points without a label, hold what is no number."""

    def fill(tensor: Tensor | None, kept: Tensor) -> Tensor | None:
        if tensor is None or not tensor.is_floating_point():
            return tensor
        return torch.where(kept.reshape(*kept.shape, *[1] * (tensor.ndim - kept.ndim)), tensor, bad)

    spoilt = Targets(*(fill(t, targets.valid) for t in targets))
    if targets.visibility is not None:
        spoilt = spoilt._replace(points=fill(spoilt.points, targets.visibility > 0))
    return spoilt


@pytest.mark.parametrize("task", TASKS)
def test_room_for_more_objects_changes_no_bit_of_loss_or_gradient(task: Task) -> None:
    """A CPU computes the last few of many numbers otherwise than the rest; which these are must not depend on N."""
    objective = objective_of(task)
    for seed in range(40):
        filled = (3, 1) if seed % 2 else (2, 0)
        predictions, targets = predictions_of(task, seed=seed), targets_of(task, filled, seed)
        base = run(objective, predictions, targets)
        assert same(base, run(objective, predictions, grown(targets, 4 + seed % 11)))
        assert same(base, run(objective, predictions, grown(targets, 64)))


ROWS = 13
"""Room for targets that is the size of nothing else."""


class NotOverTargets(TorchDispatchMode):
    """Refuse what may give other bits when there is room for more targets, also where this machine would not.

    Of an exponential and its kind a CPU computes the last few otherwise than the rest, some kinds of CPU and some
    functions; and a sum over targets has another order when there are more.
    """

    CURVED = (
        "exp",
        "expm1",
        "log",
        "log1p",
        "sin",
        "cos",
        "tan",
        "tanh",
        "atan",
        "atan2",
        "pow",
        "sigmoid",
        "softplus",
    )
    SUMMED = ("sum", "mean", "prod", "linalg_vector_norm", "var", "cumsum")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.strip("_")
        given = [x for x in tree_leaves(args) if isinstance(x, Tensor) and ROWS in x.shape and x.is_floating_point()]
        result = func(*args, **(kwargs or {}))
        if given and (name in self.CURVED or (name in self.SUMMED and ROWS not in result.shape)):
            raise AssertionError(f"{name} over targets, {[tuple(x.shape) for x in given]}")
        return result


@pytest.mark.parametrize("task", get_args(Task))
def test_nothing_curved_is_computed_and_nothing_summed_over_targets(task: Task) -> None:
    objective, predictions = objective_of(task), predictions_of(task)
    targets = grown(targets_of(task), ROWS)
    with NotOverTargets():
        run(objective, predictions, targets)
        with pytest.raises(AssertionError, match="exp over targets"):
            targets.boxes.exp()
        with pytest.raises(AssertionError, match="sum over targets"):
            targets.boxes.sum(1)


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
def test_room_for_more_objects_changes_no_bit_on_a_gpu(task: Task) -> None:
    objective = objective_of(task).cuda()
    anchors = make_anchors(CANVAS, CANVAS, torch.device("cuda"))

    def moved(tensors: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        return [None if t is None else t.detach().cuda().requires_grad_(t.requires_grad) for t in tensors]

    for seed in range(10):
        many, one, _, *shared = predictions_of(task, seed=seed)
        predictions = Predictions(BranchOutput(*moved(many)), BranchOutput(*moved(one)), anchors, *moved(tuple(shared)))
        targets = Targets(*moved(targets_of(task, (3, 1), seed)))
        base = run(objective, predictions, targets)
        assert all(same(base, run(objective, predictions, grown(targets, rows))) for rows in (4 + seed, 64))


@pytest.mark.parametrize("task", TASKS)
def test_another_object_changes_the_loss(task: Task) -> None:
    objective, predictions = objective_of(task), predictions_of(task)
    targets = grown(targets_of(task, (3, 2)), 4)
    fewer = targets._replace(valid=targets.valid & (torch.arange(4) != 1))
    assert not same(run(objective, predictions, targets), run(objective, predictions, fewer))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("filled", [(3, 1), (0, 0)])
@pytest.mark.parametrize("task", TASKS)
def test_what_padding_and_unlabelled_points_hold_is_not_read(task: Task, filled: tuple[int, ...], bad: float) -> None:
    objective, predictions = objective_of(task), predictions_of(task)
    targets = grown(targets_of(task, filled), 4)
    spoilt = spoiled(targets, bad)
    assert any(t is not None and not bool(t.isfinite().all()) for t in spoilt)
    assert same(run(objective, predictions, targets), run(objective, predictions, spoilt))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("task", TASKS)
def test_what_anchors_predict_that_learn_nothing_costs_nothing(task: Task, bad: float) -> None:
    """Whatever it is. Their classes alone are trained."""
    objective, predictions, targets = objective_of(task), predictions_of(task), targets_of(task)
    base = run(objective, predictions, targets)
    assignments = objective.detection(predictions, targets)[1:]
    outside = ~objective.inside(targets, predictions.anchors).any(1)
    with torch.no_grad():
        for branch, assignment in zip(predictions[:2], assignments, strict=True):
            branch.distances[outside] = bad  # a box inside a target has a part in the assignment
            for tensor in branch[2:]:
                if tensor is not None:
                    tensor[~assignment.foreground] = bad
    assert same(base, run(objective, predictions, targets))


@pytest.mark.parametrize("task", TASKS)
def test_a_batch_without_objects_gives_zeros_and_no_gradient_is_absent(task: Task) -> None:
    torch.manual_seed(0)
    network, objective = Network("n", CLASSES, task, POINTS).train(), objective_of(task)
    for filled in ((0, 0), (3, 1), (0, 2)):
        parameters = dict(network.named_parameters()) | dict(objective.named_parameters())
        for parameter in parameters.values():
            parameter.grad = None
        losses = objective(network(torch.rand(2, 3, CANVAS, CANVAS)), targets_of(task, filled))
        losses.total.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in parameters.values())
        own = ("boxes.", "coefficients.", "angles.", "points.", "masks.fine", "masks.prototypes", "flow.", "couplings.")
        moved = {name: bool(p.grad.any()) for name, p in parameters.items() if any(part in name for part in own)}
        assert len(moved) > 20
        if not any(filled):
            assert not any(moved.values())
            values = losses.scalars()
            assert all(
                values[name] == 0 for name in ("mask", "keypoint", "oks", "o2m_angle", "o2o_rbox") if name in values
            )
        else:
            assert sum(moved.values()) > 0.5 * len(moved)  # those of a level without an object stay


@pytest.mark.parametrize("task", TASKS)
def test_all_is_float32_under_autocast(task: Task) -> None:
    objective, predictions, targets = objective_of(task), predictions_of(task), targets_of(task)

    def low(parts: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        return [None if t is None else t.bfloat16() for t in parts]

    many, one = (type(branch)(*low(branch)) for branch in predictions[:2])
    narrow = Predictions(many, one, predictions.anchors, *low(predictions[3:]))
    wide = Predictions(
        *(type(b)(*(None if t is None else t.float() for t in b)) for b in (many, one)),
        predictions.anchors,
        *(None if t is None else t.float() for t in narrow[3:]),
    )
    with torch.autocast("cpu", torch.bfloat16):
        found = objective(narrow, targets).scalars()
    expected = objective(wide, targets).scalars()
    assert all(value.dtype == torch.float32 for value in found.values())
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("task", get_args(Task))
def test_scalars_name_every_term_and_the_total_is_their_sum_by_gains(task: Task) -> None:
    objective, predictions, targets = objective_of(task), predictions_of(task), targets_of(task)
    gains = vars(objective.gains)
    for weight in (0.0, 0.3, 1.0):
        objective.write_scalars(weight)
        scalars = objective(predictions, targets).scalars()
        assert list(scalars) == SCALARS[task]
        share = {"o2m": weight, "o2o": 1 - weight}
        total = sum(
            value.item() * (share[name[:3]] * gains[name[4:]] if name[:3] in share else gains[name])
            for name, value in scalars.items()
            if name != "loss"
        )
        assert scalars["loss"].item() == pytest.approx(total, rel=1e-5)
        assert all(not value.requires_grad and value.shape == () for value in scalars.values())


def test_published_gains() -> None:
    assert vars(SegmentGains()) == {"box": 7.5, "cls": 0.5, "l1": 6.0, "mask": 2.5, "semantic": 0.5}
    assert vars(OrientedGains()) == {"rbox": 7.5, "cls": 0.5, "rl1": 6.0, "angle": 0.25}
    assert vars(KeypointGains()) == {"box": 7.5, "cls": 0.5, "l1": 6.0, "keypoint": 1.0, "oks": 0.0}


@pytest.mark.parametrize(("kind", "name"), [(SegmentGains, "mask"), (OrientedGains, "angle"), (KeypointGains, "oks")])
@pytest.mark.parametrize("value", [math.nan, -1.0])
def test_gains_are_checked(kind: type, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        kind(**{name: value})


@pytest.mark.parametrize(
    ("task", "given", "words"),
    [
        ("segment", "detect", "targets.masks"),
        ("obb", "detect", r"targets.rboxes of shape \(2, 3, 5\), got none"),
        ("keypoints", "detect", "3 key points of an object; targets: none"),
    ],
)
def test_targets_of_another_task_are_named(task: Task, given: Task, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        objective_of(task)(predictions_of(task), targets_of(given))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("segment", "predictions.prototypes"),
        ("obb", "task obb"),
        ("keypoints", "3 key points of an object; predictions: none"),
    ],
)
def test_predictions_of_another_task_are_named(task: Task, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        objective_of(task)(predictions_of("detect"), targets_of(task))


def test_another_number_of_points_is_named() -> None:
    with pytest.raises(ValueError, match="scores 5 key points"):
        KeypointObjective(5)(predictions_of("keypoints"), targets_of("keypoints"))


@pytest.mark.parametrize("kind", [SegmentObjective, KeypointObjective])
def test_capacity_is_checked(kind: type) -> None:
    with pytest.raises(ValueError, match="0"):
        kind(capacity=0)

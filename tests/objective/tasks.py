"""Targets, predictions and objectives of every task, for tests."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lucid_core.network.anchors import make_anchors
from lucid_core.network.rotated import canonical
from lucid_core.objective.keypoints import KeypointObjective
from lucid_core.objective.objective import Objective
from lucid_core.objective.oriented import OrientedObjective
from lucid_core.objective.segment import SegmentObjective
from lucid_core.types import BranchOutput, Predictions, Targets, Task

CANVAS, CLASSES, POINTS = 64, 3, 3
#: Every task that adds something, and key points without a flow.
TASKS: tuple[Task, ...] = ("segment", "obb", "keypoints")


def objective_of(task: Task, seed: int = 0) -> Objective:
    """An objective, whose flow has learnt something already."""
    if task == "segment":
        return SegmentObjective(capacity=12)
    if task == "obb":
        return OrientedObjective()
    if task == "detect":
        return Objective()
    torch.manual_seed(seed)
    objective = KeypointObjective(POINTS, capacity=12)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return objective


def targets_of(task: Task, filled: tuple[int, ...] = (3, 1), seed: int = 0) -> Targets:
    """Random objects, as many in each image as ``filled`` says, with no more room than needed."""
    random = torch.Generator().manual_seed(seed)
    batch, rows = len(filled), max(1, *filled)
    valid = torch.arange(rows) < torch.tensor(filled).unsqueeze(1)
    sides = 6 + torch.rand(batch, rows, 2, generator=random) * 34
    centres = 8 + torch.rand(batch, rows, 2, generator=random) * (CANVAS - 16)
    turn = (torch.rand(batch, rows, 1, generator=random) - 0.5) * 2 * math.pi
    boxes = torch.cat((centres - sides / 2, centres + sides / 2), 2)
    rboxes = points = masks = visibility = None
    if task == "obb":
        rboxes = canonical(torch.cat((centres, sides, turn), 2))
        w, h, angle = rboxes[..., 2:].unbind(2)
        half = torch.stack(
            (w * angle.cos().abs() + h * angle.sin().abs(), w * angle.sin().abs() + h * angle.cos().abs()), 2
        )
        boxes = torch.cat((centres - half / 2, centres + half / 2), 2)
    if task == "segment":
        cells = (torch.arange(CANVAS // 4) + 0.5) * 4
        grid = torch.stack(torch.meshgrid(cells, cells, indexing="xy"), -1)
        apart = (grid - centres[:, :, None, None]) / (sides[:, :, None, None] / 2)
        masks = (apart.square().sum(-1) < 1) & valid[:, :, None, None]
    if task == "keypoints":
        points = boxes[..., None, :2] + torch.rand(batch, rows, POINTS, 2, generator=random) * sides[..., None, :]
        visibility = torch.randint(0, 3, (batch, rows, POINTS), generator=random) * valid.unsqueeze(2)
    labels = torch.randint(0, CLASSES, (batch, rows), generator=random)
    targets = Targets(boxes, labels, valid, masks, rboxes, points, visibility)
    return Targets(*(None if t is None else zeroed(t, valid) for t in targets))


def zeroed(tensor: Tensor, valid: Tensor) -> Tensor:
    """The rows of objects, and zeros elsewhere."""
    return torch.where(valid.reshape(*valid.shape, *[1] * (tensor.ndim - 2)), tensor, torch.zeros_like(tensor))


def grown(targets: Targets, rows: int) -> Targets:
    """The same objects, with room for more."""
    more = rows - targets.valid.shape[1]
    return Targets(
        *(None if t is None else torch.cat((t, t.new_zeros(len(t), more, *t.shape[2:])), 1) for t in targets)
    )


def predictions_of(task: Task, batch: int = 2, seed: int = 0) -> Predictions:
    """Random raw predictions, of which some boxes fit something; every tensor is a leaf."""
    random = torch.Generator().manual_seed(seed)
    anchors = make_anchors(CANVAS, CANVAS, torch.device("cpu"))
    count = len(anchors.centres)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(batch, *shape, generator=random).requires_grad_()

    def branch() -> BranchOutput:
        output = BranchOutput(leaf(count, CLASSES), (leaf(count, 4).detach().abs() + 0.5).requires_grad_())
        if task == "segment":
            return output._replace(coefficients=leaf(count, 32).detach().tanh().requires_grad_())
        if task == "obb":
            return output._replace(angles=leaf(count, 1))
        if task == "keypoints":
            return output._replace(points=leaf(count, POINTS, 2), sigmas=leaf(count, POINTS, 2))
        return output

    shared = (leaf(32, CANVAS // 4, CANVAS // 4), leaf(CLASSES, CANVAS // 8, CANVAS // 8)) if task == "segment" else ()
    return Predictions(branch(), branch(), anchors, *shared)


def leaves_of(predictions: Predictions) -> list[Tensor]:
    """Every tensor that a network would have made."""
    found = [*predictions.one_to_many, *predictions.one_to_one, predictions.prototypes, predictions.semantic]
    return [t for t in found if t is not None]

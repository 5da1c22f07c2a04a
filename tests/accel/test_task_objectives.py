"""The objective of every task behind a recording: the same bytes as natively."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lucid_core.network.anchors import make_anchors
from lucid_core.types import BranchOutput, Losses, Predictions, Targets, Task
from tests.accel.graphs.twin import Twin
from tests.objective.tasks import CANVAS, TASKS, grown, objective_of, predictions_of, targets_of


class Scored(nn.Module):
    """Predictions that are parameters, times what goes in, and their objective."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        many, one, _, *shared = predictions_of(task)
        parts = {"many": many._asdict(), "one": one._asdict()}
        parts["shared"] = dict(zip(("prototypes", "semantic"), shared, strict=True))
        for name, part in parts.items():
            leaves = {key: nn.Parameter(x.detach()) for key, x in part.items() if x is not None}
            self.add_module(name, nn.ParameterDict(leaves))
        self.objective = objective_of(task)

    def forward(self, scale: Tensor, targets: Targets) -> Losses:
        many, one, shared = (
            {key: leaf * scale for key, leaf in self.get_submodule(name).items()} for name in ("many", "one", "shared")
        )
        anchors = make_anchors(CANVAS, CANVAS, torch.device("cpu"))
        return self.objective(Predictions(BranchOutput(**many), BranchOutput(**one), anchors, **shared), targets)


@pytest.mark.parametrize("task", TASKS)
def test_a_recording_follows_through_empty_and_fuller_batches(task: Task) -> None:
    twin = Twin(Scored(task), growable=(1,))
    fills = [(3, 1), (0, 2), (2, 2), (4, 0), (0, 0), (1, 3), (6, 1), (0, 0), (8, 8), (2, 0)]
    for seed, filled in enumerate(fills):
        targets = grown(targets_of(task, filled, seed), 4 if max(filled) <= 4 else 8)
        for step in (twin.native, twin.module):
            step.objective.write_scalars(seed / 10)
        twin.step(torch.tensor(1 - seed / 20), targets, loss=lambda losses: losses.total, update=seed % 2 == 0)
    assert twin.calls.count("replay") >= 4, (twin.calls, twin.notes.retirements)
    assert not twin.notes.retirements

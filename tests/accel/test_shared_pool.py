"""Groups recorded in another order than they run in: one pool, as on a GPU, must not mix up their updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from lucid_accel import OrthogonalizationReplay, UpdateReplay
from lucid_accel.graphs.engine import Graph
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.graphs.witness import tensors_in
from tests.accel.pair import Pair, noise

T = TypeVar("T")


class SharedPool(TapeEngine):
    """What a capture made may lie in memory that an earlier capture, which is done with it, works in."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.made: list[list[Tensor]] = []

    def capture(self, body: Callable[[], T], after: Graph | None = None) -> tuple[Graph, T]:
        tape, result = super().capture(body, after)
        results = tensors_in([call[3] for call in tape._calls])  # type: ignore[attr-defined]
        inside = tape._made  # type: ignore[attr-defined]
        self.made.append([x for x in results if x.untyped_storage().data_ptr() in inside and x.is_floating_point()])
        return Overwriting(self, len(self.made), tape), result


class Overwriting:
    """A graph that leaves nothing of what later captures made."""

    def __init__(self, engine: SharedPool, number: int, tape: Graph) -> None:
        self.engine, self.number, self.tape = engine, number, tape

    def replay(self) -> None:
        for later in self.engine.made[self.number :]:
            for x in later:
                x.detach().fill_(torch.nan)
        self.tape.replay()


@pytest.mark.parametrize("replay", [UpdateReplay, OrthogonalizationReplay])
def test_the_first_group_may_be_recorded_last(replay: type[UpdateReplay] | type[OrthogonalizationReplay]) -> None:
    def frozen(params: Sequence[nn.Parameter]) -> list[Tensor | None]:
        return [None, *noise(params)[1:]]

    pair = Pair([(4, 6), (5, 3), (7,)], [(6, 8), (3, 3)], replay=replay, engine=SharedPool)
    while pair.step(frozen) != ["replay", "replay"]:
        assert pair.steps < 20
    while pair.step() != ["replay", "replay"]:
        assert pair.steps < 40
    for _ in range(3):
        assert pair.step() == ["replay", "replay"]

"""Groups recorded in another order than they run in: one pool, as on a GPU, must not mix up their updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn

from lucid_accel import OrthogonalizationReplay, UpdateReplay
from lucid_accel.graphs.engine import Graph, use_engine
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.graphs.witness import tensors_in
from tests.accel.pair import Pair, noise
from tests.accel.steps import CLIPPED, Averaged, parity

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


def test_the_average_may_be_updated_while_a_step_waits_for_its_backward() -> None:
    """Lightning calls hooks there, when activations lie where a graph of the same pool might work."""

    class Restless(Callback):
        def on_before_backward(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
            module.average.write_scalars()  # type: ignore[operator, union-attr]
            module.average.update()  # type: ignore[operator, union-attr]

    with use_engine(SharedPool):
        replay = parity(Averaged, callbacks=lambda: [Restless()], max_epochs=4, **CLIPPED)
    assert all(replay.replays())

"""How replays of the optimizer end: failures, exceptions, interrupts, a second fit; nothing is left of them."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lucid_accel import AccelerationError, OrthogonalizationReplay, UpdateReplay
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.testing import assert_parity, run
from lucid_core import seams
from lucid_core.optim.musgd import MuSGD
from tests.accel.conftest import Act, batches, fit, warned
from tests.accel.muon import Muon, at, counted, given_back, of

REPLAYS = (UpdateReplay, OrthogonalizationReplay)

both_replays = pytest.mark.parametrize("replay", REPLAYS, ids=lambda kind: kind.__name__)


class Reading(MuSGD):
    """Reads a value back, which nothing can record."""

    def _orthogonal(self, directions: Any, steps: int, w_muon: float) -> list[list[Tensor]]:
        assert all(x.isfinite().all().item() for alike in directions for x in alike)
        return super()._orthogonal(directions, steps, w_muon)


class Fuse(MuSGD):
    """Fails within a recording."""

    error: BaseException = torch.OutOfMemoryError("too much")

    def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
        if TapeEngine._open:
            raise self.error
        return super().orthogonalize(stacks, steps)


class Interrupted(Fuse):
    error = KeyboardInterrupt()


@pytest.mark.parametrize("failing", [Reading, Fuse])
def test_a_recording_that_fails_retires_with_the_native_bytes(tape: None, failing: Any) -> None:
    class Failing(Muon):
        kind = failing

    replay = UpdateReplay()
    with warned() as texts:
        assert_parity(Failing, batches, [replay], must_replay=False)
    assert counted(replay) == {"replayed": 0, "warmup": 1, "capture_failed": 1, "retired": 14}
    assert len(texts) == 1
    assert "could not be recorded" in texts[0]


@pytest.mark.parametrize("failing", [Reading, Fuse, Interrupted])
def test_or_stops_the_run_and_leaves_gradients_and_momentum(tape: None, failing: Any) -> None:
    class Failing(Muon):
        kind = failing

    def watched(module: LightningModule) -> dict[str, Tensor]:
        state = of(module).state
        kept = {f"{name}.momentum": state[x]["momentum"] for name, x in module.named_parameters() if x in state}
        return {name: x.detach().clone() for name, x in {**module.state_dict(), **kept}.items()}

    module, notes = Failing(), []
    note = Act("on_before_optimizer_step", 1, lambda _, module: notes.append(watched(module)))
    gradients = Act("on_before_optimizer_step", 1, lambda *_: notes.append([x.grad for x in module.parameters()]))
    expected: Any = SystemExit if failing is Interrupted else AccelerationError
    with pytest.raises((expected, KeyboardInterrupt)):
        fit([UpdateReplay(on_failure="raise"), note, gradients], module)
    assert [x.grad is y for x, y in zip(module.parameters(), notes[1], strict=True)] == [True] * 8
    after = watched(module)
    assert after.keys() == notes[0].keys()
    assert all(torch.equal(after[name], x) for name, x in notes[0].items())
    assert gc.isenabled()
    assert given_back(module)


@both_replays
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_exception_in_the_middle_gives_everything_back_and_a_second_fit_replays(
    tape: None, replay: Any, error: Any
) -> None:
    def stop(_: Any) -> None:
        raise error

    accelerated = replay(strict=True)
    with pytest.raises((error, SystemExit)):
        fit([accelerated, *at(6, do=stop)()], module := Muon())
    assert given_back(module)
    assert gc.isenabled()
    assert accelerated._routers == [] and accelerated._taken is None
    assert_parity(Muon, batches, [accelerated])
    assert counted(accelerated) == {"replayed": 13, "warmup": 3}


@both_replays
def test_nothing_is_left_in_the_checkpoint_or_in_copies(tape: None, replay: Any) -> None:
    def look(accelerations: list[Any]) -> list[Any]:
        kept: list[Any] = []
        run(Muon, batches, [*accelerations, *at(6, do=lambda m: kept.extend((set(vars(of(m))), copied(m))))()])
        return kept

    def copied(module: LightningModule) -> bool:
        pickle.dumps(accelerated)
        return copy.deepcopy(of(module)) in seams._bound

    accelerated = replay(strict=True)
    assert look([]) == look([accelerated])
    other = pickle.loads(pickle.dumps(accelerated))
    assert other._routers == [] and other._taken is None and other.state == "off"
    assert accelerated.state_dict() == {}


@both_replays
def test_anomaly_mode_is_a_no(tape: None, replay: Any) -> None:
    with warned() as texts:
        assert_parity(Muon, batches, [replay()], must_replay=False, detect_anomaly=True)
    assert len(texts) == 1
    assert "detect_anomaly" in texts[0]

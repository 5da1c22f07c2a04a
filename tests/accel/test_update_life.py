"""Replays of the optimizer through what a run does to it: loaded state, added groups, failures, copies, contexts."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from lucid_accel import OrthogonalizationReplay, UpdateReplay
from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.single import SingleRecording
from lucid_accel.graphs.tape import TapeEngine
from lucid_core.optim.musgd import MuSGD
from tests.accel.pair import SHAPES, Pair, noise, parameters, replaying

REPLAYS = (UpdateReplay, OrthogonalizationReplay)

both_replays = pytest.mark.parametrize("replay", REPLAYS, ids=lambda kind: kind.__name__)


# Loaded state, added groups, moved memory


def reload(optimizer: MuSGD) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def test_loaded_state_drops_the_recording_which_is_made_again() -> None:
    pair = replaying()
    pair.both(reload)
    assert [pair.step() for _ in range(4)] == [["warmup"]] * 3 + [["replay"]]
    assert (len(pair.notes.rearms), pair.notes.captures, pair.notes.retirements) == (1, 2, [])


def test_other_state_is_loaded_not_the_one_that_was_recorded() -> None:
    pair = replaying()
    early = copy.deepcopy(pair.behind.state_dict())
    for _ in range(3):
        pair.step()
    pair.both(lambda optimizer: optimizer.load_state_dict(copy.deepcopy(early)))
    assert [pair.step() for _ in range(4)][-1] == ["replay"]


def test_state_that_is_loaded_for_the_fourth_time_is_the_end() -> None:
    pair = replaying()
    for _ in range(3):
        pair.both(reload)
        assert [pair.step() for _ in range(4)][-1] == ["replay"]
    pair.both(reload)
    assert [pair.step(), pair.step()] == [["storage"], ["retired"]]
    assert len(pair.notes.rearms) == 3


def test_the_orthogonalisation_has_no_state_that_could_be_loaded() -> None:
    pair = replaying(replay=OrthogonalizationReplay)
    for _ in range(5):
        pair.both(reload)
        assert pair.step() == ["replay"]


@both_replays
def test_an_added_group_is_learnt_and_replayed(replay: Any) -> None:
    pair = replaying(replay=replay)

    def grow(optimizer: MuSGD) -> None:
        torch.manual_seed(5)
        optimizer.add_param_group({"params": [nn.Parameter(torch.randn(6, 7))], "lr": 0.01})

    pair.both(grow)
    calls = [pair.step() for _ in range(13)]
    assert calls[0][1] != "replay"
    assert calls[-1] == ["replay", "replay"]
    assert len(pair.notes.rearms) == (1 if replay is UpdateReplay else 0)


MOVES: dict[str, Callable[[MuSGD], Any]] = {
    "a parameter": lambda optimizer: moved(parameters(optimizer)[3]),
    "a momentum": lambda optimizer: moved(optimizer.state[parameters(optimizer)[3]]["momentum"]),
}


def moved(x: Tensor) -> None:
    x.data = x.data.clone()


@pytest.mark.parametrize("name", MOVES)
def test_what_was_moved_is_the_end_for_the_update_and_nothing_to_the_orthogonalisation(name: str) -> None:
    pair = replaying()
    pair.both(MOVES[name])
    assert [pair.step(), pair.step()] == [["storage"], ["retired"]]
    assert [str(reason) for reason, *_ in pair.notes.retirements] == ["storage"]
    other = replaying(replay=OrthogonalizationReplay)
    other.both(MOVES[name])
    assert other.step() == ["replay"]


def test_a_gradient_where_a_moved_momentum_lay_does_not_hide_the_move() -> None:
    pair = replaying()
    left = []

    def leave(optimizer: MuSGD) -> None:
        momentum = optimizer.state[parameters(optimizer)[3]]["momentum"]
        left.append(momentum.data)
        moved(momentum)

    pair.both(leave)
    natively, behind = left
    assert same_bits(natively, behind)
    places = iter(left)

    def gradients(params: Sequence[nn.Parameter]) -> list[Tensor]:
        return [*noise(params[:3]), next(places), *noise(params[4:])]

    assert [pair.step(gradients), pair.step()] == [["storage"], ["retired"]]


def test_what_is_changed_where_it_lies_is_read_anew() -> None:
    pair = replaying()
    pair.both(lambda optimizer: [x.data.mul_(0.5) for x in parameters(optimizer)])
    assert pair.step() == ["replay"]
    pair.both(lambda optimizer: [state["momentum"].zero_() for state in optimizer.state.values()])
    assert pair.step() == ["replay"]


def test_an_exchanged_momentum_is_not_mistaken_for_the_recorded_one() -> None:
    pair = replaying()

    def exchange(optimizer: MuSGD) -> None:
        for state in optimizer.state.values():
            state["momentum"] = state["momentum"] * 2

    pair.both(exchange)
    assert pair.step() != ["replay"]


def test_parameters_that_change_their_dtype_are_native_again() -> None:
    pair = replaying()

    def widen(optimizer: MuSGD) -> None:
        for param in parameters(optimizer):
            param.grad = None
            param.data = param.data.double()
            optimizer.state[param]["momentum"] = optimizer.state[param]["momentum"].double()

    pair.both(widen)
    assert [pair.step() for _ in range(3)] == [["dtype"]] * 3


def test_one_parameter_twice_in_a_group_is_native() -> None:
    pair = Pair(((3, 4), (5,)))
    pair.both(lambda optimizer: optimizer.param_groups[0]["params"].append(parameters(optimizer)[0]))
    assert {call for _ in range(6) for call in pair.step()} == {"warmup", "alias"}


# Contexts


@both_replays
def test_contexts_are_native_and_the_recording_stays(replay: Any) -> None:
    pair = replaying(replay=replay)
    contexts: dict[str, Callable[[], Any]] = {
        "precision": lambda: torch.autocast("cpu", torch.bfloat16),
        "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    }
    for reason, context in contexts.items():
        with context():
            assert pair.step() == [reason]
        assert pair.step() == ["replay"]
    TapeEngine._open = True
    try:
        assert pair.step() == ["foreign_capture"]
    finally:
        TapeEngine._open = False
    assert pair.step() == ["replay"]


@pytest.mark.parametrize(("mode", "reason"), [(torch.enable_grad, "grad_enabled"), (torch.inference_mode, "inference")])
def test_the_seam_called_with_gradients_on_or_in_inference_mode_is_native(
    mode: Callable[[], contextlib.AbstractContextManager[None]], reason: str
) -> None:
    pair = replaying()
    results = []
    for optimizer in pair.optimizers:
        for param in parameters(optimizer):
            param.grad = torch.ones_like(param)
            param.requires_grad_(False)
        with mode():
            group, scalars = optimizer.param_groups[0], optimizer._scalars[0]
            results.append(optimizer.prepare(group["params"], group, scalars.weight_decay))
    assert pair.notes.calls[-1] == reason
    assert all(map(same_bits, *results))
    pair.compare()
    pair.both(lambda optimizer: [x.requires_grad_(True) for x in parameters(optimizer)])
    assert pair.step() == ["replay"]


@both_replays
def test_suspended_it_is_native_and_goes_on(replay: Any) -> None:
    pair = replaying(replay=replay)
    pair.routine.suspend()
    assert [pair.step(), pair.step()] == [["disabled"]] * 2
    pair.routine.resume()
    assert pair.step() == ["replay"]
    assert pair.notes.captures == 1


# Subclasses


class Reading(MuSGD):
    def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
        assert all(x.isfinite().all().item() for x in stacks)
        return super().orthogonalize(stacks, steps)


class Failing(MuSGD):
    """Fails within a recording, in one way or another."""

    error: BaseException = ZeroDivisionError("boom")

    def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
        if TapeEngine._open:
            raise self.error
        return super().orthogonalize(stacks, steps)


class OutOfMemory(Failing):
    error = torch.OutOfMemoryError("too much")


class Interrupted(Failing):
    error = KeyboardInterrupt()


@pytest.mark.parametrize("proof", [True, False])
@pytest.mark.parametrize("kind", [Reading, Failing, OutOfMemory])
def test_a_failed_recording_leaves_gradients_and_momentum_and_is_the_end(kind: type[MuSGD], proof: bool) -> None:
    pair = Pair(kind=kind, proof=proof)
    calls = [pair.step() for _ in range(5)]
    # Each step compares gradients, their identity, momentum and parameters.
    assert calls == [["warmup"]] * (1 if proof else 2) + [["capture_failed"]] + [["retired"]] * (3 if proof else 2)
    assert gc.isenabled()


def test_an_interrupted_recording_leaves_gradients_and_momentum() -> None:
    pair = Pair(kind=Interrupted)
    pair.step()
    params = parameters(pair.behind)
    before = [(x.detach().clone(), pair.behind.state[x]["momentum"].clone()) for x in params]
    gradients = [torch.randn_like(x) for x in params]
    for param, gradient in zip(params, gradients, strict=True):
        param.grad = gradient
    with pytest.raises(KeyboardInterrupt):
        pair.behind.step()
    for param, gradient, (value, momentum) in zip(params, gradients, before, strict=True):
        assert param.grad is gradient
        assert same_bits(param, value) and same_bits(pair.behind.state[param]["momentum"], momentum)
    assert gc.isenabled() and not TapeEngine._open


def test_a_subclass_of_the_iteration_around_it_is_replayed() -> None:
    class Ordered(MuSGD):
        """Moves one parameter after the other."""

        @torch.no_grad()
        def update(self) -> None:
            for group, scalars in zip(self.param_groups, self._scalars, strict=True):
                for param in reversed(group["params"]):
                    self.apply([param], self.prepare([param], group, scalars.weight_decay), scalars.lr)

    pair = Pair(((3, 4), (5, 6)), replay=OrthogonalizationReplay, kind=Ordered)
    assert [pair.step() for _ in range(13)][-1] == ["replay", "replay"]


def test_hooks_and_a_scheduler_around_the_step_are_kept() -> None:
    pair = replaying()
    seen: list[str] = []
    schedules = [LambdaLR(optimizer, lambda step: 1 / (1 + step)) for optimizer in pair.optimizers]
    pair.behind.register_step_pre_hook(lambda *_: seen.append("before"))
    pair.behind.register_step_post_hook(lambda *_: seen.append("after"))
    calls = []
    for _ in range(12):
        calls += pair.step()
        for schedule in schedules:
            schedule.step()
    # A scheduler writes one setting of its own into the groups, before the fit as a rule.
    assert calls == ["scalars"] * 9 + ["warmup"] + ["replay"] * 2
    assert seen == ["before", "after"] * 12


def test_a_closure_runs_with_gradients_on_before_the_replay() -> None:
    pair = replaying(((3, 4),))

    def closure(optimizer: MuSGD) -> Tensor:
        param = parameters(optimizer)[0]
        assert torch.is_grad_enabled()
        param.grad = None
        loss = param.square().sum()
        loss.backward()
        return loss

    losses = [optimizer.step(partial(closure, optimizer)) for optimizer in pair.optimizers]
    assert same_bits(*losses)
    pair.compare()
    assert pair.notes.calls[-1] == "replay"


# Copies


def copied(optimizer: MuSGD) -> MuSGD:
    return copy.deepcopy(optimizer)


def pickled(optimizer: MuSGD) -> MuSGD:
    other: MuSGD = pickle.loads(pickle.dumps(optimizer))
    return other


def saved(optimizer: MuSGD) -> MuSGD:
    room = io.BytesIO()
    torch.save(optimizer, room)
    room.seek(0)
    other: MuSGD = torch.load(room, weights_only=False)
    return other


@both_replays
@pytest.mark.parametrize("duplicate", [copied, pickled, saved])
def test_a_copy_goes_on_natively_and_the_original_goes_on_replaying(
    replay: Any, duplicate: Callable[[MuSGD], MuSGD]
) -> None:
    pair = replaying(replay=replay)
    assert vars(pair.behind).keys() == vars(pair.native).keys()
    other = duplicate(pair.behind)
    for one, own in zip(parameters(other), parameters(pair.native), strict=True):
        one.grad = None if own.grad is None else torch.ones_like(own)
    told = len(pair.notes.calls)
    other.step()
    assert len(pair.notes.calls) == told
    assert pair.step(lambda params: list(map(torch.ones_like, params))) == ["replay"]
    assert all(map(same_bits, parameters(other), parameters(pair.native)))


@both_replays
def test_its_state_is_that_of_a_native_one(replay: Any) -> None:
    states = [optimizer.state_dict() for optimizer in replaying(replay=replay).optimizers]
    assert [set(state) for state in states] == [{"state", "param_groups"}] * 2
    assert states[0]["param_groups"] == states[1]["param_groups"]
    assert [set(x) for x in states[0]["state"].values()] == [set(x) for x in states[1]["state"].values()]


# The comparison can fail


def stale(self: SingleRecording, job: Job) -> list[Tensor]:
    assert self._graph is not None
    self._graph.replay()
    return self._outputs.owned()


@both_replays
def test_a_recording_that_forgets_to_copy_in_is_caught(replay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SingleRecording, "__call__", stale)
    pair = Pair(replay=replay)
    assert [pair.step() for _ in range(4)] == [["warmup"]] * 3 + [["retired"]]
    assert [str(reason) for reason, *_ in pair.notes.retirements] == ["unlike"]
    pair = Pair(replay=replay, proof=False)
    with pytest.raises(AssertionError, match=r"parameter \d+ differs"):
        [pair.step() for _ in range(4)]


def test_many_steps_and_several_groups_with_a_second_proof_in_between() -> None:
    pair = replaying(SHAPES, ((5, 2), (3,)))
    calls = [call for step in range(120) for call in (pair.set(lr=0.1 / (step + 1)), *pair.step())[1:]]
    assert (calls.count("replay"), calls.count("warmup")) == (238, 2)
    assert pair.notes.proofs == 4

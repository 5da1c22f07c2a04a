"""The optimizer's update and its orthogonalisation, replayed: every byte beside a native optimizer, step by step."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from lucid_accel import OrthogonalizationReplay, UpdateReplay
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.shelf import RECORDED
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.replay.optimizer import same_state
from lucid_core.optim.musgd import MuSGD
from lucid_core.optim.newton_schulz import newton_schulz
from lucid_core.optim.stacks import plan_stacks
from lucid_core.seams import seam
from tests.accel.pair import SHAPES, Pair, noise, parameters, replaying

REPLAYS = (UpdateReplay, OrthogonalizationReplay)

both_replays = pytest.mark.parametrize("replay", REPLAYS, ids=lambda kind: kind.__name__)


# Values


@both_replays
@pytest.mark.parametrize(
    "shapes",
    [
        (SHAPES,),
        (((3, 20),),),
        (((20, 3),),),
        (((4, 4),) * 5,),
        (((8, 3, 3, 3), (8, 4, 1, 1)),),
        (((6, 2, 3),),),
        (((0, 3), (2, 3), (0,)),),
        (((1, 1), (1,)),),
        (SHAPES, ((5, 2), (3,)), ((2, 2),)),
    ],
    ids=str,
)
def test_shapes(replay: Any, shapes: Any) -> None:
    pair = replaying(*shapes, replay=replay)
    assert [set(pair.step()) for _ in range(3)] == [{"replay"}] * 3


@both_replays
@pytest.mark.parametrize("name", ["channels last", "gaps"])
def test_parameters_in_other_layouts(replay: Any, name: str) -> None:
    def laid_out(x: Tensor) -> Tensor:
        if name == "channels last":
            return x.to(memory_format=torch.channels_last)
        return torch.cat((x, x), -1)[..., : x.shape[-1]]

    pair = Pair(((8, 3, 3, 3), (4, 8, 2, 2)), replay=replay, prepare=laid_out)
    calls = [pair.step() for _ in range(5)]
    # Parameters with gaps are read where they lie, so they are not recorded; stacks of matrices are packed anew.
    native = name == "gaps" and replay is UpdateReplay
    assert calls[-1] == ["stride" if native else "replay"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_other_dtypes_are_native_for_the_update_and_replayed_for_the_orthogonalisation(dtype: torch.dtype) -> None:
    for replay, last in ((UpdateReplay, "dtype"), (OrthogonalizationReplay, "replay")):
        pair = Pair(SHAPES, replay=replay, prepare=lambda x: x.to(dtype))
        assert [pair.step() for _ in range(5)][-1] == [last]


@both_replays
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-30, 1e30, torch.inf, torch.nan])
def test_gradients_that_are_zero_tiny_huge_or_not_finite(replay: Any, value: float) -> None:
    pair = replaying(replay=replay)
    assert pair.step(lambda params: [torch.full_like(param, value) for param in params]) == ["replay"]
    assert pair.step() == ["replay"]


@both_replays
def test_with_no_share_of_the_orthogonal_direction_none_is_computed(replay: Any) -> None:
    pair = Pair(SHAPES, replay=replay, w_muon=0.0)
    calls = [pair.step() for _ in range(5)]
    assert calls[-1] == ([] if replay is OrthogonalizationReplay else ["replay"])
    assert pair.notes.captures == (0 if replay is OrthogonalizationReplay else 1)


def test_vectors_alone_have_nothing_to_orthogonalise() -> None:
    pair = Pair(((7,), ()), replay=OrthogonalizationReplay)
    assert [pair.step() for _ in range(5)] == [["missing_grad"]] * 5


@both_replays
def test_the_first_step_makes_the_momentum_and_proof_takes_one_more(replay: Any) -> None:
    for proof, natively in ((True, 3), (False, 1)):
        pair = Pair(replay=replay, proof=proof)
        calls = [pair.step() for _ in range(5)]
        assert calls.count(["replay"]) == 2 if proof else 3
        assert calls[:natively] == [["warmup"]] * natively


# Settings


@both_replays
def test_the_rate_and_the_decay_change_at_every_step(replay: Any) -> None:
    pair = replaying(SHAPES, ((5, 2), (3,)), replay=replay)
    for step in range(10):
        pair.set(lr=0.1 / (1 + step), weight_decay=0.02 * step)
        assert pair.step() == ["replay", "replay"]


@both_replays
def test_an_attribute_that_a_subclass_reads_is_watched(replay: Any) -> None:
    class Scaled(MuSGD):
        scale = 1.0

        @seam("update.prepare.orthogonalize")
        def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
            return [newton_schulz(x, steps) * self.scale for x in stacks]

    pair = replaying(kind=Scaled, replay=replay)
    assert pair.step() == ["replay"]
    for optimizer in pair.optimizers:
        optimizer.scale = 2.0  # type: ignore[attr-defined]
    assert pair.step() == ["scalars"]


def test_more_groups_than_signatures_are_kept_of_one() -> None:
    pair = replaying(*[((3, size), (size,)) for size in range(4, 16)])
    assert pair.step() == ["replay"] * 12


def test_results_are_lent_to_the_update_and_owned_elsewhere() -> None:
    for replay, lent in ((UpdateReplay, True), (OrthogonalizationReplay, False)):
        pair = replaying(replay=replay)
        results = []
        recording = next(family.recorded()[0][1] for family in pair.routine._families.values())
        for _ in range(2):
            inputs = [torch.randn_like(x) for x in recording._inputs.slots]
            results.append(recording(Job(lambda x: x, inputs, inputs[0].device))[0])
        assert (results[0].data_ptr() == results[1].data_ptr()) is lent


@both_replays
def test_stacks_are_recorded_as_branches_each_for_itself(replay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = []

    def branches(engine: TapeEngine, bodies: Sequence[Any]) -> list[Any]:
        parted.append(len(bodies))
        return native(engine, bodies)

    native = TapeEngine.branches
    monkeypatch.setattr(TapeEngine, "branches", branches)
    shapes = ((3, 20), (40, 40), (2, 200))
    pair = replaying(shapes, replay=replay)
    assert parted == [len(plan_stacks(shapes))] == [3]
    assert "orthogonalize" not in vars(pair.behind)


def test_an_orthogonalisation_that_one_optimizer_has_of_its_own_is_left_as_it_is() -> None:
    pair = Pair(((3, 20), (40, 40)))
    for optimizer in pair.optimizers:

        def halved(stacks: Sequence[Tensor], steps: int, optimizer: MuSGD = optimizer) -> list[Tensor]:
            return [x * 0.5 for x in MuSGD.orthogonalize(optimizer, stacks, steps)]

        optimizer.orthogonalize = halved  # type: ignore[method-assign]
    assert [pair.step() for _ in range(5)][-1] == ["replay"]
    assert vars(pair.behind)["orthogonalize"] is pair.behind.orthogonalize


class TwoRooms(MuSGD):
    """Writes its momentum to one of two tensors in turn, so that every second step has the same ones."""

    @seam("update.prepare")
    def prepare(self, params: Sequence[Tensor], group: dict[str, Any], weight_decay: Tensor) -> list[Tensor]:
        for param in params:
            room = self.__dict__.setdefault("_rooms", {}).pop(param, None)
            self._rooms[param] = old = self.state[param]["momentum"]
            self.state[param]["momentum"] = (torch.empty_like(old) if room is None else room).copy_(old).mul_(0.9)
            self.state[param]["momentum"].add_(param.grad)
        return [param.grad + self.state[param]["momentum"] for param in params]


def test_a_momentum_that_is_exchanged_is_not_recorded() -> None:
    pair = Pair(((4, 4),), kind=TwoRooms, proof=False)
    assert ["replay"] not in [pair.step() for _ in range(12)]
    (retired,) = pair.notes.retirements
    assert "exchanges" in str(retired)


def test_a_recording_that_would_exchange_the_state_is_refused_and_leaves_it() -> None:
    optimizer = TwoRooms([nn.Parameter(torch.ones(4, 4))], lr=0.1)
    (param,) = parameters(optimizer)
    param.grad = torch.ones(4, 4)
    optimizer.write_scalars()
    momentum = optimizer.state[param]["momentum"]
    with pytest.raises(ValueError, match="exchanges"), same_state(optimizer, [param]):
        optimizer.prepare([param], optimizer.param_groups[0], torch.zeros(()))
    assert optimizer.state[param]["momentum"] is momentum


def test_what_was_merely_seen_is_not_kept() -> None:
    pair = Pair(((4, 4),))
    pair.step()
    (state,) = pair.behind.state.values()
    old, state["momentum"] = ref(state["momentum"]), state["momentum"].clone()
    gc.collect()
    assert old() is None


def test_what_is_exchanged_at_every_step_is_not_kept() -> None:
    def exchange(optimizer: MuSGD) -> None:
        for state in optimizer.state.values():
            state["momentum"] = state["momentum"].clone()

    pair, made = Pair(((4, 4),)), []
    for _ in range(60):
        pair.step()
        pair.both(exchange)
        made += [ref(state["momentum"]) for state in pair.behind.state.values()]
    gc.collect()
    assert sum(one() is not None for one in made) <= 1 + RECORDED


@both_replays
def test_an_orthogonalisation_that_needs_one_stack_for_the_next_is_not_parted(replay: Any) -> None:
    class Chained(MuSGD):
        @seam("update.prepare.orthogonalize")
        def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
            norms = [torch.linalg.vector_norm(stack) for stack in stacks]
            return [newton_schulz(stack, steps) * norm for stack, norm in zip(stacks, norms[::-1], strict=True)]

    pair = replaying(((3, 20), (40, 40), (2, 200)), kind=Chained, replay=replay)
    assert pair.step() == ["replay"]


def test_a_rate_that_was_recorded_would_be_seen() -> None:
    class Baked(MuSGD):
        """The rate enters the update: what a recording must not freeze."""

        def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
            return [x * self.param_groups[0]["lr"] for x in super().orthogonalize(stacks, steps)]

    pair = replaying(kind=Baked)
    pair.set(lr=0.05)
    with pytest.raises(AssertionError, match="parameter 0 differs"):
        pair.step()


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("momentum", 0.95, 0.5),
        ("momentum", 0.0, -0.0),
        ("momentum", -0.0, 0.0),
        ("momentum", 0.0, 0),
        ("w_muon", 0.5, 0.0),
        ("w_muon", 1.0, 1),
        ("w_sgd", 0.5, 0.25),
        ("ns_steps", 5, 3),
        ("ns_steps", 1, True),
        ("note", "a", "b"),
    ],
)
def test_a_setting_that_changes_is_native_and_recorded_too_when_it_stays(name: str, before: Any, after: Any) -> None:
    pair = Pair()
    pair.set(**{name: before})
    assert [pair.step() for _ in range(4)][-1] == ["replay"]
    pair.set(**{name: after})
    assert [pair.step() for _ in range(11)] == [["scalars"]] * 9 + [["warmup"], ["replay"]]
    pair.set(**{name: before})
    assert pair.step() == ["replay"]
    assert (pair.notes.captures, pair.notes.retirements) == (2, [])


def test_the_sign_of_a_zero_momentum_reaches_the_bytes() -> None:
    pair = Pair(momentum=0.0)
    assert [pair.step(lambda params: list(map(torch.ones_like, params))) for _ in range(4)][-1] == ["replay"]
    pair.set(momentum=-0.0)
    assert pair.step(lambda params: [torch.full_like(x, -0.0) for x in params]) == ["scalars"]
    assert all(state["momentum"].signbit().all() for state in pair.behind.state.values())


@both_replays
@pytest.mark.parametrize("steps", [5.0, "5", None])
def test_a_number_of_iterations_that_is_none_raises_the_native_error(replay: Any, steps: Any) -> None:
    for pair, then in ((replaying(replay=replay), "replay"), (Pair(replay=replay), "warmup")):
        pair.set(ns_steps=steps)
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            pair.step()
        pair.set(ns_steps=5)
        assert pair.step() == [then]


@pytest.mark.parametrize("name", ["momentum", "w_sgd"])
def test_a_boolean_in_the_place_of_an_equal_number_raises_the_native_error(name: str) -> None:
    pair = Pair()
    pair.set(**{name: 0})
    assert [pair.step() for _ in range(4)][-1] == ["replay"]
    pair.set(**{name: False})
    with pytest.raises(RuntimeError, match="Boolean alpha"):
        pair.step()


@both_replays
def test_another_number_of_iterations_is_recorded_too(replay: Any) -> None:
    pair = replaying(replay=replay)
    pair.set(ns_steps=2)
    assert [pair.step() for _ in range(11)] == [["scalars"]] * 9 + [["warmup"], ["replay"]]


def test_settings_that_warm_up_for_long_are_native_and_then_replayed() -> None:
    pair = Pair(((2, 3),))
    for step in range(80):
        pair.set(momentum=0.8 + step * 0.001)
        assert pair.step() == ["warmup"]
    assert [pair.step() for _ in range(4)][-1] == ["replay"]


# Gradients


def missing(*indices: int) -> Callable[[Sequence[nn.Parameter]], list[Tensor | None]]:
    return lambda params: [None if i in indices else x for i, x in enumerate(noise(params))]


def test_a_missing_gradient_is_native_leaves_its_parameter_alone_and_comes_back() -> None:
    pair = replaying()
    param = parameters(pair.behind)[1]
    before, momentum = param.detach().clone(), pair.behind.state[param]["momentum"].clone()
    assert pair.step(missing(1)) == ["missing_grad"]
    assert torch.equal(param, before) and torch.equal(pair.behind.state[param]["momentum"], momentum)
    assert pair.step() == ["replay"]
    assert pair.notes.captures == 1


@both_replays
def test_a_set_of_gradients_that_stays_is_recorded_too(replay: Any) -> None:
    pair = replaying(replay=replay)
    calls = [pair.step(missing(0, 3)) for _ in range(11)]
    assert "replay" not in [call for (call,) in calls[:9]]
    assert calls[9:] == [["warmup"], ["replay"]]
    assert pair.step() == ["replay"]


def test_a_group_without_gradients_is_native_and_the_others_are_replayed() -> None:
    pair = replaying(SHAPES, ((5, 2), (3,)))
    last = len(SHAPES)
    assert pair.step(missing(last, last + 1)) == ["replay", "missing_grad"]
    assert pair.step(missing(*range(last))) == ["missing_grad", "replay"]
    assert pair.step(missing(*range(last + 2))) == ["missing_grad", "missing_grad"]
    assert pair.step() == ["replay", "replay"]


def test_the_second_group_is_unfrozen_in_the_middle() -> None:
    pair = Pair(SHAPES, ((5, 2), (3,)))
    last = len(SHAPES)
    for _ in range(5):
        calls = pair.step(missing(last, last + 1))
    assert calls == ["replay", "missing_grad"]
    assert [pair.step() for _ in range(11)][-1] == ["replay", "replay"]
    assert not pair.notes.retirements


def misaligned(x: Tensor) -> Tensor:
    return torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape)


def strided(x: Tensor) -> Tensor:
    return torch.stack((x, x), -1)[..., 0]


def transposed(x: Tensor) -> Tensor:
    return x.transpose(0, 1).contiguous().transpose(0, 1) if x.ndim > 1 else x


def channels_last(x: Tensor) -> Tensor:
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def expanded(x: Tensor) -> Tensor:
    return x.flatten()[:1].view([1] * x.ndim).expand(x.shape)


@pytest.mark.parametrize("lay", [misaligned, strided, transposed, channels_last, expanded])
def test_gradients_in_another_layout_are_native_with_the_native_bytes(lay: Callable[[Tensor], Tensor]) -> None:
    pair = replaying()
    assert pair.step(lambda params: [lay(x) for x in noise(params)]) == ["stride"]
    assert pair.step() == ["replay"]
    calls = [pair.step(lambda params: [lay(x) for x in noise(params)]) for _ in range(12)]
    assert calls[-1] == ["replay" if lay in (transposed, channels_last) else "stride"]


def test_gradients_that_share_memory_with_each_other_are_replayed_alike() -> None:
    def sharing(params: Sequence[nn.Parameter]) -> list[Tensor]:
        flat = torch.randn(1024)
        return [flat[: x.numel()].view(x.shape) for x in params]

    pair = replaying()
    assert [pair.step(sharing) for _ in range(3)] == [["replay"]] * 3


def lying(pair: Any, find: Callable[[MuSGD, nn.Parameter], Tensor]) -> Callable[[Sequence[nn.Parameter]], list[Tensor]]:
    """Make gradients, one of which is found in the memory of the optimizer that it is for."""

    def made(params: Sequence[nn.Parameter]) -> list[Tensor]:
        optimizer = pair.native if params[0] is parameters(pair.native)[0] else pair.behind
        return [
            find(optimizer, x) if i == 2 else gradient
            for i, (x, gradient) in enumerate(zip(params, noise(params), strict=True))
        ]

    return made


def test_a_gradient_that_is_the_momentum_is_native() -> None:
    pair = replaying()
    assert pair.step(lying(pair, lambda optimizer, x: optimizer.state[x]["momentum"])) == ["alias"]
    assert pair.step() == ["replay"]


def test_a_gradient_that_begins_inside_a_momentum_is_native() -> None:
    pair = replaying(((64,), (8,), (8,)))

    def inside(optimizer: MuSGD, x: nn.Parameter) -> Tensor:
        whole: Tensor = optimizer.state[parameters(optimizer)[0]]["momentum"]
        return whole[16:24]

    assert pair.step(lying(pair, inside)) == ["alias"]
    assert pair.step() == ["replay"]


def test_a_gradient_that_is_the_parameter_is_replayed_alike() -> None:
    pair = replaying()
    assert pair.step(lying(pair, lambda optimizer, x: x.detach())) == ["replay"]


def test_sparse_gradients_raise_the_native_error() -> None:
    pair = replaying(((4, 4), (2, 2)))
    with pytest.raises(RuntimeError, match="not supported"):
        pair.step(lambda params: [noise(params)[0].to_sparse(), noise(params)[1]])
    assert pair.notes.calls[-1] == "dtype"

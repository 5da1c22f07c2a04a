"""Calls that are native once, and what replays after them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from lucid_accel.graphs.call import Call
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.reasons import Reason
from tests.accel.graphs.twin import Net, Twin, images, replaying


def _twice_the_images() -> Tensor:
    return images(batch=1).expand(2, -1, -1, -1)


INPUTS = {
    "partial_batch": lambda: images(batch=1),
    "shape": lambda: images(size=6),
    "dtype": lambda: images().double(),
    "stride": lambda: images().to(memory_format=torch.channels_last),
    "alias": _twice_the_images,
    "freeze": lambda: images().requires_grad_(),
}


@pytest.mark.parametrize("reason", INPUTS)
def test_another_input_is_native_and_the_recording_stays(reason: str) -> None:
    class Casts(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    twin = replaying(Casts())
    assert twin.step(INPUTS[reason]()) == reason
    assert twin.step(images()) == "replay"
    assert twin.notes.captures == 1


def test_a_larger_batch_is_another_shape() -> None:
    assert replaying().step(images(batch=3)) == "shape"


CONTEXTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "grad_disabled": torch.no_grad,
    "inference": torch.inference_mode,
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
}


def test_another_precision_is_native_and_recorded_apart() -> None:
    twin = replaying()
    assert twin.step(images(), precision=torch.bfloat16) == "precision"
    assert twin.step(images()) == "replay"
    assert twin.step(images(), precision=torch.float16) == "precision"


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("reason", CONTEXTS)
def test_a_call_in_a_context_is_native_and_the_recording_stays(reason: str) -> None:
    twin = replaying()
    with CONTEXTS[reason]():
        assert twin.step(images()) == reason
    assert twin.step(images()) == "replay"


def test_anomaly_mode_still_finds_what_it_looks_for() -> None:
    class Roots(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).abs().mul(0).sqrt()

    twin = replaying(Roots())
    with pytest.warns(UserWarning), torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan values"):
        twin.forward(images()).sum().mul(0).backward()


SETTINGS: dict[str, Callable[[bool], None]] = {
    "deterministic": torch.use_deterministic_algorithms,
    "cudnn.benchmark": lambda on: setattr(torch.backends.cudnn, "benchmark", on),
    "cudnn.deterministic": lambda on: setattr(torch.backends.cudnn, "deterministic", on),
    "reduced precision": lambda on: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", not on
    ),
    "matmul precision": lambda on: torch.set_float32_matmul_precision("high" if on else "highest"),
    "default dtype": lambda on: torch.set_default_dtype(torch.float64 if on else torch.float32),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_numerical_setting_of_torch_makes_the_call_native(name: str) -> None:
    SETTINGS[name](False)
    twin, x = replaying(), images()
    SETTINGS[name](True)
    try:
        assert twin.step(x) == "precision"
    finally:
        SETTINGS[name](False)
    assert twin.step(x) == "replay"


def test_evaluation_is_native_and_retires_nothing() -> None:
    twin = replaying()
    twin.both(lambda net: net.eval())
    with torch.no_grad():
        assert twin.step(images()) == "eval"
    assert twin.step(images()) == "eval"
    twin.both(lambda net: net.train())
    assert twin.step(images()) == "replay"


def test_evaluation_before_the_first_step_teaches_nothing() -> None:
    twin = Twin(Net())
    twin.both(lambda net: net.eval())
    with torch.no_grad():
        assert twin.step(images()) == "grad_disabled"
    twin.both(lambda net: net.train())
    assert twin.replay(images()) == "replay"
    assert not twin.notes.rearms


class OtherStream(TapeEngine):
    current = 0

    def stream(self) -> int:
        return self.current


def test_a_call_on_another_stream_is_native() -> None:
    twin = replaying(engine=OtherStream)
    twin.engine.current = 7
    assert twin.step(images()) == "stream"
    twin.engine.current = 0
    assert twin.step(images()) == "replay"


def test_a_call_while_somebody_else_records_is_native() -> None:
    twin = replaying()
    x = images()
    TapeEngine(torch.device("cpu")).capture(lambda: twin.forward(x))
    assert twin.calls[-1] == "foreign_capture"
    assert twin.step(images()) == "replay"


def test_a_second_call_before_the_backward_of_the_first_is_native() -> None:
    twin = replaying()
    state = torch.get_rng_state()
    expected = [twin.native(images(seed=seed)) for seed in (1, 2)]
    torch.set_rng_state(state)
    twin.region.next_step()
    got = [twin.forward(images(seed=seed)) for seed in (1, 2)]
    assert twin.calls[-2:] == ["replay", "outstanding_backward"]
    assert all(map(torch.equal, expected, got))
    sum(x.square().sum() for x in expected).backward()
    sum(x.square().sum() for x in got).backward()
    twin.compare_state()


def test_two_calls_a_step_from_the_start_are_learnt_and_proven() -> None:
    twin = Twin(Net())
    for _ in range(5):
        state = torch.get_rng_state()
        for forward in (twin.native, twin.forward):
            torch.set_rng_state(state)
            twin.region.next_step()
            results = [forward(images(seed=seed)) for seed in (1, 2)]
            sum(x.square().mean() for x in results).backward()
            twin.region.after_backward()
        twin.compare_state()
        for optimizer in twin.optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert twin.notes.proofs == 1
    assert twin.calls[-2:] == ["replay", "outstanding_backward"]


def test_a_second_call_while_the_first_one_is_proven_is_native() -> None:
    twin = Twin(Net())
    for _ in range(3):
        twin.step(images())
    assert (twin.notes.captures, twin.notes.proofs) == (1, 0)
    results = [twin.forward(images(seed=seed)) for seed in (1, 2)]
    assert twin.calls[-2:] == ["warmup", "outstanding_backward"]
    sum(x.square().mean() for x in results).backward()
    twin.region.after_backward()
    assert twin.notes.proofs == 1


def test_an_abandoned_backward_is_forgotten_at_the_next_step() -> None:
    twin = replaying()
    twin.step(images(), loss=lambda result: result.detach().sum())
    assert twin.calls[-1] == "replay"
    assert twin.step(images()) == "replay"


def test_a_compiler_that_traces_gets_the_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = replaying()
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert twin.step(images()) == "compiling"
    assert twin.step(images()) == "replay"


# Arguments that no recording can serve


class Box:
    """A value that nobody can compare."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Box"


def test_an_argument_that_may_change_in_place_stays_native() -> None:
    class Scales(Net):
        def forward(self, x: Tensor, box: Box) -> Tensor:
            return super().forward(x) * box.value

    twin = Twin(Scales())
    for value in range(8):
        assert twin.step(images(), Box(value)) == "scalars"


class Labelled(Tensor):
    """A tensor of a kind of its own."""


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(2).as_subclass(Labelled), Reason.DTYPE),
        (torch.ones(2).to_sparse(), Reason.DTYPE),
        (torch.ones(4).as_strided((3, 2), (1, 1)), Reason.ALIAS),
        (torch.ones(1).expand(3), Reason.ALIAS),
        (torch.ones(6).as_strided((2, 2), (4, 1)), None),
        (torch.ones(2, 2).T, None),
        (torch.ones(0, 3), None),
        (torch.ones(1).expand(1), None),
    ],
)
def test_tensors_that_cannot_be_copied_as_they_are_stay_native(tensor: Tensor, reason: Reason | None) -> None:
    assert Call((tensor,), {}).refusal is reason


def test_a_tensor_on_another_device_stays_native() -> None:
    assert Call((torch.ones(2),), {}, device=torch.device("cuda")).refusal is Reason.DTYPE


class Attends(Net):
    """Takes another way where its arguments are the same."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query * 2) if query is key else super().forward(query + key)


@pytest.mark.parametrize("trained", [False, True])
def test_an_argument_that_comes_twice_is_one_in_the_recording_too(trained: bool) -> None:
    twin, x = Twin(Attends()), images().requires_grad_(trained)

    def twice(forward: Callable[..., Tensor]) -> Tensor:
        y = x.detach().requires_grad_(trained)
        result = forward(y, y)
        result.square().mean().backward()
        return result

    for _ in range(6):
        state = torch.get_rng_state()
        expected = twice(twin.native)
        torch.set_rng_state(state)
        twin.region.next_step()
        assert torch.equal(twice(twin.forward), expected)
        twin.region.after_backward()
        twin.compare_state()
    assert twin.calls[-1] == "replay"
    apart = [images().requires_grad_(trained) for _ in range(2)]
    assert twin.step(*apart) == "shape"


@pytest.mark.parametrize("pair", [(0.0, -0.0), (1, True), (1, 1.0), ("a", b"a"), (None, False)])
def test_plain_arguments_are_told_apart_to_the_bit(pair: tuple[object, object]) -> None:
    one, other = (Call((torch.ones(1), value), {}).signature for value in pair)
    assert one != other


def test_equal_plain_arguments_share_a_signature() -> None:
    one, other = (Call((torch.ones(1), (2, "x", None)), {"k": 0.5}).signature for _ in range(2))
    assert one == other and hash(one) == hash(other)


def test_a_growable_argument_may_be_given_by_name() -> None:
    call = Call((torch.ones(2),), {"targets": torch.ones(2, 3)}, padded=lambda args: args[1:])
    assert call.rows == 0 and call.refusal is None
    assert [x.shape for x in call.padded(4)] == [(2,), (2, 3)]


@pytest.mark.parametrize("pair", [(None, torch.ones(2)), (torch.ones(2), None), ("a", torch.ones(2)), (1, "b")])
def test_an_argument_that_is_a_tensor_now_and_then_is_another_shape(pair: tuple[object, object]) -> None:
    one, other = (Call((torch.ones(3), value), {}).signature for value in pair)
    assert one.difference(other) is Reason.SHAPE

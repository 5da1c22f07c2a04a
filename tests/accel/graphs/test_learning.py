"""From the first call to the first replay."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs.call import Call
from lucid_accel.graphs.engine import CaptureError, CollectionPause
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.reasons import Reason
from tests.accel.graphs.twin import Net, Twin, images, replaying


def test_three_native_calls_and_one_to_prove_it_come_before_the_first_replay() -> None:
    twin = Twin(Net())
    assert [twin.step(images(seed=seed)) for seed in range(7)] == ["warmup"] * 4 + ["replay"] * 3
    assert (twin.notes.captures, twin.notes.proofs) == (1, 1)


def test_without_proof_the_fourth_call_is_replayed() -> None:
    twin = Twin(Net(), proof=False)
    assert [twin.step(images(seed=seed)) for seed in range(5)] == ["warmup"] * 3 + ["replay"] * 2


def test_a_call_without_backward_teaches_nothing() -> None:
    twin = Twin(Net())
    for _ in range(6):
        twin.step(images(), loss=lambda result: result.detach().sum())
    assert twin.notes.captures == 0
    assert twin.replay(images()) == "replay"


def _everything(twin: Twin) -> list[Tensor]:
    kept = [x for y in twin.module.parameters() for x in (y, y.grad) if x is not None]
    return [x.detach().clone() for x in [*kept, *twin.module.buffers(), torch.get_rng_state()]]


class FailsInCapture(Net):
    """Moves buffers and draws random numbers, then reads a value."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * (2 if y.sum() > 0 else 1)


@pytest.mark.parametrize("net", [Net, FailsInCapture])
@pytest.mark.parametrize("collecting", [True, False])
def test_recording_executes_nothing(net: type[Net], collecting: bool) -> None:
    twin = Twin(net())
    twin.step(images())
    twin.step(images(), update=False)  # leaves gradients
    before = _everything(twin)
    entry = next(iter(twin.region._shelf._entries.values()))
    (gc.enable if collecting else gc.disable)()
    try:
        try:
            twin.region._shelf.record(entry, Call((images(),), {}), twin.module.forward)
            assert net is Net and not gc.isenabled()
        except CaptureError as error:
            assert net is FailsInCapture and "reads a value back to the host" in str(error)
            assert gc.isenabled() is collecting
        assert all(map(torch.equal, before, _everything(twin)))
        twin.region.drop()
        assert gc.isenabled() is collecting
    finally:
        gc.enable()


def test_a_failed_recording_retires_with_its_cause() -> None:
    twin = Twin(FailsInCapture())
    for _ in range(6):
        twin.step(images())
    assert twin.calls == ["warmup"] * 2 + ["capture_failed"] + ["retired"] * 3
    ((reason, why, cause),) = twin.notes.retirements
    assert reason is Reason.CAPTURE_FAILED and isinstance(cause, CaptureError)
    assert "could not be recorded" in why and "reads a value" in why
    assert gc.isenabled()


class RaisesInCapture(Net):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if TapeEngine._open:
            raise RuntimeError("no capture today")
        return y


def test_an_exception_in_the_capture_retires() -> None:
    twin = Twin(RaisesInCapture())
    for _ in range(5):
        twin.step(images())
    assert "RuntimeError: no capture today" in twin.notes.retirements[0][1]


class OutOfMemory(TapeEngine):
    def capture(self, body: object, after: object = None) -> object:
        raise torch.OutOfMemoryError("full")


def test_running_out_of_memory_while_recording_retires() -> None:
    twin = Twin(Net(), engine=OutOfMemory)
    for _ in range(5):
        twin.step(images())
    assert twin.notes.retirements[0][0] is Reason.CAPTURE_FAILED and gc.isenabled()


def test_a_native_error_is_the_callers_in_every_phase() -> None:
    twin = Twin(Net())
    for _ in range(6):
        with pytest.raises(RuntimeError, match="channels"):
            twin.forward(torch.randn(2, 5, 5, 5))
        twin.step(images())
    assert twin.calls[-1] == "replay"


# The garbage collector


def test_collection_pauses_from_the_capture_to_the_end_of_the_proof() -> None:
    twin = Twin(Net())
    for _ in range(2):
        twin.step(images())
    assert gc.isenabled()
    twin.step(images())
    assert twin.notes.captures == 1 and not gc.isenabled()
    twin.region.next_step()
    result = twin.forward(images())
    assert not gc.isenabled()
    result.sum().backward()
    twin.region.after_backward()
    assert gc.isenabled()


def test_without_proof_collection_goes_on_after_the_first_replay() -> None:
    replaying(proof=False)
    assert gc.isenabled()


def test_collection_goes_on_when_the_backward_of_the_proof_never_comes() -> None:
    twin = Twin(Net())
    for _ in range(3):
        twin.step(images())
    twin.region.next_step()
    twin.forward(images())
    assert not gc.isenabled()
    twin.region.next_step()
    assert gc.isenabled()


def test_collection_goes_on_when_no_further_call_comes() -> None:
    twin = Twin(Net())
    for _ in range(3):
        twin.step(images())
    twin.region.next_step()
    twin.region.next_step()
    assert gc.isenabled()


def test_a_pause_collects_first_and_leaves_a_collector_that_was_off_off() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    gone = weakref.ref(Cycle())
    gc.disable()
    try:
        pause = CollectionPause()
        pause.begin()
        pause.begin()
        assert gone() is None
        pause.end()
        pause.end()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_stays_off_until_the_last_of_several_pauses_ends() -> None:
    first, second = CollectionPause(), CollectionPause()
    first.begin()
    second.begin()
    first.end()
    assert not gc.isenabled()
    gc.enable()
    second.begin()
    assert not gc.isenabled()
    first.end()
    assert not gc.isenabled()
    second.end()
    assert gc.isenabled()


# What is seen in the watched call


class Acts(nn.Module):
    """Does something beside its work, in every call."""

    def __init__(self, act: object) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)
        self.act = [act]
        self.count = 0
        self.kept: list[int] = []
        self.loose = torch.zeros(2)
        self.rng = np.random.default_rng(0)
        self.die = random.Random(0)
        self.dice = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        scale = self.act[0](self, x)
        return self.conv(x) * (1.0 if scale is None else scale)


def _count(net: Acts, x: Tensor) -> float:
    net.count += 1
    return float(net.count)


ACTS = {
    "counts": (_count, Reason.SCALARS, "the attribute count changed"),
    "appends": (lambda net, x: net.kept.append(1) or float(len(net.kept)), Reason.SCALARS, "kept changed"),
    "draws from random": (lambda net, x: random.random(), Reason.SCALARS, "random numbers on the host"),
    "draws from numpy": (lambda net, x: float(np.random.rand()), Reason.SCALARS, "random numbers on the host"),
    "draws from its own numpy generator": (lambda net, x: float(net.rng.random()), Reason.SCALARS, "rng changed"),
    "draws from its own random": (lambda net, x: net.die.random(), Reason.SCALARS, "die changed"),
    "draws from its own torch generator": (
        lambda net, x: torch.rand((), generator=net.dice),
        Reason.SCALARS,
        "dice changed",
    ),
    "writes to its input": (lambda net, x: x.mul_(0.5) is None or None, Reason.CAPTURE_FAILED, "writes to its inputs"),
    "writes to a tensor that is no buffer": (
        lambda net, x: net.loose.add_(1).sum(),
        Reason.SCALARS,
        "the attribute loose changed",
    ),
    "writes to a parameter": (
        lambda net, x: torch.no_grad()(net.conv.weight.clamp_)(-0.1, 0.1) is None or None,
        Reason.STORAGE,
        "writes to a parameter",
    ),
}


@pytest.mark.parametrize("name", ACTS)
def test_what_a_recording_would_leave_out_retires_before_it_is_recorded(name: str) -> None:
    act, reason, why = ACTS[name]
    twin = Twin(Acts(None))
    twin.both(lambda net: net.act.__setitem__(0, act))
    x = images(size=1, batch=1)
    for step in range(6):
        random.seed(step)
        np.random.seed(step)
        a, b = x.clone(), x.clone()
        expected = twin.native(a).sum()
        random.seed(step)
        np.random.seed(step)
        got = twin.forward(b).sum()
        assert torch.equal(expected, got) and torch.equal(a, b)
        expected.backward()
        got.backward()
        twin.region.next_step()
        twin.compare_state()
    assert twin.notes.captures == 0 and twin.notes.retirements[0][0] is reason, twin.notes.retirements
    assert why in twin.notes.retirements[0][1]


def test_what_a_forward_makes_when_it_is_first_called_does_not_retire() -> None:
    class Lazy(Net):
        grid: Tensor | None

        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "grid"):
                self.grid = torch.arange(5.0)
            return super().forward(x) + self.grid

    assert Twin(Lazy()).replay(images()) == "replay"


class Opaque:
    """Holds tensors where no pytree finds them."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def test_a_result_that_hides_its_tensors_retires() -> None:
    class Hides(Net):
        def forward(self, x: Tensor) -> Opaque:
            return Opaque(super().forward(x))

    twin = Twin(Hides())
    for _ in range(6):
        _train_hidden(twin)
    assert "it returns a Opaque" in twin.notes.retirements[0][1] and twin.notes.captures == 0


def _train_hidden(twin: Twin) -> None:
    twin.region.next_step()
    for forward in (twin.native, twin.forward):
        torch.manual_seed(0)
        forward(images()).value.sum().backward()
    twin.compare_state()


def test_a_trainable_tensor_from_elsewhere_retires() -> None:
    outside = nn.Parameter(torch.tensor(0.3))

    class Reads(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * outside

    twin = Twin(Reads())
    for _ in range(5):
        twin.step(images())
    assert "a trainable tensor of shape () that is no part of it" in twin.notes.retirements[0][1]


def test_a_value_computed_with_gradients_elsewhere_retires() -> None:
    outside = nn.Parameter(torch.tensor(0.3))
    box: list[Tensor] = [outside + 1]

    class Reads(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * box[0]

    twin = Twin(Reads())
    for _ in range(5):
        box[0] = outside + 1  # keeps nothing, so that both nets can go backward through it
        twin.step(images())
    assert "that is no part of it" in twin.notes.retirements[0][1]


def test_a_plain_value_in_the_result_must_stay_the_same() -> None:
    numbers = [1.0]

    class Tells(Net):
        def forward(self, x: Tensor) -> tuple[Tensor, float]:
            return super().forward(x), numbers[0]

    assert Twin(Tells()).replay(images()) == "replay"
    twin = Twin(Tells())
    for step in range(6):
        numbers[0] = float(step)
        twin.step(images())
    assert "another plain value" in twin.notes.retirements[0][1]


def test_another_structure_in_the_proof_retires_and_the_step_is_right() -> None:
    several = [False]

    class Varies(Net):
        def forward(self, x: Tensor) -> object:
            y = super().forward(x)
            return (y, y + 1) if several[0] and not TapeEngine._open else y

    twin = Twin(Varies())
    for _ in range(3):
        twin.step(images())
    several[0] = True
    for _ in range(3):
        twin.step(images())
    assert twin.notes.retirements[0][0] is Reason.SCALARS and twin.calls[-1] == "retired" and gc.isenabled()

"""What a routine proves, what it holds, and whose its results are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs import routine as routine_module
from lucid_accel.graphs.engine import CaptureError
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.packed import Packed
from lucid_accel.graphs.single import SingleRecording
from lucid_accel.graphs.tape import TapeEngine
from tests.accel.graphs.adder import CPU, Adder, replaying

# Proof


def test_a_python_value_that_changes_from_call_to_call_is_caught_at_the_proof() -> None:
    adder = Adder()
    now = [0.0]

    def drift() -> None:
        now[0] += 1.0
        adder.total.add_(now[0])

    adder.trouble = drift
    before = adder.runs
    for _ in range(4):
        (result,) = adder.raw(torch.randn(4))
        assert torch.equal(result, adder.total * adder.factor)
    # The native results stay: each run but that of the recording, and the one more that the verdict asks for.
    assert adder.retired == ["unprovable"]
    assert adder.runs - before == 6
    assert adder.notes.calls == ["warmup"] * 3 + ["retired"]


def test_the_native_results_stay_where_the_proof_fails() -> None:
    adder = Adder()
    adder.trouble = lambda: adder.total.add_(1.0) if TapeEngine._open else None
    assert [adder() for _ in range(5)] == ["warmup"] * 3 + ["retired"] * 2
    assert adder.retired == ["unlike"]
    assert "state 0" in adder.notes.retirements[0][1] or "result 0" in adder.notes.retirements[0][1]


def test_a_recording_that_does_not_copy_in_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(self: SingleRecording, job: Job) -> list[Tensor]:
        assert self._graph is not None
        self._graph.replay()
        return self._outputs.owned()

    monkeypatch.setattr(SingleRecording, "__call__", stale)
    adder = Adder()
    assert [adder() for _ in range(4)][-1] == "retired"
    assert adder.retired == ["unlike"]
    with pytest.raises(AssertionError):
        [(unproven := Adder(proof=False))(), *(unproven() for _ in range(4))]


def test_work_that_writes_its_inputs_is_caught() -> None:
    adder = Adder()
    x = torch.randn(4)

    def work(inputs: Sequence[Tensor]) -> list[Tensor]:
        return [inputs[0].mul_(2.0) + 1.0]

    for _ in range(4):
        with torch.no_grad():
            adder.routine(lambda: work([x]), lambda: Job(work, [x], CPU))
    assert adder.retired == ["unlike"]
    assert "input 0, which it writes to" in adder.notes.retirements[0][1]


def test_random_work_is_proven_and_draws_what_it_draws_natively() -> None:
    adder, other = Adder(), torch.Generator().manual_seed(3)
    torch.manual_seed(3)
    x = torch.ones(4)
    for _ in range(5):
        with torch.no_grad():
            (got,) = adder.routine(
                lambda: [x + torch.rand(4)], lambda: Job(lambda inputs: [inputs[0] + torch.rand(4)], [x], CPU)
            )
        assert torch.equal(got, x + torch.rand(4, generator=other))
    assert adder.notes.calls[-1] == "replay"


@pytest.mark.parametrize("where", ["begin", "replay"])
def test_where_there_is_no_memory_for_a_proof_the_native_results_stay(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: Any) -> Any:
        raise torch.OutOfMemoryError("too much")

    if where == "begin":
        monkeypatch.setattr(routine_module, "Trial", short)
    else:
        monkeypatch.setattr(Packed, "owned", short)
    adder = Adder()
    assert [adder() for _ in range(5)][-2:] == ["retired", "retired"]
    assert adder.retired == ["memory"]
    assert gc.isenabled()


# What is held, and whose it is


def test_results_are_the_callers_own() -> None:
    adder = replaying()
    (first,) = adder.raw(torch.ones(4))
    kept = first.clone()
    (second,) = adder.raw(torch.ones(4) * 3)
    assert torch.equal(first, kept)
    second.mul_(0.0)
    (third,) = adder.raw(torch.zeros(4))
    assert third.any()


def test_inputs_are_not_kept_and_what_it_works_on_is() -> None:
    adder = replaying()
    x = torch.randn(4)
    adder(x)
    inputs, total = weakref.ref(x), weakref.ref(adder.total)
    del x
    assert inputs() is None
    adder.total = torch.zeros(4)
    assert total() is not None
    adder.routine.drop()
    assert total() is None


@pytest.mark.parametrize("collecting", [True, False])
def test_the_collector_is_off_until_the_first_replay_and_then_as_it_was(collecting: bool) -> None:
    seen: list[bool] = []
    adder = Adder()
    gc.enable() if collecting else gc.disable()
    try:
        for _ in range(4):
            adder()
            seen.append(gc.isenabled())
    finally:
        gc.enable()
    assert seen == [collecting, False, collecting, collecting]


def test_the_collector_is_on_again_where_no_replay_comes() -> None:
    adder = Adder()
    adder(), adder()
    assert not gc.isenabled()
    adder(torch.randn(6))
    assert not gc.isenabled()
    adder(torch.randn(6))
    assert gc.isenabled()


@pytest.mark.parametrize("result", [lambda x, total: x, lambda x, total: total, lambda x, total: x.view(-1)[1:]])
def test_a_result_that_is_what_it_was_given_cannot_be_recorded(result: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, total = torch.ones(8), torch.zeros(8)
    job = Job(lambda inputs: [result(inputs[0], total)], [x], CPU, fixed=[total])
    with pytest.raises(CaptureError, match="one of its own inputs"):
        SingleRecording(TapeEngine(CPU), job)


def test_a_result_that_is_no_ordinary_tensor_cannot_be_recorded() -> None:
    job = Job(lambda inputs: [nn.Parameter(inputs[0] * 2)], [torch.ones(8)], CPU)
    with pytest.raises(CaptureError, match="no ordinary tensor"):
        SingleRecording(TapeEngine(CPU), job)


def test_what_is_empty_lies_nowhere_and_is_recorded_beside_others() -> None:
    empty, x = torch.ones(0, 3), torch.ones(3)
    job = Job(lambda inputs: [y * 2 for y in inputs], [empty, x], CPU, fixed=[torch.ones(0)])
    results = SingleRecording(TapeEngine(CPU), job)(job)
    assert [list(y.shape) for y in results] == [[0, 3], [3]]


def test_dropped_it_answers_no_more() -> None:
    job = Job(lambda inputs: [inputs[0] * 2], [torch.ones(3)], CPU)
    recording = SingleRecording(TapeEngine(CPU), job)
    assert recording(job)[0].tolist() == [2.0] * 3
    recording.drop()
    recording.drop()
    with pytest.raises(RuntimeError, match="dropped"):
        recording(job)

"""The routing of work that needs no gradients: when it is recorded, replayed, native, made again, and given up."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lucid_accel.graphs.entry import SECOND_PROOF
from lucid_accel.graphs.shelf import KNOWN, RECORDED
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.reasons import Reason
from tests.accel.graphs.adder import Adder, replaying

# Learning


def test_two_native_calls_one_that_is_proven_then_replays() -> None:
    adder = Adder()
    assert [adder() for _ in range(5)] == ["warmup"] * 3 + ["replay"] * 2
    assert (adder.notes.captures, adder.notes.proofs) == (1, 1)


def test_without_proof_the_third_call_is_replayed() -> None:
    adder = Adder(proof=False)
    assert [adder() for _ in range(4)] == ["warmup"] * 2 + ["replay"] * 2
    assert (adder.notes.captures, adder.notes.proofs) == (1, 0)


def test_replays_run_no_python() -> None:
    adder = replaying()
    runs = adder.runs
    adder()
    assert adder.runs == runs


def test_a_second_proof_comes_later_and_then_none() -> None:
    adder = replaying()
    calls = [adder() for _ in range(SECOND_PROOF + 50)]
    assert calls.count("warmup") == 1
    assert calls[SECOND_PROOF - 2] == "warmup"
    assert adder.notes.proofs == 2


def test_another_signature_is_recorded_too_when_it_stays() -> None:
    adder = replaying()
    other = torch.randn(2, 3)
    assert [adder(other) for _ in range(12)] == ["shape"] * 9 + ["warmup"] + ["replay"] * 2
    assert adder() == "replay"
    assert adder.notes.captures == 2


def test_only_so_many_signatures_are_recorded() -> None:
    adder = Adder(proof=False)
    for size in range(4, 4 + RECORDED + 1):
        calls = [adder(torch.randn(size)) for _ in range(11)]
        assert calls[-1] == ("replay" if size < 4 + RECORDED else "memory")
    assert adder.notes.captures == RECORDED
    assert adder() == "replay"


def test_settings_that_change_all_the_time_do_not_keep_those_that_stay_from_being_recorded() -> None:
    adder = Adder()
    for step in range(KNOWN + 10):
        adder.factor = 1.0 + step
        assert adder() == "warmup"
    assert [adder() for _ in range(5)][-1] == "replay"


def test_room_on_the_device_decides_about_further_ones() -> None:
    class Full(TapeEngine):
        def headroom(self) -> int:
            return 0

    adder = replaying(engine=Full)
    assert [adder(torch.randn(5)) for _ in range(11)] == ["shape"] * 8 + ["memory"] * 3


# Native once


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    TapeEngine._open = True
    try:
        yield
    finally:
        TapeEngine._open = False


@contextlib.contextmanager
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "is_compiling", lambda: True)
        yield


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Listening(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


CONTEXTS: dict[str, tuple[Callable[[], Any], str]] = {
    "anomaly mode": (lambda: torch.autograd.detect_anomaly(check_nan=False), "anomaly"),
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), "precision"),
    "a capture of somebody else": (capturing, "foreign_capture"),
    "a dispatch mode": (Watching, "hooks"),
    "a function mode": (Listening, "hooks"),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("name", CONTEXTS)
def test_a_context_is_native_and_the_recording_stays(name: str, recorded: bool) -> None:
    make, reason = CONTEXTS[name]
    adder = replaying() if recorded else Adder()
    with make():
        assert adder() == reason
    assert adder() == ("replay" if recorded else "warmup")
    assert not adder.retired


def test_while_compiling_it_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    adder = replaying()
    with compiling(monkeypatch):
        assert adder() == "compiling"
    assert adder() == "replay"


def test_with_gradients_on_or_in_inference_mode_it_is_native() -> None:
    adder = replaying()
    x = torch.randn(4)
    with torch.inference_mode():
        adder.routine(lambda: [], lambda: adder.job([x]))
    with torch.enable_grad():
        adder.routine(lambda: [], lambda: adder.job([x]))
    assert adder.notes.calls[-2:] == ["inference", "grad_enabled"]
    assert adder() == "replay"


def test_on_another_stream_it_is_native() -> None:
    class Streams(TapeEngine):
        now = 7

        def stream(self) -> int:
            return self.now

    adder = replaying(engine=Streams)
    adder.engine.now = 8  # type: ignore[attr-defined]
    assert [adder(), adder()] == ["stream", "stream"]
    adder.engine.now = 7  # type: ignore[attr-defined]
    assert adder() == "replay"


def test_suspended_it_is_native_until_it_is_resumed() -> None:
    adder = replaying()
    adder.routine.suspend()
    assert [adder(), adder()] == ["disabled", "disabled"]
    adder.routine.resume()
    assert adder() == "replay"
    assert adder.notes.captures == 1


INPUTS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "misaligned": (lambda: torch.randn(5)[1:], "stride"),
    "strided": (lambda: torch.randn(4, 2)[:, 0], "stride"),
    "double": (lambda: torch.randn(4).double(), "dtype"),
    "larger": (lambda: torch.randn(6), "shape"),
}


@pytest.mark.parametrize("name", INPUTS)
def test_another_input_is_native_and_the_recording_stays(name: str) -> None:
    make, reason = INPUTS[name]
    adder = replaying()
    assert [adder(make()), adder()] == [reason, "replay"]


def test_an_input_that_is_what_the_work_writes_is_native() -> None:
    adder = replaying()
    adder.raw(adder.total[:4])
    assert adder.notes.calls[-1] == "alias"


@pytest.mark.parametrize("value", [2, True, -0.0])
def test_a_setting_that_differs_in_type_or_in_a_bit_is_native(value: Any) -> None:
    adder = Adder()
    adder.factor = 0.0 if isinstance(value, float) else float(value)
    assert [adder() for _ in range(4)][-1] == "replay"
    adder.factor = value
    assert adder() == "scalars"


def test_what_cannot_be_recorded_is_native_for_good_and_nothing_is_tried() -> None:
    adder = Adder()
    assert {adder(torch.randn(4, 2)[:, 0]) for _ in range(12)} == {"warmup", "stride"}
    assert adder.notes.captures == 0


# Made again


def test_a_new_version_drops_what_was_recorded_and_records_again() -> None:
    adder = replaying()
    adder.total, adder.version = adder.total.clone(), 1
    assert [adder() for _ in range(4)] == ["warmup"] * 3 + ["replay"]
    assert adder.notes.captures == 2
    assert len(adder.notes.rearms) == 1
    assert not adder.retired


def test_a_new_version_before_anything_was_seen_counts_for_nothing() -> None:
    adder = Adder()
    adder.version = 5
    adder()
    assert not adder.notes.rearms


def test_new_versions_before_anything_was_recorded_count_for_nothing() -> None:
    adder = Adder()
    for version in range(5):
        adder.version = version
        assert adder() == "warmup"
    assert (adder.notes.rearms, adder.retired) == ([], [])


def test_the_fourth_new_version_is_the_last() -> None:
    adder = replaying()
    for _ in range(3):
        adder.version += 1
        assert [adder() for _ in range(4)][-1] == "replay"
    adder.version += 1
    assert [adder(), adder()] == ["storage", "retired"]
    assert (adder.retired, len(adder.notes.rearms)) == (["storage"], 3)
    assert "for the 4th time" in adder.notes.retirements[0][1]


# Given up


def test_memory_that_was_moved_is_the_end() -> None:
    adder = replaying()
    adder.total.data = adder.total.data.clone()
    assert [adder(), adder()] == ["storage", "retired"]
    assert adder.retired == ["storage"]


def test_another_tensor_in_its_place_is_another_signature() -> None:
    adder = replaying()
    old, adder.total = adder.total, adder.total.clone()
    assert "replay" not in [adder() for _ in range(3)]
    old.copy_(adder.total)
    adder.total = old
    assert adder() == "replay"


def test_an_input_that_reaches_into_what_is_written_is_native_however_it_is_looked_at() -> None:
    adder = replaying()
    room = torch.zeros(16)
    adder.total, adder.version = room[8:].copy_(adder.total), 1
    assert [adder() for _ in range(4)][-1] == "replay"
    adder.raw(room[12:])
    adder.routine.suspect()
    adder.raw(room[12:])
    assert adder.retired == []


def test_retiring_twice_is_told_once() -> None:
    adder = replaying()
    for _ in range(2):
        adder.routine.retire(Reason.STRUCTURE, "it was exchanged")
    assert adder.retired == ["structure"]
    assert adder() == "retired"


FAILURES: dict[str, Callable[[], Any]] = {
    "a host read": lambda: torch.ones(1).item(),
    "an exception": lambda: 1 / 0,
    "no memory": lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("too much")),
}


@pytest.mark.parametrize("proof", [True, False])
@pytest.mark.parametrize("name", FAILURES)
def test_a_recording_that_fails_changes_nothing_and_is_the_end(name: str, proof: bool) -> None:
    adder = Adder(proof)
    adder.trouble = lambda: FAILURES[name]() if TapeEngine._open else None
    collecting = gc.isenabled()
    assert [adder() for _ in range(4)][-2:] == ["capture_failed" if not proof else "retired", "retired"]
    assert adder.retired == ["capture_failed"]
    assert adder.notes.retirements[0][2] is not None
    assert gc.isenabled() is collecting
    assert not TapeEngine._open


def test_an_interrupt_while_recording_goes_through_and_changes_nothing() -> None:
    adder = Adder()
    adder()

    def interrupt() -> None:
        if TapeEngine._open:
            raise KeyboardInterrupt

    adder.trouble = interrupt
    before = adder.total.clone()
    with pytest.raises(KeyboardInterrupt):
        adder.raw(torch.randn(4))
    assert torch.equal(adder.total, before)
    assert gc.isenabled() and not TapeEngine._open

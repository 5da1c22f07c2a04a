"""What a job certifies: layouts, settings to the bit, addresses, and that nothing lies where the work writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs.job import Job, bits
from lucid_accel.graphs.single import SingleRecording
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.reasons import Reason

CPU = torch.device("cpu")


def job(*inputs: Any, **options: Any) -> Job:
    return Job(double, list(inputs) or [torch.ones(2, 3)], CPU, **options)


def double(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x * 2 for x in inputs]


class Own(Tensor):
    """A kind of tensor of its own, that may do anything."""


def own() -> Tensor:
    return torch.ones(2, 3).as_subclass(Own)


# What no recording can serve

REFUSED: dict[str, tuple[Callable[[], Any], str | None]] = {
    "float32": (lambda: torch.ones(2, 3), None),
    "a parameter": (lambda: nn.Parameter(torch.ones(2, 3)), None),
    "channels last": (lambda: torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last), None),
    "empty": (lambda: torch.ones(0, 3), None),
    "float64": (lambda: torch.ones(2, 3).double(), "dtype"),
    "half": (lambda: torch.ones(2, 3).half(), "dtype"),
    "sparse": (lambda: torch.ones(2, 3).to_sparse(), "dtype"),
    "a kind of its own": (own, "dtype"),
    "misaligned": (lambda: torch.ones(7)[1:], "stride"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_plain_aligned_tensor_of_the_device_and_the_dtype_is_refused(name: str) -> None:
    make, reason = REFUSED[name]
    for inputs in ([make()], [torch.ones(4), make()]):
        assert job(*inputs, dtype=torch.float32).refusal == reason


def test_any_dtype_will_do_where_none_is_asked_for() -> None:
    assert job(torch.ones(3).double(), torch.ones(3).half()).refusal is None


def test_without_inputs_there_is_nothing_to_do() -> None:
    assert Job(list, [], CPU).refusal is Reason.MISSING_GRAD


def test_an_input_that_lies_where_the_work_writes_is_known() -> None:
    memory, other = torch.ones(64), torch.ones(8)
    written = [memory[40:48], memory[16:24]]

    def overlaid(x: Tensor) -> bool:
        recorded = SingleRecording(TapeEngine(CPU), job(other, torch.ones(8), fixed=written, written=written))
        return recorded.overlaid(job(other, x, fixed=written, written=written))

    lies = [start for start in range(0, 56, 4) if overlaid(memory[start : start + 8])]
    assert lies == [12, 16, 20, 36, 40, 44]
    assert not overlaid(other)


def test_what_is_only_read_may_be_an_input_too() -> None:
    x = torch.ones(4)
    recorded = SingleRecording(TapeEngine(CPU), job(torch.ones(4), fixed=[x]))
    assert not recorded.overlaid(job(x, fixed=[x]))


def test_empty_tensors_lie_nowhere() -> None:
    nothing = torch.ones(0)
    with torch.no_grad():
        recorded = SingleRecording(TapeEngine(CPU), Job(double, [nothing], CPU, [nothing], [nothing]))
    assert not recorded.overlaid(job(nothing, fixed=[nothing], written=[nothing]))


def test_autocast_is_refused_while_it_is_on() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert job().refusal is Reason.PRECISION
    assert job().refusal is None


# What is looked at before recording, and now and then


def gaps() -> Tensor:
    return torch.ones(4, 8)[:, :4]


OBJECTIONS: dict[str, tuple[Callable[[], Sequence[Tensor]], Callable[[], Sequence[Tensor]], str | None]] = {
    "plain": (lambda: [torch.ones(4, 4)], lambda: [torch.ones(4), torch.ones(())], None),
    "permuted": (lambda: [torch.ones(4, 4, 2).permute(2, 0, 1)], lambda: [torch.ones(4, 4).T], None),
    "empty": (lambda: [torch.ones(4), torch.ones(0)], lambda: [torch.ones(0), torch.ones(0)], None),
    "an input with gaps": (lambda: [gaps()], list, "stride"),
    "an input that repeats itself": (lambda: [torch.ones(()).expand(4)], list, "stride"),
    "an input that overlaps itself": (lambda: [torch.ones(8).as_strided((3, 2), (1, 2))], list, "stride"),
    "fixed with gaps": (lambda: [torch.ones(4)], lambda: [gaps()], "stride"),
    "fixed of another dtype": (lambda: [torch.ones(4)], lambda: [torch.ones(4).double()], "dtype"),
    "fixed of a kind of its own": (lambda: [torch.ones(4)], lambda: [own()], "dtype"),
    "fixed elsewhere": (lambda: [torch.ones(4)], lambda: [torch.ones(4, device="meta")], "dtype"),
}


@pytest.mark.parametrize("name", OBJECTIONS)
def test_objections(name: str) -> None:
    inputs, fixed, reason = OBJECTIONS[name]
    assert job(*inputs(), fixed=[torch.ones(1), *fixed()], dtype=torch.float32).objection() == reason


@pytest.mark.parametrize(
    ("first", "second", "written", "reason"),
    [
        ((0, 8), (8, 16), "both", None),
        ((0, 8), (7, 16), "first", "alias"),
        ((0, 8), (7, 16), "second", "alias"),
        ((0, 8), (0, 8), "both", "alias"),
        ((0, 16), (4, 8), "first", "alias"),
        ((0, 16), (4, 8), "second", "alias"),
        ((0, 8), (7, 16), "none", None),
    ],
)
def test_memory_that_is_written_is_shared_with_nothing(
    first: tuple[int, int], second: tuple[int, int], written: str, reason: str | None
) -> None:
    room = torch.zeros(16)
    one, other = room[slice(*first)], room[slice(*second)]
    writes = {"both": [one, other], "first": [one], "second": [other], "none": []}[written]
    for fixed in ([one, other], [other, one]):
        assert job(torch.ones(4), fixed=fixed, written=writes).objection() == reason


def test_an_input_that_reaches_into_what_is_written_is_an_objection() -> None:
    room = torch.zeros(16)
    half = room[8:]
    assert job(room[4:12], fixed=[half], written=[half]).objection() is Reason.ALIAS


def test_one_tensor_twice_among_what_is_written_is_an_objection() -> None:
    x = torch.ones(4)
    assert job(fixed=[x, x], written=[x, x]).objection() is Reason.ALIAS


# What must match

FIXED = torch.ones(4)

OTHERS: dict[str, tuple[Callable[[], Job], str]] = {
    "fewer": (lambda: job(torch.ones(2, 3), fixed=[FIXED]), "missing_grad"),
    "larger": (lambda: job(torch.ones(2, 3), torch.ones(5), fixed=[FIXED]), "shape"),
    "transposed": (lambda: job(torch.ones(3, 2).T, torch.ones(4), fixed=[FIXED]), "stride"),
    "of another shape": (lambda: job(torch.ones(3, 2), torch.ones(4), fixed=[FIXED]), "stride"),
    "of another dtype": (lambda: job(torch.ones(2, 3).half(), torch.ones(4), fixed=[FIXED]), "dtype"),
    "with another setting": (lambda: job(torch.ones(2, 3), torch.ones(4), fixed=[FIXED], settings=1), "scalars"),
    "on another tensor": (lambda: job(torch.ones(2, 3), torch.ones(4), fixed=[torch.ones(4)]), "missing_grad"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_job_of_another_signature_says_why(name: str) -> None:
    make, reason = OTHERS[name]
    known = job(torch.ones(2, 3), torch.ones(4), fixed=[FIXED])
    alike = job(torch.rand(2, 3), torch.rand(4), fixed=[FIXED])
    assert known.signature == alike.signature
    assert known.is_like(alike.likeness)
    other = make()
    assert known.signature != other.signature
    assert not known.is_like(other.likeness)
    assert known.signature.difference(other.signature) == reason


@pytest.mark.parametrize("place", ["fixed", "certified"])
def test_what_is_certified_is_known_by_identity_alone(place: str) -> None:
    x, y = torch.ones(4), torch.ones(4)
    known = job(fixed=[x], certified=[y])
    assert known.addresses == [x.data_ptr()]
    assert [*map(id, known.fixed)] == [id(x), id(y)]
    other = job(**{"fixed": [x], "certified": [y], place: [torch.ones(4)]})
    assert known.signature != other.signature
    assert not known.is_like(other.likeness)
    assert job(fixed=[x], certified=[y], written=[y]).objection() is None
    assert job(fixed=[y], certified=[y], written=[y]).objection() is Reason.ALIAS


def test_numerical_settings_of_torch_are_part_of_the_signature() -> None:
    known, was = job().signature, torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        assert known.difference(job().signature) is Reason.PRECISION
    finally:
        torch.backends.cuda.matmul.fp32_precision = was
    assert known == job().signature


@pytest.mark.parametrize(
    ("one", "other"), [(0.0, -0.0), (1, 1.0), (1, True), (0.1, 0.1 + 2**-56), ("1", 1), (None, 0), ([1], (1,))]
)
def test_settings_differ_by_type_and_by_bit(one: Any, other: Any) -> None:
    assert bits(one) != bits(other)
    assert hash(bits(one)) == hash(bits(one))


@pytest.mark.parametrize(
    "value", [[1.0], {"a": 1.0}, torch.ones(()), np.ones(2)], ids=lambda value: type(value).__name__
)
def test_settings_differ_where_they_were_changed_in_place(value: Any) -> None:
    before = bits(value)
    assert bits(value) == before
    if isinstance(value, Tensor):
        value.fill_(2)
    else:
        value["a" if isinstance(value, dict) else 0] = 2.0
    assert bits(value) != before
    assert hash(bits(value)) != hash(before)


@pytest.mark.parametrize("value", [0.1, -0.0, 5, True, None, float("nan"), float("inf"), "x", (0.9, 0.999)])
def test_equal_settings_are_equal(value: Any) -> None:
    assert bits(value) == bits(value)

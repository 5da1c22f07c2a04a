"""What lies outside a region and yet belongs to it: memory, modes, settings, containers."""

from __future__ import annotations

import gc
import subprocess
import sys
import timeit
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lucid_accel.graphs.certificate import Certificate
from lucid_accel.graphs.proof import Proof
from lucid_accel.graphs.witness import Witness
from lucid_accel.reasons import Reason
from tests.accel.graphs.twin import Net, Twin, images, replaying


class Queue(Net):
    """Returns a buffer, which the caller writes to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), self.queue


class Passing(Net):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(x), x.flatten(1)


@pytest.mark.parametrize("net", [Queue, Passing])
def test_a_part_that_returns_what_it_was_given_or_holds_is_never_recorded(net: type[Net]) -> None:
    twin = Twin(net())

    def write(result: Any) -> Tensor:
        if net is Queue:  # a convolution needs its input as it was
            result[1].detach().add_(1)
        return result[0].square().mean()

    assert twin.replay(images(), loss=write) == "retired"
    assert "returns an input, a parameter or a buffer" in twin.notes.retirements[0][1]


class Counting(Net):
    """Counts its calls in a tensor that is no buffer, or in one that somebody else has, or in a buffer."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where
        self.register_buffer("own", torch.zeros(2))
        self.plain = torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        made = torch.zeros_like(self.own)
        made[0].add_(1)
        counts = {"buffer": self.own, "attribute": self.plain, "elsewhere": ELSEWHERE}[self.where]
        # Through a view, by one of many, and as the result of an operator that is given it.
        counts[:1].add_(made[0])
        torch._foreach_add_([made, counts], 1)
        torch.add(counts, 1, out=counts)
        return super().forward(x)


ELSEWHERE = torch.zeros(2)


@pytest.mark.parametrize(
    ("where", "reason", "why"),
    [
        ("attribute", Reason.SCALARS, "plain"),
        ("elsewhere", Reason.CAPTURE_FAILED, "writes to a tensor of shape (1,) that is no parameter or buffer"),
    ],
)
def test_a_part_that_writes_to_what_is_not_its_own_is_never_recorded(where: str, reason: Reason, why: str) -> None:
    ELSEWHERE.zero_()
    twin = Twin(Counting(where))
    for _ in range(5):
        twin.step(images())
    assert twin.notes.retirements[0][0] is reason
    assert why in twin.notes.retirements[0][1]
    # Both nets count in the same one, where it belongs to neither.
    assert (ELSEWHERE if where == "elsewhere" else twin.module.plain)[0] == (30 if where == "elsewhere" else 15)


def test_a_part_that_writes_to_its_buffers_is_recorded() -> None:
    assert not replaying(Counting("buffer")).notes.retirements


def test_a_witness_keeps_what_is_read_and_not_what_is_made() -> None:
    outside, inside = torch.randn(3), []
    with Witness(torch.device("cpu")) as witness:
        made = outside * 2
        inside.append(weakref.ref(made.untyped_storage()))
        made.add_(1)
        del made
    assert list(witness.kept) == [outside.untyped_storage().data_ptr()]


def test_a_witness_goes_on_from_another_one() -> None:
    with Witness(torch.device("cpu")) as first:
        made = torch.ones(3) * 2
    with Witness(torch.device("cpu"), first.made) as second:
        made.add_(1)
    assert not second.kept


def test_a_witness_refuses_memory_of_another_device() -> None:
    with Witness(torch.device("meta")), pytest.raises(RuntimeError, match="whose memory a replay would read again"):
        torch.ones(3) * 2


class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def _saved() -> AbstractContextManager[Any]:
    return torch.autograd.graph.saved_tensors_hooks(lambda x: x * 2, lambda x: x / 2)


@pytest.mark.parametrize("mode", [Seen, Called, _saved])
def test_a_call_that_somebody_else_sees_through_is_native(mode: Callable[[], AbstractContextManager[Any]]) -> None:
    twin = replaying()
    with mode():
        assert twin.step(images()) == "hooks"
    with torch.device("cpu"):  # a mode that only says where new tensors go
        assert twin.step(images()) == "replay"
    assert not twin.notes.retirements


@pytest.mark.parametrize(
    "setting",
    [
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
        'torch.backends.fp32_precision = "ieee"',
        'torch.backends.cudnn.fp32_precision = "ieee"',
        'torch.backends.cudnn.conv.fp32_precision = "ieee"',
        'torch.backends.cudnn.rnn.fp32_precision = "ieee"',
    ],
)
@pytest.mark.slow
def test_new_settings_of_precision_are_read_without_the_old_ones(setting: str) -> None:
    code = (
        f"import torch\n{setting}\nfrom lucid_accel.graphs.call import Call\nprint(Call((torch.ones(2),), {{}}).rows)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "0\n", done.stderr


def test_a_changed_precision_of_convolutions_is_native() -> None:
    twin, conv = replaying(), torch.backends.cudnn.conv
    before = conv.fp32_precision
    conv.fp32_precision = "ieee"
    try:
        assert twin.step(images()) == "precision"
    finally:
        conv.fp32_precision = before
    assert twin.step(images()) == "replay"


def test_running_out_of_memory_before_a_proof_is_a_retirement(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Proof) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(Proof, "begin", full)
    twin = Twin(Net())
    assert twin.replay(images()) == "retired"
    assert twin.notes.retirements[0][0] is Reason.MEMORY
    assert gc.isenabled()


def test_a_long_container_costs_nothing() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net.vocabulary = {str(number): number for number in range(50_000)}
    net.words = list(range(50_000))
    certificate = Certificate(net)
    assert certificate.change() is None
    assert min(timeit.repeat(certificate.change, number=10, repeat=3)) / 10 < 5e-3
    net.words.append(3)
    change = certificate.change()
    assert change is not None
    assert "words changed" in change[1]


def test_inputs_that_begin_between_vectors_are_native() -> None:
    twin = replaying()
    memory = torch.zeros(1 + images().numel())
    shifted = memory[1:].view(images().shape).copy_(images())
    assert twin.step(shifted) == "stride"
    assert twin.step(images()) == "replay"


class Clock:
    """Somebody else's step counter."""

    now = 0


class Scheduled(Net):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 0.01 * Clock.now)


def test_a_number_from_outside_that_changes_at_every_step_is_found_before_anything_is_replayed() -> None:
    twin = Twin(Scheduled())
    for Clock.now in range(7):
        twin.step(images())
    assert "replay" not in twin.calls
    assert twin.notes.retirements[0][0] is Reason.UNLIKE


class Scaled(Net):
    scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


def test_an_attribute_of_a_class_is_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = replaying(Scaled())
    monkeypatch.setattr(Scaled, "scale", 3.0)
    twin.region.suspect()
    assert twin.step(images()) == "structure"


class Collecting(Net):
    """Leaves something in a list that it is given."""

    def forward(self, x: Tensor, kept: list[int]) -> Tensor:
        kept.append(1)
        return super().forward(x)


def test_a_part_that_adds_to_its_arguments_retires() -> None:
    twin = Twin(Collecting())
    for _ in range(5):
        twin.step(images(), [])
    assert "adds to its arguments" in twin.notes.retirements[0][1]


def test_a_call_under_a_transform_is_native() -> None:
    twin = replaying(nn.Sequential(nn.Linear(3, 2)), torch.ones(4, 3))
    per_sample = torch.func.vmap(lambda x: twin.forward(x))(torch.ones(4, 3))
    assert torch.equal(per_sample, twin.module(torch.ones(4, 3)))
    assert twin.calls[-1] == "hooks"


def test_checkpointing_around_the_part_recomputes_natively() -> None:
    twin = replaying()

    def run(forward: Callable[..., Tensor]) -> None:
        torch.manual_seed(0)
        x = images().requires_grad_()
        torch.utils.checkpoint.checkpoint(forward, x, use_reentrant=False).square().mean().backward()

    twin.region.next_step()
    run(twin.native)
    run(twin.forward)
    twin.compare_state()
    assert twin.calls[-2:] == ["hooks", "hooks"]

"""A replay is compared with a native run; what differs retires."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs import entry
from lucid_accel.graphs.proof import Proof
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.reasons import Reason
from tests.accel.graphs.twin import Net, Twin, images, replaying, squares


class Corrupt(TapeEngine):
    """Replays with other bytes: whatever ``spoil`` does after each replay."""

    spoil: Callable[[list[Tensor]], None]

    def capture(self, body: Callable[[], Any], after: Any = None) -> Any:
        graph, result = super().capture(body)
        replay, engine = graph.replay, self
        # Results, and what calls without results write to: their first argument.
        written = torch.utils._pytree.tree_leaves([(args[:1], result) for _, args, _, result in graph._calls])
        tensors = [x for x in written if torch.is_tensor(x)]

        class Spoilt:
            def replay(self) -> None:
                replay()
                with torch.no_grad():
                    engine.spoil(tensors)

        return Spoilt(), result


def _last_bit(tensors: list[Tensor]) -> None:
    """Change one bit of the last result."""
    x = next(x for x in reversed(tensors) if x.dtype == torch.float32 and x.numel())
    x.view(torch.int32).view(-1)[0] ^= 1


def _statistics(tensors: list[Tensor]) -> None:
    for x in tensors:
        if x.dtype == torch.int64 and x.dim() == 0:
            x += 1


def _draw(tensors: list[Tensor]) -> None:
    torch.rand(1)


@pytest.mark.parametrize(
    ("spoil", "first"),
    [(_last_bit, "output 0"), (_statistics, "norm.num_batches_tracked"), (_draw, "the random generator")],
)
def test_a_replay_with_other_bytes_retires_and_names_the_first_tensor(spoil: Any, first: str) -> None:
    class Engine(Corrupt):
        pass

    Engine.spoil = staticmethod(spoil)
    twin = Twin(Net(), engine=Engine)
    for _ in range(6):
        twin.step(images())
    assert "replay" not in twin.calls
    ((reason, why, _),) = twin.notes.retirements
    assert reason is Reason.UNLIKE and why.startswith(first), why
    assert twin.notes.proofs == 0 and gc.isenabled()


def test_a_backward_with_other_bytes_is_found_too() -> None:
    class OnlyBackward(Corrupt):
        captures = 0

        def capture(self, body: Callable[[], Any], after: Any = None) -> Any:
            self.captures += 1
            return super().capture(body) if self.captures == 2 else TapeEngine.capture(self, body)

        spoil = staticmethod(lambda tensors: [x.mul_(1.5) for x in tensors if x.dtype == torch.float32] and None)

    twin = Twin(Net(), engine=OnlyBackward)
    for _ in range(6):
        twin.step(images())
    assert "gradient of" in twin.notes.retirements[0][1] and "replay" not in twin.calls


class Random(Net):
    """Another result each time, by no generator that anybody knows."""

    noise = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if TapeEngine._open:
            return y
        return y + torch.rand((), generator=self.noise)


def test_a_part_that_is_random_natively_is_unprovable() -> None:
    twin = Twin(Random())
    for _ in range(6):
        result = twin.forward(images())
        result.sum().backward()
        twin.region.after_backward()
        twin.region.next_step()
    ((reason, why, _),) = twin.notes.retirements
    assert reason is Reason.UNPROVABLE and "trainer.deterministic=true" in why
    assert "replay" not in twin.calls


def test_it_is_proven_again_after_many_replays_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "SECOND_PROOF", 3)
    twin = Twin(Net())
    calls = [twin.step(images(seed=seed)) for seed in range(16)]
    assert calls == ["warmup"] * 4 + ["replay"] * 3 + ["warmup"] + ["replay"] * 8
    assert twin.notes.proofs == 2


def test_the_second_proof_finds_what_went_stale_since_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "SECOND_PROOF", 2)
    factors = [1.0]

    class Frozen(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * factors[0]

    twin = replaying(Frozen())
    twin.step(images())
    factors[0] = 2.0
    twin.step(images())
    assert twin.notes.retirements[0][0] is Reason.UNLIKE


def test_each_signature_is_proven() -> None:
    twin = replaying()
    for _ in range(12):
        twin.step(images(size=6))
    assert twin.notes.proofs == 2


def test_a_proof_without_backward_is_done_again() -> None:
    twin = Twin(Net())
    for _ in range(3):
        twin.step(images())
    twin.step(images(), loss=lambda result: result.detach().sum())
    assert twin.notes.proofs == 0
    assert twin.step(images()) == "warmup"
    assert twin.notes.proofs == 1 and twin.step(images()) == "replay"


def test_a_proof_counts_what_is_accumulated_elsewhere_to_nobody() -> None:
    """Gradients from before, and from a term outside the region, are not the region's."""

    def with_decay(twin: Twin, net: nn.Module) -> Callable[[Any], Tensor]:
        return lambda result: squares(result) + sum(x.square().sum() for x in net.parameters())

    twin = Twin(Net())
    for seed in range(6):
        state = torch.get_rng_state()
        for net, forward in ((twin.native, twin.native.forward), (twin.module, twin.forward)):
            torch.set_rng_state(state)
            twin.region.next_step()
            with_decay(twin, net)(forward(images(seed=seed))).backward()
            twin.region.after_backward()
        twin.compare_state()
    assert twin.calls[-1] == "replay" and twin.notes.proofs == 1


def test_gradients_that_are_changed_before_the_verdict_do_not_disturb_it() -> None:
    twin = Twin(Net())
    for _ in range(3):
        twin.step(images())
    twin.forward(images()).square().sum().backward()
    for x in twin.module.parameters():
        x.grad.mul_(0.1)
    twin.region.after_backward()
    assert twin.notes.proofs == 1


class WritesItsWeights(Net):
    """Moves a weight where no version counts it."""

    def forward(self, x: Tensor) -> Tensor:
        self.head.weight.data.mul_(0.9)
        return super().forward(x)


def test_a_weight_that_the_part_moves_itself_moves_once_a_step() -> None:
    twin = Twin(WritesItsWeights())
    for seed in range(7):
        twin.step(images(seed=seed))
    assert twin.calls[-1] == "replay"


def test_an_error_in_the_proof_leaves_the_native_state(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Twin(Net())
    for _ in range(3):
        twin.step(images())
    real = Proof._named
    fail = lambda *args: (_ for _ in ()).throw(torch.OutOfMemoryError("full"))  # noqa: E731
    calls = iter([real, fail])
    monkeypatch.setattr(Proof, "_named", lambda *args: next(calls)(*args))
    twin.step(images())
    assert twin.notes.retirements[0][0] is Reason.MEMORY and gc.isenabled()


def test_nothing_stays_on_parameters_after_a_proof() -> None:
    twin = replaying()
    assert not any(x._backward_hooks for x in twin.module.parameters())


def test_off_means_that_nothing_is_compared() -> None:
    class Engine(Corrupt):
        spoil = staticmethod(_last_bit)

    twin = Twin(Net(), proof=False, engine=Engine)
    for _ in range(3):
        twin.step(images())
    with pytest.raises(AssertionError, match="behind the region"):
        twin.step(images())

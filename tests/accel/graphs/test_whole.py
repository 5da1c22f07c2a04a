"""A whole step, without Lightning: its gradients go to parameters, its batch is sealed, its names are heard."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs.aside import Aside, Nothing
from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.engine import CaptureError
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.graphs.whole import WholeStep
from lucid_accel.reasons import Reason
from tests.accel.graphs.twin import Net, Notes, images

__all__ = ["Pair"]


class Pair:
    """The same module twice: one steps natively, one behind a whole step. Every step compares all gradients.

    Args:
        native: The first one.
        module: The second one; a copy unless given.
        aside: See :class:`WholeStep`.
        frozen: Likewise.
        proof: Likewise.
        engine: Makes the engine.
    """

    def __init__(
        self,
        native: nn.Module,
        module: nn.Module | None = None,
        aside: Aside | None = None,
        frozen: Collection[str] = (),
        proof: bool = True,
        engine: Callable[[torch.device], TapeEngine] = TapeEngine,
    ) -> None:
        self.native, self.module = native, module or copy.deepcopy(native)
        self.module.load_state_dict(native.state_dict())
        self.notes = Notes()
        made = engine(torch.device("cpu"))
        self.step_of = WholeStep(
            made, self.module, self.notes, lambda _: (), proof, aside or Nothing(), ["x", "index"], ["training"], frozen
        )
        self.optimizers = [torch.optim.SGD(x.parameters(), 0.1, momentum=0.9) for x in (self.native, self.module)]

    def both(self, act: Callable[[Any], Any]) -> None:
        act(self.native)
        act(self.module)

    def step(self, *args: Any, micro: int = 1, scale: float = 1.0, cleared: bool = True) -> str:
        """Step both, compare, and return what the second one did."""
        state = torch.get_rng_state()
        for routed in (False, True):
            torch.set_rng_state(state)
            for _ in range(micro):
                module: Any = self.module if routed else self.native
                if routed:
                    self.step_of.next_step()
                loss = self.step_of(module.forward, *args) if routed else module(*args)
                ((loss["loss"] if isinstance(loss, dict) else loss) * scale).backward()
                if routed:
                    self.step_of.after_backward()
        self.compare()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=cleared)
        self.compare()
        return self.notes.calls[-1]

    def compare(self) -> None:
        pairs = zip(self.native.named_parameters(), self.module.parameters(), strict=True)
        for (name, one), other in pairs:
            assert same_bits(one, other), name
            assert same_bits(one.grad, other.grad), f"gradient of {name} in call {len(self.notes.calls)}"
        for (name, one), other in zip(self.native.named_buffers(), self.module.buffers(), strict=True):
            assert same_bits(one, other), name

    def replaying(self, *args: Any, **options: Any) -> Pair:
        for _ in range(5):
            if self.step(*args, **options) == "replay":
                return self
        raise AssertionError((self.notes.calls, self.notes.retirements))


class Squares(Net):
    """A net and its loss."""

    gain = 1.0

    def forward(self, x: Tensor, index: int = 0) -> Tensor:
        return super().forward(x).square().mean() * self.gain


class Headed(Squares):
    """Uses another head for large pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor, index: int = 0) -> Tensor:
        found = Net.forward(self, x)
        return (self.other(found) if x.shape[-1] > 5 else found).square().mean()


def test_three_native_steps_one_proof_then_replays() -> None:
    pair = Pair(Squares())
    for index in range(8):
        pair.step(images(seed=index), index)
    assert pair.notes.calls == ["warmup"] * 4 + ["replay"] * 4
    assert (pair.notes.captures, pair.notes.proofs) == (1, 1)


@pytest.mark.parametrize("cleared", [True, False])
@pytest.mark.parametrize("micro", [1, 3])
def test_gradients_are_accumulated_scaled_and_cleared_as_ever(micro: int, cleared: bool) -> None:
    pair = Pair(Squares()).replaying(images(), 0, micro=micro, scale=0.5, cleared=cleared)
    for index in range(4):
        assert pair.step(images(seed=index), index, micro=micro, scale=2.0**index, cleared=cleared) == "replay"


def test_gradients_are_told_apart_from_others() -> None:
    pair = Pair(Squares()).replaying(images(), 0)
    params = list(pair.module.parameters())
    assert pair.step_of.gradients(params) is None
    loss = pair.step_of(pair.module.forward, images(), 0)
    assert pair.step_of.gradients(params) is None
    loss.backward()
    found = pair.step_of.gradients(params)
    assert found is not None
    assert all(x.grad is y for x, y in zip(params, found, strict=True))
    params[0].grad = params[0].grad.clone()  # type: ignore[union-attr]
    assert pair.step_of.gradients(params) is None
    assert pair.step_of.gradients(params[1:]) is not None
    pair.step_of.drop()
    assert pair.step_of.gradients(params[1:]) is None


@pytest.mark.parametrize("micro", [1, 2])
def test_signatures_share_the_gradients_and_reach_other_parameters(micro: int) -> None:
    pair = Pair(Headed())
    calls = [pair.step(images(size=size, seed=n), 0, micro=micro) for n, size in enumerate((5, 6) * 14)]
    assert calls[-4:] == ["replay"] * 4
    assert pair.notes.captures == 2
    assert pair.notes.retirements == []


def test_signatures_that_alternate_within_a_window_keep_what_they_do_not_reach() -> None:
    pair = Pair(Headed())
    for n in range(26):
        pair.step(images(size=5 + n % 2, seed=n), 0)
    small, large = images(size=5), images(size=6)
    for order in ((small, large), (large, small), (large, small, large)):
        for module in (pair.native, pair.module):
            module.zero_grad()
            torch.manual_seed(1)
            for x in order:
                pair.step_of.next_step()
                loss = module(x) if module is pair.native else pair.step_of(module.forward, x, 0)
                loss.backward()
        pair.compare()
    assert pair.notes.calls[-7:] == ["replay"] * 7


def test_a_second_backward_is_computed_natively_and_ends_it() -> None:
    pair = Pair(Squares()).replaying(images(), 0)
    for module in (pair.native, pair.module):
        torch.manual_seed(1)
        loss = module(images()) if module is pair.native else pair.step_of(module.forward, images(), 0)
        loss.backward(retain_graph=True)
        loss.backward()
    pair.compare()
    pair.step_of.next_step()
    ((reason, why, _),) = pair.notes.retirements
    assert (reason, why) == (Reason.MISSING_GRAD, "its result went backward a second time")
    assert pair.step(images(), 0) == "retired"


def test_two_results_at_once_are_native_but_the_first() -> None:
    pair = Pair(Squares()).replaying(images(), 0)
    for module in (pair.native, pair.module):
        torch.manual_seed(1)
        call = module if module is pair.native else lambda x, m=module: pair.step_of(m.forward, x, 0)
        (call(images(seed=1)) + call(images(seed=2))).backward()
    pair.compare()
    assert pair.notes.calls[-2:] == ["replay", "outstanding_backward"]


def test_an_input_that_wants_a_gradient_is_refused() -> None:
    pair = Pair(Squares())
    x = images().requires_grad_()
    for _ in range(3):
        pair.step(x, 0)
    ((reason, why, cause),) = pair.notes.retirements
    assert reason is Reason.CAPTURE_FAILED
    assert "one of its inputs wants a gradient" in why
    assert isinstance(cause, CaptureError)


def test_a_parameter_with_gaps_is_refused() -> None:
    net = Squares()
    for module in (net,):
        module.head.weight = nn.Parameter(torch.randn(2, 8, 1, 1)[:, :4])
    pair = Pair(net, copy.deepcopy(net))
    pair.module.head.weight = nn.Parameter(torch.randn(2, 8, 1, 1)[:, :4])  # type: ignore[union-attr]
    pair.module.load_state_dict(net.state_dict())
    pair.optimizers = [torch.optim.SGD(x.parameters(), 0.1, momentum=0.9) for x in (pair.native, pair.module)]
    for _ in range(4):
        pair.step(images(), 0)
    ((reason, why, _),) = pair.notes.retirements
    assert (reason, "a parameter has gaps" in why) == (Reason.CAPTURE_FAILED, True)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_on_parameters_are_native_for_as_long_as_they_are_there(register: str) -> None:
    pair = Pair(Squares()).replaying(images(), 0)
    handles: list[Any] = []
    pair.both(lambda m: handles.append(getattr(m.head.weight, register)(lambda _: None)))
    assert pair.step(images(), 0) == "hooks"
    for handle in handles:
        handle.remove()
    assert pair.step(images(), 0) == "replay"


def test_freezing_starts_anew_with_gradients_of_their_own() -> None:
    pair = Pair(Squares()).replaying(images(), 0)
    before = pair.step_of.attached
    pair.both(lambda m: m.conv.weight.requires_grad_(False))
    pair.replaying(images(), 0)
    assert pair.step_of.attached is not before
    assert pair.notes.rearms == ["the set of trainable parameters changed"]


# Names


class Noisy(Squares):
    """Has attributes that its step reads, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = 1.0
        self.seen = 0
        self.current_epoch = 0


def test_only_attributes_that_the_step_mentions_are_watched() -> None:
    pair = Pair(Noisy()).replaying(images(), 0)
    pair.both(lambda m: setattr(m, "seen", 5))
    assert pair.step(images(), 0) == "replay"
    pair.both(lambda m: setattr(m, "gain", 2.0))
    assert pair.step(images(), 0) == "scalars"
    assert pair.notes.retirements[0][1] == "the attribute gain changed"


def test_a_step_that_mentions_what_changes_is_never_recorded() -> None:
    class Late(Noisy):
        def forward(self, x: Tensor, index: int = 0) -> Tensor:
            return super().forward(x) * (1.0 + self.current_epoch)

    pair = Pair(Late(), frozen=["current_epoch"])
    for _ in range(4):
        pair.step(images(), 0)
    assert pair.notes.captures == 0
    ((reason, why, _),) = pair.notes.retirements
    assert (reason, why) == (Reason.SCALARS, "the step mentions current_epoch, which a recording would freeze")


def test_an_index_may_be_there_but_not_be_read() -> None:
    class Counting(Squares):
        def forward(self, x: Tensor, index: int = 0) -> Tensor:
            return super().forward(x) * (1.0 + index)

    pair = Pair(Counting())
    for index in range(4):
        pair.step(images(), index)
    ((reason, why, _),) = pair.notes.retirements
    assert reason is Reason.CAPTURE_FAILED
    assert "it reads index, which is no tensor on the device" in why


# Failures


@pytest.mark.parametrize("stage", [0, 1])
def test_a_failure_while_recording_changes_nothing(stage: int) -> None:
    class Fuse(TapeEngine):
        captures = 0

        def capture(self, body: Any, after: Any = None) -> Any:
            def failing() -> Any:
                made = body()
                if Fuse.captures == stage + 1:
                    raise ValueError("no more")
                return made

            Fuse.captures += 1
            return super().capture(failing, after)

    pair = Pair(Squares(), engine=Fuse)
    calls = [pair.step(images(seed=n), n) for n in range(5)]
    assert calls == ["warmup", "warmup", "capture_failed", "retired", "retired"]
    ((reason, why, _),) = pair.notes.retirements
    assert (reason, "no more" in why) == (Reason.CAPTURE_FAILED, True)


# Controls: each breaks one thing, and the pair sees it


def test_a_replay_that_writes_where_it_should_add_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid_accel.graphs.packed import Packed

    pair = Pair(Squares()).replaying(images(), 0, micro=2)
    monkeypatch.setattr(Packed, "add_", Packed.copy_)
    with pytest.raises(AssertionError, match=r"gradient of conv\.weight"):
        pair.step(images(), 0, micro=2)


def test_a_replay_that_adds_where_it_should_write_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from lucid_accel.graphs.packed import Packed

    pair = Pair(Squares()).replaying(images(), 0)
    monkeypatch.setattr(Packed, "copy_", Packed.add_)
    with pytest.raises(AssertionError, match=r"gradient of conv\.weight"):
        pair.step(images(), 0)

"""Gradients in memory that stays: accumulated as autograd does, whatever somebody did to ``.grad`` meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs.attached import Attached
from lucid_accel.graphs.compare import same_bits

SHAPES = ((4, 3), (2, 3, 3, 3), (5,), ())


def parameters() -> list[nn.Parameter]:
    random = torch.Generator().manual_seed(0)
    made = [nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]
    made[1] = nn.Parameter(made[1].detach().contiguous(memory_format=torch.channels_last))
    return made


class Two:
    """Parameters whose gradients autograd accumulates, and their likes whose gradients are attached."""

    def __init__(self) -> None:
        self.native, self.own = parameters(), parameters()
        self.attached = Attached(self.own)
        self._random = torch.Generator().manual_seed(1)

    def backward(self, reached: Sequence[bool] = (True,) * 4) -> None:
        """Give the parameters that are reached a gradient of noise; of the others, nothing may be read."""
        gradients = [torch.randn(x.shape, generator=self._random) for x in self.native]
        terms = [(x * g).sum() for x, g, there in zip(self.native, gradients, reached, strict=True) if there]
        torch.stack(terms).sum().backward()
        for slot, gradient, there in zip(self.attached.written.slots, gradients, reached, strict=True):
            slot.copy_(gradient if there else torch.full_like(gradient, torch.nan))
        self.attached.take(reached)
        self.compare()

    def both(self, act: Callable[[list[nn.Parameter]], object]) -> None:
        act(self.native)
        act(self.own)
        self.compare()

    def compare(self) -> None:
        for one, other in zip(self.native, self.own, strict=True):
            assert same_bits(one.grad, other.grad)

    def held(self) -> bool:
        return self.attached.holds([x.grad for x in self.own if x.grad is not None])


def clear(params: list[nn.Parameter]) -> None:
    for x in params:
        x.grad = None


def test_they_are_written_added_and_written_again_in_one_place() -> None:
    two = Two()
    two.backward()
    first = [x.grad for x in two.own]
    assert two.held()
    two.backward()
    two.both(clear)
    two.backward()
    assert all(x.grad is kept for x, kept in zip(two.own, first, strict=True))
    assert all(x.grad.stride() == x.stride() for x in two.own if x.grad is not None)


def test_each_is_a_tensor_of_its_own_whose_writes_nobody_else_counts() -> None:
    two = Two()
    two.backward()
    versions = [x.grad._version for x in two.own if x.grad is not None]
    assert two.own[0].grad is not None
    two.own[0].grad.mul_(2)
    after = [x.grad._version for x in two.own if x.grad is not None]
    assert [later - earlier for earlier, later in zip(versions, after, strict=True)] == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "reached", [(True, False, True, False), (False, False, False, True), (False, True, True, True)]
)
def test_parameters_that_a_backward_does_not_reach_keep_what_they_have(reached: tuple[bool, ...]) -> None:
    two = Two()
    two.backward(reached)
    two.backward()
    two.backward(reached)
    two.both(clear)
    two.backward()
    two.both(lambda params: [setattr(x, "grad", None) for x, there in zip(params, reached, strict=True) if there])
    two.backward(reached)
    two.both(clear)
    two.backward(reached)
    assert [x.grad is not None for x in two.own] == list(reached)
    two.both(clear)
    two.backward()
    two.backward(reached)
    assert two.held()


EDITS: dict[str, Callable[[Tensor], Tensor | None]] = {
    "exchanged": lambda g: g * 2,
    "dropped": lambda g: None,
    "edited in place": lambda g: g.mul_(0.5),
    "zeroed": lambda g: g.zero_(),
}


@pytest.mark.parametrize("cleared", [True, False])
@pytest.mark.parametrize("which", [slice(0, 1), slice(0, 4)])
@pytest.mark.parametrize("edit", EDITS)
def test_gradients_that_somebody_touched_are_accumulated_as_ever(edit: str, which: slice, cleared: bool) -> None:
    def touch(params: list[nn.Parameter]) -> None:
        for x in params[which]:
            assert x.grad is not None
            x.grad = EDITS[edit](x.grad)

    two = Two()
    two.backward()
    two.both(touch)
    assert two.held() is (edit in ("edited in place", "zeroed") or (edit == "dropped" and which.stop == 1))
    if cleared:
        two.both(clear)
    two.backward()
    two.backward()
    two.both(clear)
    two.backward()
    assert two.held()


@pytest.mark.parametrize("cleared", [True, False])
def test_a_gradient_that_was_given_other_memory_is_put_back_once_it_is_cleared(cleared: bool) -> None:
    def give(params: list[nn.Parameter]) -> None:
        for x in params[:2]:
            assert x.grad is not None
            x.grad.data = x.grad.data * 0.5

    two = Two()
    two.backward()
    ids = [id(x.grad) for x in two.own]
    two.both(give)
    assert not two.held()
    if cleared:
        two.both(clear)
    two.backward()
    assert two.held() is cleared
    two.both(clear)
    two.backward()
    assert two.held()
    assert [id(x.grad) for x in two.own] == ids


def test_gradients_that_were_computed_natively_are_added_in_the_layout_of_their_parameters() -> None:
    two = Two()
    gradients = [torch.randn(x.shape) for x in two.own]
    two.attached.add([*gradients[:3], None])
    assert [x.grad is None for x in two.own] == [False, False, False, True]
    assert two.own[1].grad is not None
    assert two.own[1].grad.stride() == two.own[1].stride()
    two.attached.add([None, *gradients[1:]])
    assert same_bits(two.own[0].grad, gradients[0])
    assert torch.equal(two.own[1].grad, gradients[1] + gradients[1])
    assert not two.held()


def test_nothing_is_held_where_there_is_no_gradient() -> None:
    assert not Two().held()


def test_hooks_on_parameters_are_seen_while_they_are_there() -> None:
    two = Two()
    for register in ("register_hook", "register_post_accumulate_grad_hook"):
        assert not two.attached.hooked()
        handle = getattr(two.own[2], register)(lambda _: None)
        assert two.attached.hooked()
        handle.remove()
    assert not two.attached.hooked()


def test_a_parameter_with_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="a parameter has gaps, or overlaps itself"):
        Attached([nn.Parameter(torch.randn(4, 4)[:, :2])])


def test_without_parameters_nothing_happens() -> None:
    attached = Attached([])
    attached.take([])
    attached.add([])
    assert not attached.hooked()


def test_what_is_written_has_the_layout_of_the_parameter_whatever_that_of_the_gradient() -> None:
    """Also a kernel of one pixel, whose two memory formats differ in strides alone, and a gradient turned about."""
    like = [torch.randn(4, 3, 1, 1).to(memory_format=torch.channels_last), torch.randn(4, 3)]
    attached = Attached([nn.Parameter(x) for x in like])
    gradients = [torch.randn(4, 3, 1, 1).as_strided((4, 3, 1, 1), (3, 1, 1, 1)), torch.randn(3, 4).t()]
    attached.write([*gradients])
    for slot, x, gradient in zip(attached.written.slots, like, gradients, strict=True):
        assert slot.stride() == x.stride() and torch.equal(slot, gradient)
    before = [x.clone() for x in attached.written.slots]
    attached.write([None, gradients[1] * 2])
    assert torch.equal(attached.written.slots[0], before[0])
    assert torch.equal(attached.written.slots[1], before[1] * 2)


def test_released_gradients_have_memory_of_their_own() -> None:
    two = Two()
    two.backward()
    exchanged = torch.zeros_like(two.own[3])
    two.own[3].grad = exchanged
    kept = [x.grad for x in two.own]
    two.attached.release()
    for x, old in zip(two.own[:3], kept[:3], strict=True):
        assert x.grad is not old and same_bits(x.grad, old)
        assert x.grad is not None and x.grad.untyped_storage().nbytes() == 4 * x.numel()
    assert two.own[3].grad is exchanged

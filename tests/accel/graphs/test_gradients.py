"""Gradients of replayed calls: which come, how they are laid out and added, and whose they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid_accel.reasons import Reason
from tests.accel.graphs.twin import Net, Twin, images, replaying, squares


class Several(Net):
    """Several results of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(4, 3, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.norm(self.conv(x)).relu()
        return {"head": self.head(self.drop(y)), "rest": [self.other(y), y], "count": y.argmax(1), "name": "several"}


def head_only(result: Any) -> Tensor:
    return result["head"].square().mean()


@pytest.mark.parametrize("net", [Net, Several])
def test_many_steps_over_changing_images_change_no_byte(net: type[nn.Module]) -> None:
    twin = replaying(net())
    for seed in range(8):
        assert twin.step(images(seed=seed)) == "replay"


def test_a_branch_without_gradient_gets_none() -> None:
    twin = Twin(Several())
    assert twin.replay(images(), loss=head_only) == "replay"
    twin.step(images(), loss=head_only, update=False)
    assert twin.module.other.weight.grad is None and twin.module.head.weight.grad is not None


@pytest.mark.parametrize("first, then", [(head_only, squares), (squares, head_only)])
@pytest.mark.parametrize("proof", [True, False])
def test_another_set_of_gradients_is_right_at_once_and_retires_at_the_next_step(
    first: Callable[[Any], Tensor], then: Callable[[Any], Tensor], proof: bool
) -> None:
    twin = Twin(Several(), proof=proof)
    assert twin.replay(images(), loss=first) == "replay"
    assert twin.step(images(seed=1), loss=then) == "replay"
    assert twin.step(images(seed=2), loss=then) == "retired"
    assert twin.notes.retirements[0][0] is Reason.MISSING_GRAD


class Remembers(Net):
    """Its result depends on a buffer that it moves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.mean.mul_(0.9).add_(x.mean())
        y = super().forward(x)
        return y * self.mean, y


def test_a_surprising_backward_starts_from_the_buffers_and_random_numbers_of_its_forward() -> None:
    twin = Twin(Remembers())
    assert twin.replay(images(), loss=squares) == "replay"
    twin.step(images(seed=1), loss=lambda result: result[0].square().mean())
    twin.step(images(seed=2), loss=lambda result: result[0].square().mean())
    assert twin.calls[-2:] == ["replay", "retired"]


def test_a_surprising_backward_takes_back_no_random_number_that_was_drawn_since() -> None:
    twin = Twin(Several())
    assert twin.replay(images(), loss=squares) == "replay"
    assert twin.step(images(), loss=lambda result: head_only(result) * torch.rand(())) == "replay"
    twin.region.next_step()
    assert twin.notes.retirements[0][0] is Reason.MISSING_GRAD


def test_a_hook_on_a_parameter_is_called_once_where_a_backward_surprises() -> None:
    twin = Twin(Several())
    twin.both(lambda net: net.conv.weight.register_hook(lambda gradient: gradient * 3))
    assert twin.replay(images(), loss=squares) == "replay"
    assert twin.step(images(), loss=head_only) == "replay"


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum, expanded": lambda y: y.sum(),
    "mean over images": lambda y: y.mean((0, 1)).square().sum(),
    "permuted": lambda y: (y.permute(0, 2, 3, 1).contiguous() * torch.arange(2.0)).square().sum(),
    "flat": lambda y: y.flatten(1).square().mean(),
    "sliced": lambda y: y[:, :1, 1:].square().sum(),
    "of nothing": lambda y: y[:0].sum(),
    "in bfloat16": lambda y: y.bfloat16().square().sum().float(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_arrive_with_the_strides_they_have_natively(name: str) -> None:
    twin = Twin(Net())
    assert twin.replay(images(), loss=LOSSES[name]) == "replay"
    assert twin.step(images(seed=1), loss=LOSSES[name]) == "replay"


def test_a_gradient_of_another_layout_is_right_and_retires() -> None:
    twin = Twin(Net())
    assert twin.replay(images(), loss=LOSSES["sum, expanded"]) == "replay"
    assert twin.step(images(), loss=LOSSES["permuted"]) == "replay"
    assert twin.step(images(), loss=LOSSES["permuted"]) == "retired"


def test_channels_last_images_and_weights_replay() -> None:
    net = Net().to(memory_format=torch.channels_last)
    x = images().to(memory_format=torch.channels_last)
    assert replaying(net, x).step(x) == "replay"


def test_accumulated_gradients_add_up_as_natively() -> None:
    twin = replaying()
    for seed in range(3):
        twin.step(images(seed=seed), micro=2, update=seed != 1)
    assert twin.calls[-6:] == ["replay"] * 6


def test_what_is_handed_out_is_never_touched_again() -> None:
    twin = replaying()
    x = images().requires_grad_()
    first = twin.forward(images())
    first.square().sum().backward()
    kept = [first, *(p.grad for p in twin.module.parameters())]
    values = [y.detach().clone() for y in kept]
    twin.module.zero_grad()
    for seed in range(3):
        twin.region.next_step()
        twin.forward(images(seed=seed)).sum().backward()
        twin.module.zero_grad()
    assert all(map(torch.equal, kept, values)) and x.grad is None


def test_results_may_be_written_to() -> None:
    def doubled(result: Tensor) -> Tensor:
        return result.mul_(2).square().sum()

    twin = Twin(Net())
    assert twin.replay(images(), loss=doubled) == "replay"
    assert twin.step(images(), loss=doubled) == "replay"


def test_a_second_backward_is_native_and_ends_the_replay() -> None:
    twin = replaying()

    def twice(result: Any) -> Tensor:
        result.sum().backward(retain_graph=True)
        return squares(result)

    assert twin.step(images(), loss=twice) == "replay"
    twin.region.next_step()
    assert "second time" in twin.notes.retirements[0][1]


def test_a_backward_after_the_next_forward_is_a_clear_error() -> None:
    twin = replaying()
    result = twin.forward(images()).sum()
    twin.region.next_step()
    twin.forward(images())
    with pytest.raises(RuntimeError, match="before the next forward"):
        result.backward()


def test_a_backward_after_the_end_is_a_clear_error() -> None:
    twin = replaying()
    result = twin.forward(images()).sum()
    twin.region.drop()
    with pytest.raises(RuntimeError, match="before the next forward"):
        result.backward()


def test_a_double_backward_is_a_clear_error() -> None:
    x = images().requires_grad_()
    twin = replaying(Net(), x)
    (gradient,) = torch.autograd.grad(twin.forward(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.parametrize("create_graph", [True, False])
def test_a_step_that_goes_backward_twice_is_never_recorded(create_graph: bool) -> None:
    twin = Twin(Net())
    for _ in range(5):
        result = twin.forward(images()).square().sum()
        result.backward(retain_graph=True, create_graph=create_graph)
        result.backward()
        twin.region.next_step()
        twin.module.zero_grad()
    assert twin.notes.captures == 0
    assert "backward" in twin.notes.retirements[0][1] or "differentiated" in twin.notes.retirements[0][1]


# Inputs that are trained


def test_an_input_gets_its_gradient() -> None:
    x = images().requires_grad_()
    twin = replaying(Net(), x)
    assert twin.step(images(seed=4).requires_grad_()) == "replay"


class Uses(nn.Module):
    """Uses its input ``count`` times."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([conv(x) for conv in self.convs]).sum(0)


def _around(twin: Twin, seed: int) -> None:
    """A step in which the input of the region has another user after it, and one before."""
    leaves = [images(seed=seed).requires_grad_() for _ in range(2)]
    for forward, leaf in zip((twin.native, twin.forward), leaves, strict=True):
        x = leaf * 1.5
        early = x.sin()
        (forward(x).square().sum() * 0.3 + (x * early).exp().sum() * 0.7).backward()
    twin.region.after_backward()
    twin.region.next_step()
    assert torch.equal(leaves[0].grad, leaves[1].grad)
    twin.compare_state()
    twin.both(lambda net: net.zero_grad())


def test_an_input_that_others_use_too_replays_where_sums_have_one_order() -> None:
    twin = Twin(Uses(1))
    for seed in range(8):
        _around(twin, seed)
    assert twin.calls[-1] == "replay"


@pytest.mark.parametrize("proof", [True, False])
def test_an_input_that_others_use_between_its_several_uses_stays_native(proof: bool) -> None:
    twin = Twin(Uses(3), proof=proof)
    for seed in range(8):
        _around(twin, seed)
    assert twin.notes.captures == 0
    assert "to which others add between its several uses" in twin.notes.retirements[0][1]


def test_an_input_that_others_use_between_for_the_first_time_in_the_proof_retires() -> None:
    twin = Twin(Uses(3))
    for seed in range(3):
        twin.step(images(seed=seed).requires_grad_())
    _around(twin, 3)
    assert (twin.notes.captures, twin.notes.proofs) == (1, 0)
    ((reason, why, _),) = twin.notes.retirements
    assert reason is Reason.UNLIKE and "to which others add between its several uses" in why
    _around(twin, 4)


def test_parameters_that_are_used_several_times_replay() -> None:
    class Shared(Net):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1)
            self.norm = nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.norm(self.conv(self.conv(x))))

    twin = replaying(Shared())
    assert twin.step(images(seed=1)) == "replay"


def test_weights_that_are_used_several_times_are_cast_once_as_natively() -> None:
    class Levels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.conv(x * scale) for scale in (1.0, 0.3, 0.07)]).float().sum(0)

    twin = Twin(Levels())
    for seed in range(7):
        twin.step(images(size=16, seed=seed), precision=torch.bfloat16)
    assert twin.calls[-1] == "replay" and twin.notes.proofs == 1


# Results


class Gives(Net):
    def __init__(self, how: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.how = [how]

    def forward(self, x: Tensor) -> Any:
        return self.how[0](super().forward(x))


RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "parts with gaps": lambda y: y.split(1, 1),
    "transposed": lambda y: y.transpose(1, 3),
    "expanded": lambda y: (y, y.mean().expand(3, 4), torch.arange(3.0).expand(2, 3)),
    "the same twice": lambda y: {"a": y, "b": [y, y.sum()], "c": y},
    "complex": lambda y: (y, torch.fft.rfft(y.detach())),
    "integers and booleans": lambda y: (y, y > 0, y.argmax(1)),
    "none and numbers": lambda y: [y, None, 3, 0.5, float("nan"), "name"],
    "parts of one": lambda y: (*y.split(1, 1), y.sum()),
    "empty": lambda y: (y, y[:0]),
    "a scalar": lambda y: y.sum(),
    "detached": lambda y: (y, y.detach().clone()),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_of_every_kind_are_as_natively(name: str) -> None:
    def loss(result: Any) -> Tensor:
        return squares([x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, Tensor) and x.numel()])

    twin = Twin(Gives(RESULTS[name]))
    for seed in range(7):
        state = torch.get_rng_state()
        expected = twin.native(images(seed=seed))
        torch.set_rng_state(state)
        twin.region.next_step()
        got = twin.forward(images(seed=seed))
        pairs = zip(*(torch.utils._pytree.tree_leaves(x) for x in (expected, got)), strict=True)
        for one, other in pairs:
            if isinstance(one, Tensor):
                assert one.stride() == other.stride() and one.requires_grad == other.requires_grad
                assert torch.equal(one, other)
            else:
                assert repr(one) == repr(other)
        loss(expected).backward()
        loss(got).backward()
        twin.region.after_backward()
        twin.compare_state()
        twin.both(lambda net: net.zero_grad())
    assert twin.calls[-1] == "replay", twin.notes.retirements


def test_one_result_under_two_names_stays_one_object() -> None:
    twin = replaying(Gives(lambda y: (y, y)))
    one, other = twin.forward(images())
    assert one is other


@pytest.mark.parametrize(
    "give", [lambda y: (y, y.detach()), lambda y: (y.detach(), y), lambda y: (y.detach(), y.detach())]
)
def test_a_result_beside_itself_detached_shares_its_memory_as_ever(give: Callable[[Tensor], Any]) -> None:
    twin = replaying(Gives(lambda y: (y * 2, *give(y))))
    first, one, other = twin.forward(images())
    assert one.data_ptr() == other.data_ptr() != first.data_ptr()
    assert [x.requires_grad for x in (one, other)] == [x.requires_grad for x in twin.native(images())[1:]]
    assert one is not other


@pytest.mark.parametrize("share", [lambda y: y.flatten(1), lambda y: y[:, :, 0], lambda y: y.detach()[0]])
def test_results_that_share_memory_retire(share: Callable[[Tensor], Tensor]) -> None:
    twin = Twin(Gives(lambda y: (y, share(y))))
    for _ in range(5):
        twin.step(images())
    assert "share memory" in twin.notes.retirements[0][1]


def test_a_result_that_overlaps_itself_retires() -> None:
    twin = Twin(Gives(lambda y: (y, (y * 1).detach().flatten().unfold(0, 3, 1))))
    for _ in range(5):
        twin.step(images())
    assert "overlaps itself" in twin.notes.retirements[0][1]


# Values


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1e-40])
def test_odd_values_go_through_alike(value: float) -> None:
    twin = replaying()
    x = images()
    x[0, 0, 0, 0] = value
    assert twin.step(x, update=False) == "replay"


def test_batch_statistics_move_once_a_step() -> None:
    twin = Twin(Net())
    for seed in range(7):
        twin.step(images(seed=seed))
    assert twin.module.norm.num_batches_tracked == 7

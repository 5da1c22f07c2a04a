"""MuSGD: the update rule, its numerical limits and its state."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid_core.network.detector import Network
from lucid_core.optim.build import build_optimizer
from lucid_core.optim.musgd import MuSGD
from lucid_core.optim.newton_schulz import newton_schulz
from lucid_core.optim.stacks import plan_stacks

SHAPES = [(64, 27), (64, 576), (16, 144), (144, 16), (1, 8), (21, 9), (85, 256)]


def orthogonalised_alone(matrix: Tensor, steps: int = 5) -> Tensor:
    """The iteration as the paper writes it, one matrix at a time, in float64."""
    x = matrix.double()
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


def test_newton_schulz_values() -> None:
    result = newton_schulz(torch.diag(torch.tensor([3.0, 1.0]))[None])[0]
    assert sorted(torch.linalg.svdvals(result).tolist()) == pytest.approx([0.753033, 1.133706], abs=2e-6)
    assert not newton_schulz(torch.zeros(2, 3, 5)).any()


def test_vector_update_values() -> None:
    """A constant gradient of 1: momentum 1 then 1.95, moves 1.95 then 2.8525."""
    p = nn.Parameter(torch.zeros(3))
    optimizer = MuSGD([p], lr=1.0, momentum=0.95)
    for total in (1.95, 1.95 + 2.8525):
        p.grad = torch.ones(3)
        optimizer.step()
        assert p.tolist() == pytest.approx([-total] * 3, rel=1e-6)


def test_matrix_update_follows_the_rule() -> None:
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in SHAPES]
    params = [nn.Parameter(p.clone()) for p in start]
    grads = [torch.randn(shape) for shape in SHAPES]
    optimizer = MuSGD(params, lr=0.1, momentum=0.9, weight_decay=0.01, w_muon=0.5, w_sgd=0.3)
    for p, g in zip(params, grads, strict=True):
        p.grad = g.clone()
    optimizer.step()
    for p, before, g in zip(params, start, grads, strict=True):
        v = 1.9 * g
        move = 0.5 * 0.2 * math.sqrt(max(p.shape)) * orthogonalised_alone(v) + 0.3 * v + 0.01 * before
        torch.testing.assert_close(p.detach().double(), before - 0.1 * move, rtol=1e-4, atol=1e-5)


def test_convolutions_in_either_memory_format_agree() -> None:
    torch.manual_seed(0)
    results = []
    weights, grads = ([torch.randn(8, 4, 3, 3), torch.randn(4, 1, 3, 3)] for _ in range(2))
    for layout in (torch.contiguous_format, torch.channels_last):
        params = [nn.Parameter(w.clone(memory_format=layout)) for w in weights]
        optimizer = MuSGD(params, lr=0.1)
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone(memory_format=layout)
        optimizer.step()
        assert all(p.stride() == optimizer.state[p]["momentum"].stride() for p in params)
        results.append([p.detach() for p in params])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e15])
def test_direction_does_not_depend_on_the_scale(scale: float) -> None:
    torch.manual_seed(0)
    matrix = torch.randn(1, 5, 8)
    torch.testing.assert_close(newton_schulz(matrix * scale), newton_schulz(matrix), rtol=1e-3, atol=1e-3)


def test_singular_values_are_those_of_a_direction() -> None:
    """Muon alone: it must not act as plain SGD."""
    torch.manual_seed(0)
    p = nn.Parameter(torch.zeros(64, 32))
    optimizer = MuSGD([p], lr=1.0, momentum=0.0, weight_decay=0.0, w_muon=1.0, w_sgd=0.0)
    p.grad = torch.randn(64, 32)
    optimizer.step()
    values = torch.linalg.svdvals(p.detach()) / (0.2 * math.sqrt(64))
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_a_non_finite_matrix_stays_in_its_own_parameter() -> None:
    params = [nn.Parameter(torch.ones(4, 6)) for _ in range(3)]
    optimizer = MuSGD(params, lr=0.1)
    for i, p in enumerate(params):
        p.grad = torch.randn(4, 6)
        if i == 1:
            p.grad[0, 0] = math.inf
    optimizer.step()
    assert [bool(p.isfinite().all()) for p in params] == [True, False, True]


def test_parameters_without_gradient_are_left_alone() -> None:
    """Absent gradients at odd steps change neither the others' bits nor their own state."""
    torch.manual_seed(0)
    start = [torch.randn(6, 8) for _ in range(3)] + [torch.randn(5)]
    together = [nn.Parameter(p.clone()) for p in start]
    alone = [nn.Parameter(p.clone()) for p in start]
    optimizer, singles = MuSGD(together, lr=0.1), [MuSGD([p], lr=0.1) for p in alone]
    for step in range(4):
        for i, (p, q) in enumerate(zip(together, alone, strict=True)):
            p.grad = q.grad = None if i == 1 and step % 2 else torch.randn(p.shape)
        before = together[1].detach().clone()
        optimizer.step()
        for single in singles:
            single.step()
        if step % 2:
            assert torch.equal(together[1], before)
    for p, q in zip(together, alone, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


def test_mixed_dtypes() -> None:
    params = [nn.Parameter(torch.ones(8, 8, dtype=d)) for d in (torch.float32, torch.bfloat16, torch.float16)]
    params += [nn.Parameter(torch.ones(4, dtype=torch.bfloat16))]
    optimizer = MuSGD(params, lr=0.1)
    for p in params:
        p.grad = torch.randn(p.shape, dtype=torch.float32).to(p.dtype)
    optimizer.step()
    for p in params:
        assert optimizer.state[p]["momentum"].dtype == p.dtype
        assert p.isfinite().all()
        assert not torch.equal(p, torch.ones_like(p))


def test_a_scheduled_rate_reaches_the_device() -> None:
    """The learning rate is read from the group at every step; frozen, the second step would equal the first."""
    p = nn.Parameter(torch.zeros(2))
    optimizer = MuSGD([p], lr=1.0, momentum=0.0)
    moves = []
    for lr in (1.0, 0.25):
        optimizer.param_groups[0]["lr"] = lr
        before = p.detach().clone()
        p.grad = torch.ones(2)
        optimizer.step()
        moves.append((before - p.detach())[0].item())
    assert moves == [1.0, 0.25]


def test_prepare_writes_no_parameter_and_has_no_rate() -> None:
    torch.manual_seed(0)
    start = [torch.randn(4, 6), torch.randn(3)]
    grads = [torch.randn(4, 6), torch.randn(3)]
    updates = []
    for lr in (0.1, 0.7):
        params = [nn.Parameter(p.clone()) for p in start]
        optimizer = MuSGD(params, lr=lr)
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        optimizer.write_scalars()
        with torch.no_grad():
            updates.append(optimizer.prepare(params, optimizer.param_groups[0], torch.tensor(5e-4)))
        assert all(torch.equal(p, q) for p, q in zip(params, start, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(*updates, strict=True))


def test_state_round_trip_continues_bit_for_bit() -> None:
    def steps(params: list[nn.Parameter], optimizer: MuSGD, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(2):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()

    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)), nn.Parameter(torch.randn(7))]
    optimizer = MuSGD(params, lr=0.1)
    steps(params, optimizer, 1)
    saved, weights = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in params]
    assert set(saved["state"][0]) == {"momentum"}
    saved["state"][0]["momentum"] = saved["state"][0]["momentum"].contiguous()
    steps(params, optimizer, 2)

    again = [nn.Parameter(w) for w in weights]
    resumed = MuSGD(again, lr=0.5)
    version = resumed.version
    resumed.load_state_dict(saved)
    assert resumed.version > version
    assert resumed.state[again[0]]["momentum"].stride() == again[0].stride()
    steps(again, resumed, 2)
    assert all(torch.equal(p, q) for p, q in zip(params, again, strict=True))


def test_extreme_state_survives_saving() -> None:
    p = nn.Parameter(torch.zeros(2))
    optimizer = MuSGD([p], lr=0.1)
    p.grad = torch.zeros(2)
    optimizer.step()
    optimizer.state[p]["momentum"].copy_(torch.tensor([1e5, 1e-9]))
    other = MuSGD([nn.Parameter(torch.zeros(2))], lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    assert torch.equal(next(iter(other.state.values()))["momentum"], torch.tensor([1e5, 1e-9]))


def test_every_matrix_is_packed_once() -> None:
    stacks = plan_stacks(tuple(SHAPES * 3))
    members = [i for stack in stacks for slot in stack.slots for i in slot.members]
    assert sorted(members) == list(range(len(SHAPES) * 3))
    for stack in stacks:
        assert all(slot.rows <= stack.rows and slot.columns <= stack.columns for slot in stack.slots)
    network = Network("n", 80)
    matrices = tuple((p.shape[0], p[0].numel()) for p in network.parameters() if p.ndim >= 2)
    assert len(plan_stacks(matrices)) <= 15


@pytest.mark.parametrize(
    ("setting", "value"),
    [("lr", -1), ("lr", math.nan), ("momentum", 1.0), ("weight_decay", -1), ("w_muon", math.nan), ("ns_steps", 0)],
)
def test_settings_are_checked(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=setting.replace("ns_steps", "Newton-Schulz")):
        MuSGD([nn.Parameter(torch.zeros(1))], **{"lr": 0.1, setting: value})  # type: ignore[arg-type]


def test_a_copy_and_a_pickle_go_on() -> None:
    torch.manual_seed(0)
    optimizer = MuSGD([nn.Parameter(torch.randn(4, 6))], lr=0.1)
    grads = [torch.randn(4, 6) for _ in range(2)]

    def step(o: MuSGD, grad: Tensor) -> Tensor:
        p: Tensor = o.param_groups[0]["params"][0]
        p.grad = grad.clone()
        o.step()
        return p.detach()

    step(optimizer, grads[0])
    others = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    expected = step(optimizer, grads[1])
    for other in others:
        assert torch.equal(step(other, grads[1]), expected)


@pytest.mark.parametrize("first", [MuSGD.load_state_dict, lambda o, state: pickle.loads(pickle.dumps(o))])
def test_state_is_loaded_again_and_into_copies(first: Any) -> None:
    param = nn.Parameter(torch.ones(2, 3))
    optimizer = MuSGD([param], lr=0.1)
    param.grad = torch.ones_like(param)
    optimizer.step()
    state = copy.deepcopy(optimizer.state_dict())
    again = first(optimizer, state) or optimizer
    again.load_state_dict(state)
    assert again.state_dict()["param_groups"] == state["param_groups"]


def test_odd_groups() -> None:
    """An empty group, one without gradients and a matrix without rows are passed over."""
    params = [nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(0, 4))]
    optimizer = MuSGD([{"params": []}, {"params": params[:1]}, {"params": params[1:], "lr": 1.0}], lr=0.1)
    for _ in range(2):
        params[1].grad, params[2].grad = torch.ones(2), torch.ones(0, 4)
        optimizer.step()
    assert torch.equal(params[0], torch.ones(3, 3))
    assert params[1].tolist() == pytest.approx([1 - 1.95 - 2.8525] * 2)


@pytest.mark.parametrize(("setting", "value"), [("momentum", 2.0), ("lr", -1.0), ("ns_steps", 0)])
def test_settings_of_a_group_are_checked(setting: str, value: float) -> None:
    optimizer = MuSGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    version = optimizer.version
    with pytest.raises(ValueError, match="MuSGD needs"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], setting: value})
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 0.3})
    assert optimizer.version == version + 1


@pytest.mark.parametrize("other", [torch.optim.SGD, torch.optim.AdamW])
def test_state_of_another_optimizer_is_refused(other: type[torch.optim.Optimizer]) -> None:
    p = nn.Parameter(torch.ones(2, 2))
    p.grad = torch.ones(2, 2)
    source = other([p], lr=0.1)  # type: ignore[call-arg]
    source.step()
    with pytest.raises(ValueError, match=r"not of MuSGD, it lacks .*w_muon"):
        MuSGD([nn.Parameter(torch.ones(2, 2))], lr=0.1).load_state_dict(source.state_dict())


def test_it_learns_faster_than_sgd() -> None:
    def steps_to(optimizer_of: type[torch.optim.Optimizer], **settings: float) -> int:
        torch.manual_seed(0)
        target, x = torch.randn(16, 16), torch.randn(64, 16)
        model = nn.Linear(16, 16)
        optimizer = optimizer_of(model.parameters(), **settings)  # type: ignore[arg-type]
        for step in range(500):
            loss = ((model(x) - x @ target) ** 2).mean()
            if loss < 0.1:
                return step
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return 500

    assert steps_to(MuSGD, lr=0.05, weight_decay=0.0) < steps_to(torch.optim.SGD, lr=0.05, momentum=0.95)


@pytest.mark.parametrize("name", ["musgd", "sgd", "adamw"])
def test_every_trainable_parameter_is_in_one_group(name: str) -> None:
    network = Network("n", 2)
    network.backbone.p3.requires_grad_(False)
    optimizer = build_optimizer(name, network.parameters(), 0.01, 0.9, 5e-4)  # type: ignore[arg-type]
    ids = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(ids) == sorted(id(p) for p in network.parameters() if p.requires_grad)
    for group in optimizer.param_groups:
        if name != "musgd":
            assert len({p.ndim >= 2 for p in group["params"]}) == 1


def test_momentum_is_that_of_its_parameter_whatever_came_first() -> None:
    first, second = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = MuSGD([first, second], lr=0.1)
    for moving in ([second], [first, second]):
        for param in moving:
            param.grad = torch.full_like(param, float(param is first))
        optimizer.step()
    assert [*map(id, optimizer.state)] == [id(second), id(first)]
    for param, momentum in zip((first, second), optimizer.momenta([first, second]), strict=True):
        assert momentum is optimizer.state[param]["momentum"]
        assert torch.equal(momentum, torch.full_like(param, float(param is first)))


def test_a_state_that_somebody_only_looked_at_gets_its_momentum() -> None:
    param = nn.Parameter(torch.ones(2, 2))
    optimizer = MuSGD([param], lr=0.1)
    assert optimizer.state[param] == {}
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert torch.equal(optimizer.state[param]["momentum"], param.grad)

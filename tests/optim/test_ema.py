"""The averaged network and the learning-rate schedule."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from lucid_core.optim.ema import AveragedNetwork, ema_decay
from lucid_core.optim.schedule import lr_factor, warmup_steps


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))


def test_decay_values() -> None:
    values = [ema_decay(n, 0.9999, 2000) for n in (1, 100, 2000, 10_000)]
    assert values == pytest.approx([0.0005, 0.0488, 0.632, 0.9932], abs=1e-4)


def test_it_follows_parameters_and_statistics() -> None:
    network = small()
    average = AveragedNetwork(network)
    expected = {name: t.clone().double() for name, t in network.state_dict().items()}
    for n in range(1, 4):
        network(torch.randn(2, 3, 8, 8)).sum().backward()
        with torch.no_grad():
            for p in network.parameters():
                p.sub_(0.1)
        average.write_scalars()
        average.update()
        d = ema_decay(n, 0.9999, 2000)
        for name, t in network.state_dict().items():
            expected[name] = d * expected[name] + (1 - d) * t.double()
    tensors = average.state_dict()["tensors"]
    assert average.updates == 3
    assert "1.running_var" in tensors
    assert "1.num_batches_tracked" not in tensors
    for name, t in tensors.items():
        torch.testing.assert_close(t.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert not average.network.training
    assert not any(p.requires_grad for p in average.network.parameters())


def test_equal_to_the_network_before_the_first_update() -> None:
    network = small()
    state = AveragedNetwork(network).network.state_dict()
    assert all(torch.equal(t, state[name]) for name, t in network.state_dict().items())


def test_made_under_inference_mode_it_can_still_be_updated() -> None:
    network = small()
    with torch.inference_mode():
        average = AveragedNetwork(network)
        average.to(torch.device("cpu"), torch.float64)
        average.to(torch.device("cpu"), torch.float32)
    average.write_scalars()
    average.update()


def test_state_round_trip_keeps_layout_and_continues() -> None:
    network = small().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = AveragedNetwork(network, tau=3)
    for target in (average, copy.deepcopy(average)):
        target.write_scalars()
        target.update()
    state = {"updates": 1, "tensors": {n: t.contiguous().clone() for n, t in average.state_dict()["tensors"].items()}}
    other = AveragedNetwork(network, tau=3)
    other.load_state_dict(state)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    for a in (average, other):
        a.write_scalars()
        a.update()
    for name, t in average.state_dict()["tensors"].items():
        assert torch.equal(t, other.state_dict()["tensors"][name])
        assert t.stride() == other.state_dict()["tensors"][name].stride()


def test_weights_of_another_network_are_refused() -> None:
    average = AveragedNetwork(small())
    state = average.state_dict()
    state["tensors"].pop("0.bias")
    with pytest.raises(ValueError, match=r"0\.bias"):
        average.load_state_dict(state)


@pytest.mark.parametrize(("decay", "tau"), [(1.0, 1.0), (-0.1, 1.0), (0.9, 0.0), (math.nan, 1.0)])
def test_settings_are_checked(decay: float, tau: float) -> None:
    with pytest.raises(ValueError, match="must"):
        AveragedNetwork(small(), decay, tau)


def test_learning_rate_values() -> None:
    values = [lr_factor(step, total=100, warmup=10, final=0.01) for step in (0, 9, 55, 99)]
    assert values == pytest.approx([0.1, 1.0, 0.4994, 0.01], abs=2e-4)
    assert warmup_steps(100, 50, 3.0) == 6
    assert warmup_steps(10, 2, 3.0) == 9
    assert warmup_steps(0, 2, 3.0) == 0

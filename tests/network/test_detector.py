"""Sizes, shapes and layout of the network."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from lucid_core.network.blocks import BatchNorm
from lucid_core.network.detector import Network


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parts_of_the_nano_network() -> None:
    network = Network("n", 80)
    assert count(network.backbone) + count(network.neck) == 2_231_952
    assert count(network.one_to_one) == count(network.one_to_many) == 102_800
    matrices = [p for p in network.parameters() if p.ndim >= 2]
    assert len(matrices) == 127
    assert len(list(network.parameters())) - len(matrices) == 242


def test_outputs_and_prior() -> None:
    torch.manual_seed(0)
    predictions = Network("n", 5).eval()(torch.rand(2, 3, 64, 96))
    for branch in (predictions.one_to_many, predictions.one_to_one):
        assert branch.logits.shape == (2, 126, 5)
        assert branch.distances.shape == (2, 126, 4)
        assert branch.logits.sigmoid().mean().item() == pytest.approx(0.01, rel=0.5)
    assert predictions.anchors.centres.shape == (126, 2)
    bias = Network("n", 5).one_to_one.get_submodule("classes.0.4").get_parameter("bias")
    assert bias.tolist() == pytest.approx([-math.log(99)] * 5)


def test_flattened_rows_follow_the_anchors() -> None:
    """An anchor's row answers to its own place in the image."""
    torch.manual_seed(0)
    network = Network("n", 2).eval()
    branch = network.one_to_one
    sizes = zip(network.neck.widths, (8, 16, 32), strict=True)
    features = [torch.zeros(1, width, 64 // s, 96 // s) for width, s in sizes]
    base = branch(tuple(features)).logits
    features[1][0, :, 2, 3] = 5.0
    moved = (branch(tuple(features)).logits != base).any(-1)[0].nonzero().flatten().tolist()
    assert 96 + 2 * 6 + 3 in moved
    assert all(96 <= row < 96 + 24 for row in moved)


@pytest.mark.parametrize("training", [True, False])
def test_memory_format_changes_only_rounding(training: bool) -> None:
    torch.manual_seed(0)
    network = Network("n", 3).train(training)
    image = torch.rand(2, 3, 64, 64)
    plain = network(image)
    last = copy.deepcopy(network).to(memory_format=torch.channels_last)(image.to(memory_format=torch.channels_last))
    for a, b in zip((*plain.one_to_many, *plain.one_to_one), (*last.one_to_many, *last.one_to_one), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4)


def test_same_seed_gives_the_same_network() -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(Network("n", 4).state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_anchors_made_under_inference_mode_can_train() -> None:
    network = Network("n", 2)
    with torch.inference_mode():
        network(torch.rand(1, 3, 160, 32))
    predictions = network(torch.rand(2, 3, 160, 32))
    scaled = predictions.one_to_one.distances * predictions.anchors.strides
    scaled.sum().backward()


def test_plain_weights_load_and_synchronised_statistics_convert() -> None:
    """Batches are not counted, and what expects the counter of torch's layer still works."""
    network = Network("n", 2)
    network(torch.rand(2, 3, 64, 64))
    counters = [t for name, t in network.state_dict().items() if "num_batches" in name]
    assert len(counters) == 115
    assert not any(counters)
    Network("n", 2).load_state_dict({name: t for name, t in network.state_dict().items() if t.is_floating_point()})
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    assert sum(isinstance(m, nn.SyncBatchNorm) for m in converted.modules()) == 115
    assert all(m.num_batches_tracked is not None for m in converted.modules() if isinstance(m, nn.SyncBatchNorm))


def test_normalisation_follows_torch() -> None:
    torch.manual_seed(0)
    ours, torchs = BatchNorm(4), nn.BatchNorm2d(4)
    for _ in range(3):
        x = torch.randn(2, 4, 5, 5)
        assert torch.equal(ours(x), torchs(x))
    for name in ("running_mean", "running_var"):
        assert torch.equal(getattr(ours, name), getattr(torchs, name))
    assert torch.equal(ours.eval()(x), torchs.eval()(x))


def test_a_detector_needs_classes() -> None:
    with pytest.raises(ValueError, match="num_classes=0"):
        Network("n", 0)

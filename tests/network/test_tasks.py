"""The networks of the four tasks: sizes, what they add, and what they share."""

from __future__ import annotations

import copy
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from lucid_core.network.detector import Network
from lucid_core.network.variants import VARIANTS, Variant
from lucid_core.types import Task

CLASSES: dict[Task, int] = {"detect": 80, "segment": 80, "obb": 15, "keypoints": 80}
CANVAS: dict[Task, int] = {"detect": 640, "segment": 640, "obb": 1024, "keypoints": 640}
PARAMETERS: dict[Task, tuple[int, ...]] = {
    "detect": (2_437_552, 9_609_632, 20_132_032, 24_363_712, 54_672_216),
    "segment": (2_717_284, 10_665_440, 23_374_848, 27_606_528, 61_899_656),
    "obb": (2_563_976, 10_120_782, 21_009_774, 25_241_454, 56_652_248),
    "keypoints": (2_548_204, 9_983_184, 20_752_880, 24_984_560, 56_000_752),
}
GFLOPS: dict[Task, tuple[float, ...]] = {
    "detect": (5.4270, 21.0023, 67.8884, 90.0504, 201.6605),
    "segment": (8.9974, 34.9670, 122.7223, 144.8843, 324.5766),
    "obb": (14.6771, 55.9375, 178.3644, 235.5899, 526.5584),
    "keypoints": (5.5508, 21.3892, 68.9285, 91.0905, 203.8568),
}
ROWS = [(task, variant) for task in get_args(Task) for variant in VARIANTS]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("task", "variant"), ROWS)
def test_sizes(task: Task, variant: Variant) -> None:
    """Parameters exactly; floating-point operations of what is deployed within 1 %, 4 for each normalised value."""
    normalised = 0

    def tally(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal normalised
        normalised += output.numel()

    with FakeTensorMode(), FlopCounterMode(display=False) as counter, torch.no_grad():
        network = Network(variant, CLASSES[task], task).eval()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.register_forward_hook(tally)
        network.deployed(torch.zeros(1, 3, CANVAS[task], CANVAS[task]))
    place = list(VARIANTS).index(variant)
    assert (counter.get_total_flops() + 4 * normalised) / 1e9 == pytest.approx(GFLOPS[task][place], rel=0.01)
    with torch.device("meta"):
        assert count(Network(variant, CLASSES[task], task)) == PARAMETERS[task][place]


def test_parts_of_the_networks() -> None:
    with torch.device("meta"):
        segment = Network("n", 80, "segment")
        assert segment.masks is not None
        assert count(segment.one_to_many) == 152_690
        assert count(segment) - count(segment.one_to_many) - count(segment.masks.semantic) == 2_559_394
        person = Network("n", 1, "keypoints", points=17)
        assert (count(person), count(person) - count(person.one_to_many)) == (2_524_346, 2_378_149)
        matrices = {
            (task, variant): sum(p.ndim >= 2 for p in Network(variant, CLASSES[task], task).parameters())
            for task, variant in ROWS
        }
    for task, (few, many) in {
        "detect": (127, 155),
        "segment": (165, 193),
        "obb": (157, 185),
        "keypoints": (157, 185),
    }.items():
        assert [matrices[task, v] for v in VARIANTS] == [few, few, few, many, many]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("task", get_args(Task))
def test_a_task_adds_its_own_outputs_and_no_others(task: Task, training: bool) -> None:
    torch.manual_seed(0)
    predictions = Network("n", 5, task, points=3).train(training)(torch.rand(2, 3, 64, 96))
    for branch in (predictions.one_to_many, predictions.one_to_one):
        assert branch.logits.shape == (2, 126, 5)
        assert branch.distances.shape == (2, 126, 4)
        shapes = {
            name: tuple(t.shape)
            for name, t in branch._asdict().items()
            if t is not None and name not in ("logits", "distances")
        }
        assert (
            shapes
            == {
                "detect": {},
                "segment": {"coefficients": (2, 126, 32)},
                "obb": {"angles": (2, 126, 1)},
                "keypoints": {"points": (2, 126, 3, 2), "sigmas": (2, 126, 3, 2)},
            }[task]
        )
    if task != "segment":
        assert predictions.prototypes is predictions.semantic is None
        return
    assert predictions.prototypes is not None
    assert predictions.prototypes.shape == (2, 32, 16, 24)
    assert branch.coefficients is not None
    assert branch.coefficients.abs().max() < 1
    if training:
        assert predictions.semantic is not None
        assert predictions.semantic.shape == (2, 5, 8, 12)
        assert predictions.semantic.sigmoid().mean().item() == pytest.approx(0.01, rel=0.5)
    else:
        assert predictions.semantic is None


def test_the_first_branch_of_every_task_begins_as_that_of_detection() -> None:
    states = {}
    for task in get_args(Task):
        torch.manual_seed(3)
        states[task] = Network("n", 4, task).state_dict()
    shared = [name for name in states["detect"] if not name.startswith("one_to_many")]
    assert len(shared) > 500
    for state in states.values():
        assert all(torch.equal(state[name], states["detect"][name]) for name in shared)


def test_channels_of_a_point_are_its_coordinates_and_then_their_spread() -> None:
    network = Network("n", 2, "keypoints", points=3)
    for level in network.one_to_one.get_submodule("points").children():
        assert isinstance(level, nn.Sequential)
        last = level[-1]
        assert isinstance(last, nn.Conv2d)
        nn.init.zeros_(last.weight)
        assert last.bias is not None
        with torch.no_grad():
            last.bias.copy_(torch.arange(12.0))
    branch = network(torch.rand(1, 3, 64, 64)).one_to_one
    assert branch.points[0, 50].tolist() == [[0, 1], [4, 5], [8, 9]]
    assert branch.sigmas[0, 50].tolist() == [[2, 3], [6, 7], [10, 11]]


def test_prototypes_see_all_three_levels() -> None:
    torch.manual_seed(0)
    network = Network("n", 2, "segment").eval()
    assert network.masks is not None
    features = [
        torch.randn(1, width, 64 // s, 64 // s) for width, s in zip(network.neck.widths, (8, 16, 32), strict=True)
    ]
    base = network.masks(tuple(features))[0]
    for level in range(3):
        moved = [f.clone() for f in features]
        moved[level][:, :, 0, 0] += 5
        changed = (network.masks(tuple(moved))[0] != base).any(1)[0]
        assert changed[0, 0]
        # Four 3x3 convolutions: three on the grid of 8 pixels, one on that of 4.
        assert not changed[2 * (2**level + 3) + 1 :].any()


@pytest.mark.parametrize("task", ["segment", "obb", "keypoints"])
def test_memory_format_changes_only_rounding(task: Task) -> None:
    torch.manual_seed(0)
    network = Network("n", 3, task, points=2)
    image = torch.rand(2, 3, 64, 64)
    plain = network(image)
    last = copy.deepcopy(network).to(memory_format=torch.channels_last)(image.to(memory_format=torch.channels_last))
    pairs = [
        *zip(plain.one_to_many, last.one_to_many, strict=True),
        *zip(plain.one_to_one, last.one_to_one, strict=True),
    ]
    pairs += [(plain.prototypes, last.prototypes), (plain.semantic, last.semantic)]
    compared = [torch.testing.assert_close(a, b, rtol=2e-3, atol=4e-4) for a, b in pairs if a is not None]
    assert len(compared) == {"segment": 8, "obb": 6, "keypoints": 8}[task]


def test_what_a_network_cannot_be_made_of_is_named() -> None:
    with pytest.raises(ValueError, match=r"'pose'; tasks are detect, segment, obb, keypoints"):
        Network("n", 1, "pose")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="points=0"):
        Network("n", 1, "keypoints", points=0)

"""What a region keeps alive, and what it gives back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs.tape import TapeEngine
from tests.accel.graphs.twin import Net, Twin, images, replaying


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _held(twin: Twin) -> list[weakref.ref[Any]]:
    (entry,) = twin.region._shelf.recorded()
    recording = entry.recording
    tensors = [*recording._inputs, *recording._outputs._room.values(), *recording._gradients._room.values()]
    return [weakref.ref(x) for x in (recording, recording._forward, recording._backward, *tensors)]


ENDS: dict[str, Callable[[Twin], Any]] = {
    "drop": lambda twin: twin.region.drop(),
    "drop twice": lambda twin: (twin.region.drop(), twin.region.drop()),
    "retire": lambda twin: (twin.both(lambda net: net.register_forward_hook(lambda *x: None)), twin.step(images())),
    "made again": lambda twin: (twin.both(lambda net: net.norm.eval()), twin.step(images())),
    "the region goes": lambda twin: delattr(twin, "region"),
}


@pytest.mark.parametrize("name", ENDS)
def test_everything_dies_without_the_collector(name: str) -> None:
    twin = replaying()
    held = _held(twin)
    assert all(x() is not None for x in held)
    ENDS[name](twin)
    assert not [x() for x in held if x() is not None]


class Counting(TapeEngine):
    """Counts how often memory was given back to the device."""

    trims = 0

    def trim(self) -> None:
        self.trims += 1


def test_what_the_native_steps_needed_is_given_back_after_a_proof() -> None:
    twin = Twin(Net(), engine=Counting)
    for _ in range(3):
        twin.step(images())
    result, before = twin.forward(images()).sum(), twin.engine.trims
    result.backward()
    twin.region.after_backward()
    assert (twin.notes.proofs, twin.engine.trims) == (1, before + 1)


def test_no_replay_gives_memory_back() -> None:
    twin = replaying(engine=Counting)
    before = twin.engine.trims
    assert twin.step(images()) == "replay"
    assert twin.engine.trims == before


@pytest.mark.parametrize("name", ["drop", "retire", "made again"])
def test_what_the_recordings_held_is_given_back(name: str) -> None:
    twin = replaying(engine=Counting)
    before = twin.engine.trims
    ENDS[name](twin)
    assert twin.engine.trims == before + 1


def test_a_larger_capacity_leaves_nothing_of_the_smaller_one() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.scale).sum()

    twin = replaying(Padded(), torch.ones(2, 2), growable=(0,))
    held = _held(twin)
    twin.step(torch.ones(2, 4))
    assert twin.notes.captures == 2 and not [x() for x in held if x() is not None]


def test_a_recording_keeps_no_batch_and_no_graph_of_the_step_it_was_made_in() -> None:
    twin = Twin(Net())
    batches = []
    for seed in range(6):
        leaf = images(seed=seed).requires_grad_()
        batch = leaf * 2
        batches += [weakref.ref(leaf), weakref.ref(batch)]
        twin.forward(batch).sum().backward()
        twin.region.after_backward()
        twin.region.next_step()
        del leaf, batch
    assert twin.calls[-1] == "replay"
    assert not [x() for x in batches if x() is not None]


def test_what_the_module_exchanged_is_not_kept_after_retirement() -> None:
    twin = replaying()
    old = weakref.ref(twin.module.head.weight)
    twin.both(lambda net: setattr(net.head, "weight", nn.Parameter(torch.ones(2, 4, 1, 1))))
    twin.renew_optimizers()
    twin.step(images())
    twin.calls.clear()
    assert old() is None


def test_a_failed_recording_leaves_nothing() -> None:
    class Fails(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y * y.sum().item()

    twin = Twin(Fails())
    for _ in range(5):
        twin.step(images())
    assert not twin.region._shelf.recorded() and twin.region._certificate is None

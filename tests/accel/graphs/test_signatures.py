"""Several signatures, and arguments whose capacity grows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lucid_accel.graphs import shelf
from lucid_accel.graphs.tape import TapeEngine
from tests.accel.graphs.twin import Net, Twin, images, replaying


def test_a_further_signature_is_recorded_once_it_was_seen_ten_times() -> None:
    twin = replaying()
    calls = [twin.step(images(size=6)) for _ in range(13)]
    assert calls == ["shape"] * 10 + ["warmup", "replay", "replay"]
    assert twin.step(images()) == "replay"
    assert twin.notes.captures == 2


def test_recordings_of_several_signatures_alternate() -> None:
    twin = replaying()
    for _ in range(12):
        twin.step(images(size=6))
    assert [twin.step(images(size=size, seed=seed)) for seed, size in enumerate((5, 6, 6, 5))] == ["replay"] * 4


def test_a_partial_batch_of_every_epoch_stays_native() -> None:
    twin = replaying()
    assert [twin.step(images(batch=1)) for _ in range(6)] == ["partial_batch"] * 6


def test_no_more_than_eight_are_recorded() -> None:
    twin = Twin(Net(), proof=False)
    for size in range(4, 13):
        for _ in range(4 if size == 4 else 12):
            twin.step(images(size=size))
    assert twin.notes.captures == 8
    assert twin.calls[-2:] == ["memory"] * 2
    assert twin.step(images(size=5)) == "replay"


def test_signatures_without_end_are_not_kept_count_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf, "KNOWN", 3)
    twin = replaying()
    assert [twin.step(images(size=size)) for size in (6, 7, 8, 9)] == ["shape", "shape", "memory", "memory"]
    assert twin.step(images()) == "replay"


class Small(TapeEngine):
    """A device on which each recording takes 100 bytes, of 350."""

    taken = 0

    def capture(self, body: object, after: object = None) -> object:
        self.taken += 50  # forward and backward
        return super().capture(body)

    def reserved(self) -> int:
        return self.taken

    def headroom(self) -> int:
        return 350 - self.taken


def test_a_signature_that_does_not_fit_twice_stays_native() -> None:
    twin = replaying(engine=Small, proof=False)
    for size in (6, 7):
        for _ in range(12):
            twin.step(images(size=size))
    assert twin.notes.captures == 2
    assert twin.calls[-2:] == ["memory"] * 2


# Capacity


class Padded(nn.Module):
    """Sums over the rows that are valid, and trains a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(4, 1)

    def forward(self, x: Tensor, targets: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        boxes, valid = targets
        # Element by element: a product of matrices rounds as its number of rows has it, on some CPUs.
        scores = sum((boxes * self.scale.weight[0]).unbind(-1), self.scale.bias)
        best = torch.where(valid, scores, -torch.inf).amax(1)
        best = torch.where(valid.any(1), best, 0.0)
        return (x.mean((1, 2, 3)) * best).sum(), valid.sum()


def objects(capacity: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    boxes = torch.randn(2, capacity, 4, generator=torch.Generator().manual_seed(seed))
    valid = torch.arange(capacity).expand(2, -1) < count
    return boxes * valid[..., None], valid.contiguous()


def padded() -> Twin:
    twin = Twin(Padded(), growable=(1,))
    for _ in range(5):
        twin.step(images(), objects(4, 3))
    assert twin.calls[-1] == "replay"
    return twin


def test_a_smaller_capacity_replays_and_clears_the_rest() -> None:
    twin = padded()
    for capacity, count in ((4, 4), (1, 1), (2, 2), (1, 0), (4, 0), (4, 4)):
        assert twin.step(images(), objects(capacity, count, seed=count)) == "replay"
    assert twin.notes.captures == 1


def test_an_empty_batch_of_capacity_one_is_learnt_like_any_other() -> None:
    twin = Twin(Padded(), growable=(1,))
    assert [twin.step(images(), objects(1, 0)) for _ in range(5)][-1] == "replay"


def test_no_rows_at_all_replay() -> None:
    assert padded().step(images(), objects(1, 1)) == "replay"


def test_a_larger_capacity_is_recorded_anew_and_serves_the_smaller_ones() -> None:
    twin = padded()
    assert [twin.step(images(), objects(8, 6)) for _ in range(2)] == ["warmup"] * 2
    assert twin.notes.captures == 2
    assert twin.step(images(), objects(8, 7)) == "replay"
    assert twin.step(images(), objects(2, 1)) == "replay"
    assert len(twin.region._shelf.recorded()) == 1


def test_the_largest_capacity_of_the_warm_up_is_recorded() -> None:
    twin = Twin(Padded(), growable=(1,))
    for capacity in (16, 2, 4, 2, 16):
        twin.step(images(), objects(capacity, 2))
    assert twin.notes.captures == 1 and twin.calls[-1] == "replay"


def test_it_grows_three_times_and_larger_ones_are_native_then() -> None:
    twin = padded()
    for capacity in (8, 16, 32):
        assert [twin.step(images(), objects(capacity, 5)) for _ in range(3)] == ["warmup", "warmup", "replay"]
    assert twin.step(images(), objects(64, 40)) == "shape"
    assert twin.step(images(), objects(32, 20)) == "replay"
    assert twin.notes.captures == 4

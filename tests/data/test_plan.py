"""Epoch plans and their division among batches and processes."""

import numpy as np
import pytest

from lucid_core.data.plan import GROUP, BatchPlan, EpochPlan


def test_order_is_a_permutation_that_depends_on_seed_and_epoch_alone() -> None:
    plan = EpochPlan(100, 3, 10, 2)
    orders = [plan.order(epoch).tolist() for epoch in (0, 1, 0, 5)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert orders[0] == orders[2] == EpochPlan(100, 3, None, 0).order(0).tolist()
    assert len({tuple(order) for order in orders}) == 3
    assert EpochPlan(100, 4, 10, 2).order(0).tolist() != orders[0]
    assert EpochPlan(100, 3, 10, 2, shuffle=False).order(4).tolist() == list(range(100))


def test_order_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        EpochPlan(4, 0, 1, 0).order(0)[0] = 1


@pytest.mark.parametrize(
    ("epochs", "close", "on"),
    [(4, 2, [True, True, False, False]), (4, 0, [True] * 4), (4, 9, [False] * 4), (None, 2, [True] * 4)],
)
def test_mosaic_closes_in_the_last_epochs(epochs: int | None, close: int, on: list[bool]) -> None:
    plan = EpochPlan(5, 0, epochs, close)
    assert [plan.mosaic(epoch) for epoch in range(4)] == on
    assert [plan.keys(epoch)[0].mosaic for epoch in range(4)] == on


def test_groups_are_sixteen_consecutive_positions() -> None:
    plan = EpochPlan(35, 0, None, 0)
    assert plan.group(0) == plan.group(15) == range(16)
    assert plan.group(16) == range(16, 32)
    assert plan.group(34) == range(32, 35)
    assert GROUP == 16


@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("length", range(3, 30))
def test_ranks_cover_the_epoch_with_equally_many_even_batches(length: int, world: int, batch: int) -> None:
    plan = EpochPlan(length, 0, None, 0)
    ranks = [list(BatchPlan(plan, batch, rank, world).batches(0)) for rank in range(world)]
    assert len({len(batches) for batches in ranks}) == 1
    assert len(ranks[0]) == len(BatchPlan(plan, batch, 0, world))
    delivered = [key.position for step in zip(*ranks, strict=True) for part in step for key in part]
    left_out = (length % (batch * world)) if length % (batch * world) < world else 0
    assert delivered == list(range(length - left_out))
    for step in zip(*ranks, strict=True):
        sizes = [len(part) for part in step]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1


def test_start_leaves_out_batches_and_the_epoch_is_in_the_keys() -> None:
    plan = BatchPlan(EpochPlan(10, 0, None, 0), 3)
    assert list(plan.batches(2, start=2)) == list(plan.batches(2))[2:]
    plan.sampler.set_epoch(7)
    assert {key.epoch for keys in plan for key in keys} == {7}


def test_repeat_gives_the_keys_of_the_first_epoch_every_time() -> None:
    plan = BatchPlan(EpochPlan(10, 0, 4, 1, shuffle=False), 4, repeat=True)
    assert list(plan.batches(3)) == list(plan.batches(0))


def test_order_of_a_million_is_made_once() -> None:
    plan = EpochPlan(1_000_000, 0, None, 0)
    assert plan.order(0) is plan.order(0)
    assert np.array_equal(np.sort(plan.order(0)), np.arange(1_000_000))

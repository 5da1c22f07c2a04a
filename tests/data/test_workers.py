"""The budget of shared memory."""

import warnings
from collections import namedtuple

import pytest

from lucid_core.data import workers
from lucid_core.data.workers import PREFETCH, Workers, allot

BATCH, SIZE = 16, 640
AHEAD = PREFETCH * BATCH * 3 * SIZE * SIZE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    def make(cpus: int, free: int | None) -> None:
        monkeypatch.setattr(workers, "processors", lambda: cpus)
        monkeypatch.setattr(workers, "free_shared_memory", lambda: free)

    return make


@pytest.mark.parametrize(
    ("cpus", "batch", "processes", "expected"),
    [(16, 4, 1, (4, 4)), (16, 64, 1, (16, 4)), (2, 16, 1, (2, 2)), (16, 64, 4, (4, 4)), (1, 16, 8, (1, 1))],
)
def test_auto_is_the_smaller_of_batch_and_processors(machine, cpus, batch, processes, expected) -> None:
    machine(cpus, 2**40)
    assert allot("auto", "auto", batch, SIZE, processes) == expected


def test_counts_asked_for_by_name_are_kept_while_they_fit(machine) -> None:
    machine(3, 2**40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert allot(9, 3, BATCH, SIZE) == (9, 3)
        assert allot(0, "auto", BATCH, SIZE) == (0, 0)


@pytest.mark.parametrize("named", [(32, "auto"), (32, 32), ("auto", 32), ("auto", "auto")])
@pytest.mark.parametrize("room", [0, 1, 2, 3, 8, 20])
@pytest.mark.parametrize("processes", [1, 2])
def test_both_pools_together_keep_to_half_of_what_is_free(machine, named, room, processes) -> None:
    machine(64, 2 * room * AHEAD * processes + AHEAD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        granted = allot(*named, BATCH, SIZE, processes)
    assert sum(granted) <= room
    assert granted.train >= granted.val >= 0
    assert granted.train or not room
    expected = room < sum(allot_without_budget(*named, processes))
    assert len(caught) == (expected and named != ("auto", "auto"))
    if caught:
        assert "/dev/shm" in str(caught[0].message)


def allot_without_budget(train, val, processes) -> Workers:
    train = min(BATCH, 64 // processes) if train == "auto" else train
    return Workers(train, min(train, 4) if val == "auto" else val)


@pytest.mark.parametrize("free", [2**40, None])
@pytest.mark.parametrize(("named", "processes", "most"), [((1000, "auto"), 1, 8), ((0, 1000), 1, 8), ((40, 40), 2, 4)])
def test_more_than_four_per_processor_are_lowered_with_one_warning(machine, free, named, processes, most) -> None:
    machine(2, free)
    with pytest.warns(UserWarning, match="more than 4 per processor") as caught:
        granted = allot(*named, BATCH, SIZE, processes)
    assert len(caught) == 1
    assert sum(granted) == most
    assert (granted.train > 0) == (named[0] > 0)


def test_without_shared_memory_there_is_no_limit(machine) -> None:
    machine(8, None)
    assert allot("auto", "auto", 64, 1024) == (8, 4)


def test_what_is_free_is_asked_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(free=len(path)))
    assert workers.free_shared_memory() == len("/dev/shm")

    def missing(path: str) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr("shutil.disk_usage", missing)
    assert workers.free_shared_memory() is None

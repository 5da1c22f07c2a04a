"""The images that a worker keeps."""

import numpy as np

from lucid_core.data.recent import RecentSources

from .synthetic import PaintedSource, make_records


def test_what_was_read_last_is_not_read_again() -> None:
    source = PaintedSource(make_records(20))
    recent = RecentSources(source, limit=3)
    first = [recent.source(index) for index in (0, 1, 2)]
    assert all(recent.source(index) is first[index] for index in (2, 0, 1))
    assert source.reads == 3
    recent.source(3)
    recent.source(1)
    assert source.reads == 4
    np.testing.assert_array_equal(recent.source(0), first[0])
    assert source.reads == 5


def test_no_more_bytes_are_kept_than_allowed() -> None:
    source = PaintedSource(make_records(20))
    one = source.source(2).nbytes
    recent = RecentSources(source, limit=16, max_bytes=2 * one)
    for index in (2, 6, 10, 14):
        recent.source(index)
    source.reads = 0
    recent.source(14)
    recent.source(10)
    assert source.reads == 0
    recent.source(2)
    assert source.reads == 1
    assert RecentSources(source, max_bytes=0).source(3).shape == source.source(3).shape

"""The random numbers of a sample."""

import itertools

from lucid_core.data.random import Stream, sample_rng


def test_same_arguments_give_the_same_numbers_and_any_other_argument_gives_others() -> None:
    keys = list(itertools.product((0, 1, 2**63), (0, 1), (0, 1, 15), Stream))
    first = {key: tuple(sample_rng(*key).random(8)) for key in keys}
    assert first == {key: tuple(sample_rng(*key).random(8)) for key in reversed(keys)}
    assert len(set(first.values())) == len(keys)


def test_long_sequences_of_neighbours_do_not_run_into_each_other() -> None:
    drawn = [sample_rng(0, 0, position, Stream.GEOMETRY).integers(2**63, size=10_000) for position in range(4)]
    assert len({int(number) for numbers in drawn for number in numbers}) == 40_000

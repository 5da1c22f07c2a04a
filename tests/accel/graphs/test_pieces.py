"""Layouts, packed copies, comparison, the tape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.engine import CaptureError, engine_for, use_engine
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.packed import Packed
from lucid_accel.graphs.tape import TapeEngine

CPU = torch.device("cpu")

aten = torch.ops.aten


class Calls(TorchDispatchMode):
    """Notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


SHAPES: dict[str, Tensor] = {
    "contiguous": torch.rand(2, 3, 4),
    "permuted": torch.rand(2, 3, 4).permute(2, 0, 1),
    "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": torch.rand(4, 6)[1:3, 2:5],
    "expanded": torch.rand(3, 1).expand(3, 4),
    "expanded scalar": torch.rand(()).expand(2, 3),
    "scalar": torch.rand(()),
    "empty": torch.rand(0, 3),
    "empty and expanded": torch.rand(1).expand(0),
    "size one": torch.rand(1, 3, 1),
    "half": torch.rand(5).bfloat16(),
    "integers": torch.arange(6).view(2, 3).T,
    "booleans": torch.rand(3) > 0.5,
    "complex": torch.rand(3, dtype=torch.complex64),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_copy_has_the_bits_and_the_strides_and_memory_of_its_own(name: str) -> None:
    x = SHAPES[name]
    copied = Layout.of(x).copy(x)
    assert same_bits(x, copied) and copied.stride() == x.stride()
    assert not x.numel() or copied.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_packed_copies_are_apart_from_each_other_and_from_the_room() -> None:
    tensors = list(SHAPES.values())
    packed = Packed(tensors)
    packed.fill(tensors)
    first = packed.owned()
    assert all(map(same_bits, tensors, first))
    packed.fill([torch.zeros_like(x).as_strided(x.shape, x.stride()) if x.is_contiguous() else x for x in tensors])
    assert all(map(same_bits, tensors, first))
    spans = [(x.data_ptr(), x.data_ptr() + Layout.of(x).extent * x.element_size()) for x in first if x.numel()]
    assert all(one[1] <= other[0] for one, other in zip(sorted(spans), sorted(spans)[1:], strict=False))


def test_packed_copies_begin_where_those_of_the_allocator_do() -> None:
    packed = Packed([torch.rand(n, dtype=kind) for n in (1, 3, 130) for kind in (torch.float32, torch.bfloat16)])
    for copies in (packed.owned(), packed.apart()):
        assert [x.storage_offset() * x.element_size() % 512 for x in copies] == [0] * 6
        assert max(x.storage_offset() for x in copies) > 0


def test_packed_restores_what_it_holds() -> None:
    tensors = [torch.rand(3), torch.tensor(4), torch.rand(4, 6)[:, :2]]
    before = [x.clone() for x in tensors]
    packed = Packed(tensors)
    packed.fill(tensors)
    for x in tensors:
        x.zero_()
    packed.restore(tensors)
    assert all(map(torch.equal, tensors, before))


SIZES = (40, 4, 12)


def copies_of_one_filling(packed: Packed, tensors: Sequence[Tensor]) -> int:
    with Calls() as calls:
        packed.fill(tensors, np.array([x.data_ptr() for x in tensors]))
    assert all(map(same_bits, tensors, packed.slots))
    return 1 if aten.copy_.default in calls.seen else len(tensors)


def filled(tensors: Sequence[Tensor]) -> Packed:
    packed = Packed(tensors)
    packed.fill(tensors)
    return packed


@pytest.mark.parametrize("hand_out", [Packed.owned, Packed.apart])
def test_what_another_room_handed_out_is_copied_as_one_piece(hand_out: Callable[[Packed], list[Tensor]]) -> None:
    tensors = [torch.rand(size) for size in SIZES]
    packed = Packed(tensors)
    assert copies_of_one_filling(packed, tensors) == 3
    assert copies_of_one_filling(packed, hand_out(filled(tensors))) == 1
    one, other, third = hand_out(filled(tensors))
    assert copies_of_one_filling(packed, [one, torch.rand(4), third]) == 3
    assert copies_of_one_filling(packed, [other.new_zeros(40), other, third]) == 3


def test_what_lies_in_another_order_is_copied_one_by_one() -> None:
    one, other = filled([torch.rand(8), torch.rand(8)]).owned()
    assert copies_of_one_filling(Packed([one, other]), [other, one]) == 2


def test_kinds_in_one_piece_have_rooms_of_their_own() -> None:
    bits = torch.rand(4)
    # Both begin where the room of their kind does.
    tensors = [bits, bits.view(torch.int32)]
    assert copies_of_one_filling(Packed(tensors), tensors) == 2


def test_neighbours_in_memory_of_several_owners_are_no_piece() -> None:
    packed = Packed([torch.rand(128), torch.rand(4)])
    memory = np.random.default_rng(0).random(132, np.float32)
    neighbours = [torch.from_numpy(memory[:128]), torch.from_numpy(memory[128:])]
    assert neighbours[1].data_ptr() - neighbours[0].data_ptr() == 512
    assert copies_of_one_filling(packed, neighbours) == 2
    owner = torch.from_numpy(memory)
    assert copies_of_one_filling(packed, [owner[:128], owner[128:]]) == 1


@pytest.mark.parametrize("shape", [(0, 3), (3, 1)])
def test_what_is_empty_or_repeats_itself_may_be_in_a_piece(shape: tuple[int, ...]) -> None:
    tensors = [torch.rand(5), torch.rand(shape).expand(shape[0], 4 if shape[1] == 1 else 3), torch.rand(2)]
    packed = Packed(tensors)
    for given in (tensors, filled(tensors).owned()):
        packed.fill(given, np.array([x.data_ptr() for x in given]))
        assert all(map(same_bits, given, packed.owned()))


def test_nothing_is_packed_into_nothing() -> None:
    packed = Packed([])
    packed.fill([])
    assert packed.owned() == []


def test_what_overlaps_itself_is_refused() -> None:
    x = torch.rand(6).unfold(0, 3, 1)
    assert Layout.of(x).overlaps()
    with pytest.raises(ValueError, match="overlaps itself"):
        Packed([x])


def test_room_that_nobody_wrote_is_seen() -> None:
    assert Layout.of(torch.rand(2, 3)).room().isnan().all()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), True),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), False),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64), False),
        (torch.ones(2, 2), torch.ones(2, 2).T, False),
        (torch.tensor([1]), torch.tensor([1]), True),
        (torch.tensor([complex(0.0, torch.nan)]), torch.tensor([complex(0.0, torch.nan)]), True),
        (torch.tensor([complex(0.0, 0.0)]), torch.tensor([complex(-0.0, 0.0)]), False),
        (None, None, True),
        (None, torch.ones(1), False),
    ],
)
def test_equality_is_in_bits(one: Any, other: Any, same: bool) -> None:
    assert same_bits(one, other) is same


READS = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.sum() > 0),
    "nonzero": lambda x: x.nonzero(),
    "masked": lambda x: x.masked_select(x > 0),
    "mask as index": lambda x: x[x > 0],
    "own generator": lambda x: torch.rand(2, generator=torch.Generator()),
}


@pytest.mark.parametrize("name", READS)
def test_the_tape_refuses_what_a_graph_refuses(name: str) -> None:
    with pytest.raises(CaptureError) as caught:
        TapeEngine(CPU).capture(lambda: READS[name](torch.ones(3)))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert not TapeEngine(CPU).is_capturing()


def test_the_tape_freezes_numbers_and_reads_memory_anew() -> None:
    x, factors = torch.ones(2), [2.0]
    graph, result = TapeEngine(CPU).capture(lambda: x * factors[0])
    factors[0] = 100.0
    x.fill_(3.0)
    graph.replay()
    assert result.tolist() == [6.0, 6.0]


def test_the_tape_puts_back_what_was_there() -> None:
    x, state = torch.ones(2), torch.get_rng_state()
    TapeEngine(CPU).capture(lambda: x.add_(torch.rand(2)))
    assert x.tolist() == [1.0, 1.0] and torch.equal(torch.get_rng_state(), state)


def test_the_engine_is_chosen_within_the_context_only() -> None:
    assert engine_for(CPU) is None
    with use_engine(TapeEngine):
        assert isinstance(engine_for(CPU), TapeEngine)
    assert engine_for(CPU) is None

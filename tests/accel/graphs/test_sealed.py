"""What a recording may not read: whatever is done with it raises, and says its name."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lucid_accel.graphs.call import Call
from lucid_accel.graphs.sealed import Sealed

READS: dict[str, Callable[[Any], Any]] = {
    "an attribute": lambda x: x.name,
    "an item": lambda x: x[0],
    "an attribute that is set": lambda x: setattr(x, "name", 1),
    "a call": lambda x: x(),
    "its length": len,
    "its truth": bool,
    "a number": int,
    "a float": float,
    "an index": lambda x: [1, 2][x],
    "a range": range,
    "a loop": list,
    "a comparison": lambda x: x == 1,
    "an order": lambda x: x < 1,
    "a sum": lambda x: x + 1,
    "a sum from the right": lambda x: 1 + x,
    "a remainder": lambda x: x % 2,
    "a sum in place": lambda x: operator.iadd(x, 1),
    "a sign": lambda x: -x,
    "a word": str,
    "a word of it": lambda x: f"{x}",
    "a look": repr,
    "a key": lambda x: {x: 1},
    "a member": lambda x: 1 in x,
    "a copy": copy.copy,
    "a deep copy": copy.deepcopy,
    "an array": np.asarray,
    "a product with a tensor": lambda x: torch.ones(2) * x,
    "a tensor": torch.as_tensor,
    "a block": lambda x: x.__enter__(),
    "unpacking": lambda x: (*x,),
    "keywords": lambda x: dict(**x),
    "matching": lambda x: [a for a, _ in x],
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("kind", [int, str, dict])
def test_whatever_is_done_with_it_raises(read: str, kind: type) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        READS[read](Sealed("batch_idx", kind))


def test_the_message_has_the_name_and_the_reason() -> None:
    with pytest.raises(TypeError, match=r"it reads batch\['names'\], which is no tensor on the device, so a recording"):
        len(Sealed("batch['names']", list))  # type: ignore[arg-type]


def test_its_type_may_be_asked_for_and_is_that_of_the_value() -> None:
    sealed: Any = Sealed("x", str)
    assert isinstance(sealed, str)
    assert not isinstance(sealed, torch.Tensor)
    assert sealed is not None


def test_it_may_be_handed_on() -> None:
    sealed = Sealed("x", int)
    held = {"a": (sealed, [sealed])}
    assert held["a"][0] is sealed


# In the arguments of a call


def call(batch: Any, index: Any = 3) -> Call:
    return Call((batch, index), {}, device=torch.device("cpu"), sealed=True)


def test_only_tensors_and_nothing_are_left_open() -> None:
    image = torch.ones(2)
    args, _ = (
        call({"x": image, "names": ["a", "b"], "none": None, "n": 0.5}).sealed(["batch", "batch_idx"]).fill([image])
    )
    batch, index = args
    assert batch["x"] is image
    assert batch["none"] is None
    for value, name in (
        (index, "batch_idx"),
        (batch["names"][1], r"batch\['names'\]\[1\]"),
        (batch["n"], r"batch\['n'\]"),
    ):
        with pytest.raises(TypeError, match=f"it reads {name}, "):
            bool(value)


def test_arguments_without_a_name_go_by_their_place_and_keywords_by_theirs() -> None:
    made = Call((torch.ones(1), 1), {"key": 2}, device=torch.device("cpu"), sealed=True)
    args, kwargs = made.sealed(["batch"]).fill(made.tensors)
    with pytest.raises(TypeError, match="it reads argument 1, "):
        bool(args[1])
    with pytest.raises(TypeError, match="it reads key, "):
        bool(kwargs["key"])


def test_what_is_sealed_belongs_to_no_signature_but_its_type_does() -> None:
    image = torch.ones(2)
    assert call((image, "a"), 1).signature == call((image, "b"), 2).signature
    assert call((image, "a")).signature != call((image, 1)).signature
    assert call((image, "a")).signature != call((image, None)).signature
    assert call((image, "a")).signature != call((image, ["a"])).signature
    assert call((image, {"k": object()})).refusal is None


def test_natively_the_values_are_all_there() -> None:
    image = torch.ones(2)
    made = call((image, "a", object), 7)
    assert made.form.fill([image]) == (((image, "a", object), 7), {})

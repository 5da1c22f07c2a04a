"""Names that code mentions as it runs."""

from __future__ import annotations

import sys
import threading
from collections import UserDict
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule

from lucid_accel.graphs.mentions import Mentions


class Module:
    gain = 1.0
    rate = 2.0

    @property
    def derived(self) -> float:
        return self.behind

    behind = 3.0


def heard(act: Any) -> Mentions:
    mentions = Mentions()
    with mentions.listening():
        act(Module())
    return mentions


def in_a_loop(module: Any) -> None:
    for name in ("gain", "rate"):
        getattr(module, name)


def in_a_set(module: Any) -> bool:
    return "gain" in {"gain", "rate"}


def nested(module: Any) -> Any:
    return (lambda: module.gain + sum(module.rate for _ in range(2)))()


def getter(module: Any) -> Any:
    return attrgetter("gain", "rate")(module)


@pytest.mark.parametrize("act", [in_a_loop, in_a_set, nested, getter, lambda m: (m.gain, m.rate)])
def test_names_are_heard_however_they_are_asked_for(act: Any) -> None:
    mentions = heard(act)
    assert {"gain", "rate"} <= mentions.own
    assert "gain" in mentions.names
    assert "behind" not in mentions.names


def test_what_a_property_goes_through_is_heard_too() -> None:
    assert {"derived", "behind"} <= heard(lambda m: m.derived).own


def test_a_branch_that_was_not_taken_counts_and_a_function_that_was_not_called_does_not() -> None:
    def never(module: Any) -> Any:
        return module.rate

    assert "gain" in heard(lambda m: m.gain if m is None else None).names
    assert "rate" not in heard(lambda m: never if m else None).names


def test_code_of_libraries_is_heard_and_is_not_ones_own() -> None:
    mentions = heard(lambda _: torch.nn.Linear(2, 2)(torch.ones(1, 2)))
    assert "weight" in mentions.names
    assert "weight" not in mentions.own
    mentions = heard(lambda _: LightningModule())
    assert "_trainer" in mentions.names
    assert not mentions.own & {"_trainer", "trainer"}
    # The standard library is nobody's framework.
    assert "data" in heard(lambda _: UserDict(a=1)).own


def test_nothing_is_heard_before_and_after_or_in_another_thread() -> None:
    mentions = Mentions()
    nested(Module())
    with mentions.listening():
        thread = threading.Thread(target=nested, args=(Module(),))
        thread.start()
        thread.join()
    nested(Module())
    assert "gain" not in mentions.names


def test_an_exception_ends_it() -> None:
    mentions = Mentions()

    def act() -> None:
        raise ZeroDivisionError(Module().gain)

    with pytest.raises(ZeroDivisionError), mentions.listening():
        act()
    assert sys.getprofile() is None
    assert "gain" in mentions.names


def test_where_a_profiler_runs_nothing_can_be_heard_and_it_stays() -> None:
    def profiler(*_: Any) -> None:
        pass

    mentions = Mentions()
    assert mentions.can_listen()
    sys.setprofile(profiler)
    try:
        assert not mentions.can_listen()
        with pytest.raises(RuntimeError, match="a profiler is running"), mentions.listening():
            pass
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(("place", "own"), [("torch", False), ("torchx", True)])
def test_a_library_is_a_folder_and_not_the_beginning_of_a_name(place: str, own: bool) -> None:
    file = str(Path(torch.__file__).parents[1] / place / "step.py")
    called: dict[str, Any] = {}
    exec(compile("def step(x): return x.current_epoch", file, "exec"), called)
    mentions = Mentions()
    with mentions.listening():
        called["step"](SimpleNamespace(current_epoch=1))
    assert ("current_epoch" in mentions.own) is own
    assert "current_epoch" in mentions.names

"""What is handed out beside a result: kept back from a recording, handed out anew by every replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lucid_accel.graphs.aside import Nothing, Taken
from lucid_accel.replay.logs import StepLogs
from tests.accel.graphs.test_whole import Pair


class Board:
    """A function that notes what it is called with, as an aside."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, float]] = []
        self._taken: Taken | None = None
        self._passing = True

    def __call__(self, name: str, value: Tensor) -> None:
        if self._passing:
            self.notes.append((name, value.detach().clone()))
        if self._taken is not None:
            self._taken.tensors.append(value.detach())
            self._taken.labels.append(name)

    @contextmanager
    def _taking(self, passing: bool) -> Iterator[Taken]:
        self._taken, self._passing = Taken(), passing
        try:
            yield self._taken
        finally:
            self._taken, self._passing = None, True

    def kept_back(self) -> Any:
        return self._taking(False)

    def noted(self) -> Any:
        return self._taking(True)

    def hand_out(self, labels: Sequence[Any], tensors: Sequence[Tensor]) -> None:
        for name, value in zip(labels, tensors, strict=True):
            self(name, value)


def talking(say: Board) -> nn.Module:
    class Talking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            say("mean", y.mean())
            say("square", y.square().mean())
            return y.square().mean()

    return Talking()


def test_every_call_hands_out_what_it_does_natively_and_once() -> None:
    boards = Board(), Board()
    pair = Pair(talking(boards[0]), talking(boards[1]), aside=boards[1])
    for seed in range(8):
        pair.step(torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)))
    assert pair.notes.calls == ["warmup"] * 4 + ["replay"] * 4
    native, replayed = (board.notes for board in boards)
    assert [name for name, _ in native] == [name for name, _ in replayed] == ["mean", "square"] * 8
    assert all(torch.equal(one, other) for (_, one), (_, other) in zip(native, replayed, strict=True))


def test_whoever_hands_out_nothing_takes_nothing() -> None:
    nothing = Nothing()
    for taking in (nothing.kept_back, nothing.noted):
        with taking() as taken:
            assert (taken.tensors, taken.labels) == ([], [])
    nothing.hand_out([], [])


# The log of a LightningModule


class Logged(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.__dict__["seen"] = []

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.seen.append((name, value, args, kwargs))


def test_what_is_kept_back_is_logged_by_nobody_and_what_is_noted_is() -> None:
    module = Logged()
    logs, value = StepLogs(module), torch.ones((), requires_grad=True)
    with logs.kept_back() as taken:
        module.log("a", value, True, prog_bar=True)
        module.log_dict({"b": value, "c": value}, on_epoch=True)
    assert module.seen == []
    assert [label[0] for label in taken.labels] == ["a", "b", "c"]
    assert not any(x.requires_grad for x in taken.tensors)
    with logs.noted() as noted:
        module.log("a", value, True, prog_bar=True)
        module.log_dict({"b": value, "c": value}, on_epoch=True)
    assert noted.labels == taken.labels
    native = list(module.seen)
    module.seen.clear()
    logs.hand_out(taken.labels, taken.tensors)
    assert [x[:1] + x[2:] for x in module.seen] == [x[:1] + x[2:] for x in native]


def test_a_number_is_refused_where_it_would_be_frozen_and_passed_on_where_it_is_noted() -> None:
    module = Logged()
    logs = StepLogs(module)
    with pytest.raises(TypeError, match="it logs 'a' as a float, which a recording would freeze"), logs.kept_back():
        module.log("a", 1.0)
    assert module.seen == []
    with logs.noted() as taken:
        module.log("a", 1.0)
    assert [x[:2] for x in module.seen] == [("a", 1.0)]
    with logs.noted() as other:
        module.log("a", torch.ones(()))
    assert taken.labels != other.labels
    assert taken.tensors == []


@pytest.mark.parametrize("own", [True, False])
def test_afterwards_the_module_is_as_it_was_however_it_ended(own: bool) -> None:
    module = Logged()
    held = (lambda *_: None) if own else None
    if own:
        vars(module)["log"] = held
    for taking in (StepLogs(module).kept_back, StepLogs(module).noted):
        with pytest.raises(ZeroDivisionError), taking():
            raise ZeroDivisionError
        assert vars(module).get("log") is held

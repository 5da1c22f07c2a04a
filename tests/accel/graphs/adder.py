"""Work like an optimizer's, behind a routine on the CPU engine. Every call compares all that it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.job import Job, bits
from lucid_accel.graphs.routine import Routine
from lucid_accel.graphs.tape import TapeEngine
from tests.accel.graphs.twin import Notes

__all__ = ["CPU", "Adder", "replaying"]

CPU = torch.device("cpu")


class Adder:
    """Work like an optimizer's: a total that grows in place, and a result that is made anew."""

    def __init__(self, proof: bool = True, engine: type[TapeEngine] = TapeEngine) -> None:
        self.total = torch.zeros(8)
        self.expected = torch.zeros(8)
        self.factor: Any = 2.0
        self.version = 0
        self.notes = Notes()
        self.engine = engine(CPU)
        self.routine = Routine(self.engine, self.notes, proof)
        self.runs = 0
        self.trouble: Callable[[], Any] = lambda: None

    def work(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        self.runs += 1
        self.total.mul_(0.5)[:4].add_(inputs[0].reshape(-1)[:4])
        self.trouble()
        return [self.total * self.factor]

    def job(self, inputs: Sequence[Tensor]) -> Job:
        return Job(
            self.work, inputs, CPU, fixed=[self.total], written=[self.total], settings=bits(self.factor),
            version=self.version,
        )  # fmt: skip

    def raw(self, *inputs: Tensor) -> list[Tensor]:
        self.routine.next_step()
        with torch.no_grad():
            return list(self.routine(lambda: self.work(inputs), lambda: self.job(inputs)))

    def __call__(self, *inputs: Tensor) -> str:
        """Work once, compare, and say how it was done."""
        inputs = inputs or (torch.randn(4),)
        (result,) = self.raw(*inputs)
        self.expected.mul_(0.5)[:4].add_(inputs[0].reshape(-1)[:4])
        assert same_bits(self.total, self.expected)
        assert same_bits(result, self.expected * self.factor)
        return self.notes.calls[-1]

    @property
    def retired(self) -> list[str]:
        return [str(reason) for reason, *_ in self.notes.retirements]


def replaying(**options: Any) -> Adder:
    adder = Adder(**options)
    assert [adder() for _ in range(5)][-1] == "replay"
    return adder

"""Two optimizers alike: one native, one behind a routine on the CPU engine. Every step compares all that it leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lucid_accel import OrthogonalizationReplay, UpdateReplay
from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.engine import Engine
from lucid_accel.graphs.routine import Routine
from lucid_accel.graphs.tape import TapeEngine
from lucid_core.optim.musgd import MuSGD
from lucid_core.seams import claim
from tests.accel.graphs.twin import Notes

__all__ = ["SHAPES", "Pair", "noise", "parameters", "replaying"]

#: Wide, tall, square, a convolution, two alike, a vector, a scalar.
SHAPES = ((3, 20), (20, 3), (4, 4), (8, 3, 3, 3), (5, 6), (5, 6), (7,), ())

Gradients = Callable[[Sequence[nn.Parameter]], Sequence[Tensor | None]]


def noise(params: Sequence[nn.Parameter]) -> list[Tensor]:
    """Gradients of noise in the layout of their parameters."""
    return [torch.randn_like(param) for param in params]


class Pair:
    """The two optimizers.

    Args:
        shapes: Of the parameters of each group.
        kind: Of optimizer.
        replay: What the second one is behind.
        proof: See :class:`Routine`.
        engine: Makes the engine.
        prepare: Changes a fresh parameter.
        settings: Of the optimizers.
    """

    def __init__(
        self,
        *shapes: Sequence[tuple[int, ...]],
        kind: type[MuSGD] = MuSGD,
        replay: type[UpdateReplay] | type[OrthogonalizationReplay] = UpdateReplay,
        proof: bool = True,
        engine: Callable[[torch.device], Engine] = TapeEngine,
        prepare: Callable[[Tensor], Tensor] = lambda x: x,
        **settings: Any,
    ) -> None:
        self.optimizers = []
        for _ in range(2):
            random = torch.Generator().manual_seed(0)
            groups = [
                {"params": [nn.Parameter(prepare(torch.randn(shape, generator=random))) for shape in group]}
                for group in shapes or (SHAPES,)
            ]
            self.optimizers.append(kind(groups, **{"lr": 0.1, "weight_decay": 0.01, **settings}))
        self.native, self.behind = self.optimizers
        self.notes = Notes()
        self.engine = engine(torch.device("cpu"))
        self._replay = replay()
        self.routine = Routine(self.engine, self.notes, proof, self._replay.lend)
        self._replay._taken = self.behind
        (path,) = self._replay.claims
        self._scope = nn.Module()
        self._claim = claim(
            self._scope, path, "Pair", self.behind,
            lambda native, *args: self._replay.call(self.routine, native, *args),
        )  # fmt: skip
        self.steps = 0

    def both(self, act: Callable[[MuSGD], Any]) -> None:
        """Do the same to both optimizers."""
        for optimizer in self.optimizers:
            act(optimizer)

    def set(self, **settings: Any) -> None:
        """Change settings of all groups."""
        self.both(lambda optimizer: [group.update(settings) for group in optimizer.param_groups])

    def step(self, gradients: Gradients = noise) -> list[str]:
        """Move both, compare everything, and return what the routine did with each group.

        Raises:
            Exception: What both raised.
        """
        self.steps += 1
        told = len(self.notes.calls)
        self.routine.next_step()
        errors = []
        for optimizer in self.optimizers:
            torch.manual_seed(self.steps)
            params = parameters(optimizer)
            for param, gradient in zip(params, gradients(params), strict=True):
                param.grad = gradient
            given = [param.grad for param in params]
            try:
                optimizer.step()
                errors.append(None)
            except Exception as error:
                errors.append(error)
            assert all(param.grad is one for param, one in zip(params, given, strict=True)), "gradients were exchanged"
        self.compare()
        native, behind = errors
        assert (type(native), str(native)) == (type(behind), str(behind))
        if behind is not None:
            raise behind
        return self.notes.calls[told:]

    def compare(self) -> None:
        """Compare parameters, gradients and momentum, bit by bit."""
        assert self.native.param_groups[0].keys() == self.behind.param_groups[0].keys()
        for index, (one, other) in enumerate(zip(*map(parameters, self.optimizers), strict=True)):
            assert same_bits(one, other), f"parameter {index} differs in step {self.steps}"
            alike = (one.grad is not None and one.grad.is_sparse) or same_bits(one.grad, other.grad)
            assert alike, f"gradient {index} differs in step {self.steps}"
            states = [optimizer.state.get(x, {}) for optimizer, x in zip(self.optimizers, (one, other), strict=True)]
            assert states[0].keys() == states[1].keys()
            for name, value in states[0].items():
                assert same_bits(value, states[1][name]), f"{name} {index} differs in step {self.steps}"


def parameters(optimizer: MuSGD) -> list[nn.Parameter]:
    """All parameters of all groups."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def replaying(*shapes: Sequence[tuple[int, ...]], **options: Any) -> Pair:
    """Return a pair of which every group is replayed."""
    pair = Pair(*shapes, **options)
    for _ in range(15):
        if set(calls := pair.step()) == {"replay"}:
            return pair
    raise AssertionError((calls, pair.notes.retirements))

"""A small net twice: natively, and behind a region on the CPU engine. Every step compares all that it leaves behind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.region import Region
from lucid_accel.graphs.tape import TapeEngine
from lucid_accel.reasons import Reason

Loss = Callable[[Any], Tensor]


class Notes:
    """What a region told."""

    def __init__(self) -> None:
        self.calls: list[str] = []  # "replay", or the reason why a call was native
        self.captures = self.proofs = 0
        self.rearms: list[str] = []
        self.retirements: list[tuple[Reason, str, Exception | None]] = []

    def native(self, reason: Reason) -> None:
        self.calls.append(str(reason))

    def replayed(self) -> None:
        self.calls.append("replay")

    def recorded(self, reserved: int) -> None:
        self.captures += 1

    def proven(self) -> None:
        self.proofs += 1

    def spent(self, seconds: float) -> None:
        assert seconds >= 0

    def rearmed(self, why: str) -> None:
        self.rearms.append(why)

    def retired(self, reason: Reason, why: str, cause: Exception | None) -> None:
        self.retirements.append((reason, why, cause))


class Net(nn.Module):
    """Convolutions, batch norm, dropout: what a detector is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(self.conv(x)).relu()))


def squares(result: Any) -> Tensor:
    """The mean of squares of every result that can be trained."""
    terms = [x.square().mean() for x in tree_leaves(result) if isinstance(x, Tensor) and x.requires_grad]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def images(batch: int = 2, size: int = 5, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(seed))


class Twin:
    """The two nets, their optimizers, and what the region told.

    Args:
        net: Is trained natively; a deep copy of it behind a region.
        growable: Positions of arguments that are padded.
        proof: See :class:`Region`.
        engine: Makes the engine.
    """

    def __init__(
        self,
        net: nn.Module,
        growable: Collection[int] = (),
        proof: bool = True,
        engine: Callable[[torch.device], TapeEngine] = TapeEngine,
    ) -> None:
        self.native, self.module = net, copy.deepcopy(net)
        self.notes = Notes()
        self.engine = engine(torch.device("cpu"))
        self.region = Region(self.engine, self.module, self.notes, lambda args: [args[i] for i in growable], proof)
        self.optimizers = [self._optimizer(x) for x in (self.native, self.module)]

    @property
    def calls(self) -> list[str]:
        return self.notes.calls

    def _optimizer(self, net: nn.Module) -> torch.optim.SGD | None:
        trained = list(net.parameters())
        return torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=0.1) if trained else None

    def renew_optimizers(self) -> None:
        """For parameters that were exchanged."""
        self.optimizers = [self._optimizer(x) for x in (self.native, self.module)]

    def both(self, act: Callable[[Any], Any]) -> None:
        """Do the same to both nets."""
        act(self.native)
        act(self.module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the region."""
        return self.region(self.module.forward, *args, **kwargs)

    def step(
        self,
        *args: Any,
        loss: Loss = squares,
        micro: int = 1,
        update: bool = True,
        precision: torch.dtype | None = None,
        **kwargs: Any,
    ) -> str:
        """Train both for one step, compare everything, and return what the region did in its last call."""
        state = torch.get_rng_state()
        expected = self._train(self.native.forward, args, kwargs, loss, micro, precision)
        drawn = torch.get_rng_state()
        torch.set_rng_state(state)
        got = self._train(self.forward, args, kwargs, loss, micro, precision)
        self._compare("results", expected, got)
        assert torch.equal(torch.get_rng_state(), drawn), "other random numbers were drawn"
        self.compare_state()
        for optimizer in self.optimizers:
            if optimizer is not None and update:
                optimizer.step()
                optimizer.zero_grad()
        self.compare_state()
        return self.calls[-1]

    def _train(
        self, forward: Callable[..., Any], args: Any, kwargs: Any, loss: Loss, micro: int, precision: Any
    ) -> list[Any]:
        seen: list[Any] = []
        for _ in range(micro):
            self.region.next_step()
            inputs = [x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in args]
            with torch.autocast("cpu", precision, enabled=precision is not None):
                result = forward(*inputs, **kwargs)
            value = loss(result)
            if value.requires_grad:
                value.backward()
            if forward == self.forward:
                self.region.after_backward()
            entered = [x.grad for x in inputs if isinstance(x, Tensor)]
            seen += [*tree_leaves(result), value, *entered]
        return seen

    def compare_state(self) -> None:
        """Compare weights, buffers, gradients and momentum, bit by bit."""
        for kind in ("named_parameters", "named_buffers"):
            named = dict(getattr(self.module, kind)())
            for name, x in getattr(self.native, kind)():
                self._compare(name, [x, x.grad], [named[name], named[name].grad])
        for mine, other in zip(*(self._momentum(x) for x in self.optimizers), strict=True):
            self._compare("momentum", [mine], [other])

    def _momentum(self, optimizer: torch.optim.SGD | None) -> list[Any]:
        if optimizer is None:
            return []
        return [optimizer.state[x].get("momentum_buffer") for x in optimizer.param_groups[0]["params"]]

    def _compare(self, name: str, expected: list[Any], got: list[Any]) -> None:
        for index, (one, other) in enumerate(zip(expected, got, strict=True)):
            same = same_bits(one, other) if isinstance(one, Tensor) or one is None else one == other
            assert same, f"{name} {index}: {one} natively, {other} behind the region, in call {len(self.calls)}"

    def replay(self, *args: Any, **kwargs: Any) -> str:
        """Train until the region replays, and return what it did last."""
        for _ in range(5):
            if (last := self.step(*args, **kwargs)) == "replay":
                break
        return last


def replaying(net: nn.Module | None = None, *args: Any, **options: Any) -> Twin:
    """Return a twin that replays calls with ``args``, two images unless given."""
    twin = Twin(net or Net(), **options)
    assert twin.replay(*(args or (images(),))) == "replay", (twin.calls, twin.notes.retirements)
    return twin

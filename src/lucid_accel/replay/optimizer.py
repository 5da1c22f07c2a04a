"""What accelerations that record work of the optimizer have in common: one routine behind one seam."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import unwrap
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from lucid_accel.acceleration import Undo
from lucid_accel.adapters import is_free, marked, replace, take
from lucid_accel.graphs.job import bits
from lucid_accel.graphs.routine import Native, Routine
from lucid_accel.replay.base import Replay
from lucid_accel.site import Answer, Site, no, recordable, yes
from lucid_core.optim.musgd import MuSGD

__all__ = ["LIVE", "OptimizerReplay", "Orthogonalize", "in_branches", "same_state", "settings_of", "side_by_side"]

#: Stacks of matrices and the number of iterations, to the stacks turned.
Orthogonalize = Callable[[Sequence[Tensor], int], list[Tensor]]

#: Settings of a group of MuSGD that reach the device as tensors, or never.
LIVE = frozenset(("params", "param_names", "lr", "weight_decay"))

#: Attributes of every optimizer that no arithmetic reads; schedulers leave a step on it.
_OWN = frozenset(("version", "defaults", "state", "param_groups", "step"))


class OptimizerReplay(Replay):
    """Base of accelerations that record one seam of the optimizer: work that needs no gradients.

    Args:
        proof: See :class:`Replay`.
        on_failure: See :class:`Acceleration`.
        strict: See :class:`Acceleration`.
        keep: See :class:`Acceleration`.

    Attributes:
        lend: MuSGD is done with the seam's results before it calls it again, so that no copy is needed. A class made of
            it whose ``step`` is its own may call the seam itself, and gets copies.
    """

    lend: ClassVar[bool] = False

    @abstractmethod
    def call(self, routine: Routine, native: Native, *args: Any) -> Sequence[Tensor]:
        """Answer one call of the seam: describe it as a job for ``routine``.

        Args:
            routine: Decides.
            native: The seam's own method.
            args: What the seam was called with.
        """

    def part(self, site: Site) -> Optimizer | None:
        """Return the run's optimizer, if it has the seam."""
        found = [optimizer for optimizer in site.trainer.optimizers if marked(optimizer, self.claims[0])]
        return found[0] if len(found) == 1 else None

    def eligible(self, site: Site) -> Answer:
        """Ask what every recording needs, and whether the optimizer has the seam."""
        if not (answer := recordable(site, self.proof == "on")).ok or not site.started:
            return answer
        if self.part(site) is None:
            seen = ", ".join(type(optimizer).__name__ for optimizer in site.trainer.optimizers) or "none"
            return no(f"it needs the optimizer {MuSGD.__name__}", f"this run has {seen}", "set model.optimizer=musgd")
        return yes()

    def attributes(self) -> Hashable:
        """Return the public attributes of the optimizer, which a class made of MuSGD may read in the seam."""
        return settings_of(vars(self._taken), _OWN)

    def install(self, site: Site) -> Undo:
        """Send every call of the seam to a routine."""
        optimizer, engine = self.part(site), site.engine()
        assert optimizer is not None and engine is not None
        # torch wraps the step of a class when an optimizer is made of it.
        stock = unwrap(type(optimizer).step) is unwrap(MuSGD.step)
        routine = Routine(engine, self, self.proof == "on", self.lend and stock)

        def routed(native: Native, *args: Any) -> Sequence[Tensor]:
            return self.call(routine, native, *args)

        return self.drive(routine, optimizer, take(site.module, self.claims[0], self.owner, optimizer, routed))


@contextmanager
def same_state(optimizer: Optimizer, params: Sequence[Tensor]) -> Iterator[None]:
    """Refuse to record what exchanges a part of the state: Python does that once, and a replay never.

    Raises:
        ValueError: Within, the state of a parameter got other objects. It has its own again.
    """
    before = [dict(optimizer.state[param]) for param in params]
    try:
        yield
        if any(not _same(optimizer.state[param], own) for param, own in zip(params, before, strict=True)):
            raise ValueError("it exchanges what the optimizer's state holds, instead of writing to it in place")
    finally:
        for param, own in zip(params, before, strict=True):
            optimizer.state[param].clear()
            optimizer.state[param].update(own)


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(one[name] is other[name] for name in other)


@contextmanager
def in_branches(routine: Routine, optimizer: MuSGD) -> Iterator[None]:
    """Let what is recorded within orthogonalise each stack of matrices on a branch of its own."""
    if not is_free(optimizer, "orthogonalize"):
        yield
        return

    def orthogonalize(native: Orthogonalize, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
        return side_by_side(routine, optimizer, native, stacks, steps)

    undo = replace(optimizer, "orthogonalize", orthogonalize)
    try:
        yield
    finally:
        undo()


def side_by_side(
    routine: Routine, optimizer: MuSGD, native: Orthogonalize, stacks: Sequence[Tensor], steps: int
) -> list[Tensor]:
    """Record the orthogonalisation of ``stacks`` such that a replay does them side by side: one leaves the GPU idle.

    An orthogonalisation that is not MuSGD's is left as it is, for it may need one stack for another.
    """
    if type(optimizer).orthogonalize is not MuSGD.orthogonalize:
        return native(stacks, steps)
    return [x for (x,) in routine.branches([partial(native, [stack], steps) for stack in stacks])]


def settings_of(values: Mapping[str, Any], without: Collection[str]) -> Hashable:
    """Return public settings by name, such that equal ones have equal bits."""
    return tuple((name, *bits(x)) for name, x in values.items() if name not in without and not name.startswith("_"))

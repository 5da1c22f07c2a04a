"""What accelerations that record work of the optimizer have in common: one routine behind one seam."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from inspect import unwrap
from operator import itemgetter
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from lucid_accel.acceleration import Undo
from lucid_accel.adapters import marked, take
from lucid_accel.graphs.job import bits
from lucid_accel.graphs.routine import Native, Routine
from lucid_accel.replay.base import Replay
from lucid_accel.site import Answer, Site, no, recordable, yes
from lucid_core.optim.musgd import MuSGD

__all__ = ["LIVE", "OptimizerReplay", "momenta_of", "settings_of"]

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


def settings_of(values: Mapping[str, Any], without: Collection[str]) -> Hashable:
    """Return public settings by name, such that equal ones have equal bits."""
    return tuple((name, *bits(x)) for name, x in values.items() if name not in without and not name.startswith("_"))


def momenta_of(optimizer: MuSGD, params: Iterable[Tensor]) -> list[Tensor]:
    """Return the momentum of each parameter."""
    # Loops in C: there are hundreds of parameters.
    return list(map(_momentum, map(optimizer.state.__getitem__, params)))


_momentum = itemgetter("momentum")

"""The routing of the whole step: what a module makes of a batch, up to the gradients of all its parameters."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn

from lucid_accel.graphs.aside import Aside
from lucid_accel.graphs.attached import Attached
from lucid_accel.graphs.call import Call, Padded
from lucid_accel.graphs.certificate import Certificate
from lucid_accel.graphs.engine import Engine
from lucid_accel.graphs.entry import Entry
from lucid_accel.graphs.listener import Listener
from lucid_accel.graphs.mentions import Mentions
from lucid_accel.graphs.region import Native, Region
from lucid_accel.graphs.shelf import Shelf
from lucid_accel.reasons import Reason

__all__ = ["WholeStep"]

# A loop in C: there are hundreds of parameters.
_grad = attrgetter("grad")


class WholeStep(Region):
    """Routes a step whose gradients go nowhere but to parameters.

    It differs from a part of the step in four ways. Gradients are attached to their parameters, where they stay in one
    place. Of the batch, only tensors on the device may be read. Attributes of the module itself count only where the
    step mentions their names, since much else is kept there. What is logged is handed out beside the result.

    Args:
        engine: Records.
        module: The whole module.
        listener: Is told.
        padded: Names the parts of the batch that have a capacity.
        proof: Compare a replay with a native run after recording, and again later.
        aside: Takes what the step logs.
        names: Of its arguments, for messages.
        internal: Attributes of ``module`` that belong to its framework.
        frozen: Names of what changes as the run goes on, which the step may not mention.
    """

    def __init__(
        self,
        engine: Engine,
        module: nn.Module,
        listener: Listener,
        padded: Padded,
        proof: bool,
        aside: Aside,
        names: Collection[str],
        internal: Collection[str],
        frozen: Collection[str],
    ) -> None:
        self._aside = aside
        self._names = names
        self._internal = internal
        self._frozen = frozen
        self._mentions = Mentions()
        self._learning = False
        super().__init__(engine, module, listener, padded, proof)

    @property
    def attached(self) -> Attached | None:
        """The gradients that replays attach, once there is a recording."""
        return self._shelf.attached

    def _make_shelf(self) -> Shelf:
        return Shelf(self._engine, self._module, attach=True, aside=self._aside, names=list(self._names))

    def _describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return Call(args, kwargs, self._padded, self._engine.device, sealed=True)

    def _certify(self) -> Certificate:
        return Certificate(self._module, lambda name: name in self._mentions.names and name not in self._internal)

    def _skip(self) -> Reason | None:
        if (skip := super()._skip()) is not None:
            return skip
        return Reason.HOOKS if self.attached is not None and self.attached.hooked() else None

    def _natively(self, reason: Reason, native: Native, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._mentions.listening() if self._learning else nullcontext():
            return super()._natively(reason, native, args, kwargs)

    def _learn(self, reason: Reason, entry: Entry, call: Call, native: Native) -> Any:
        if entry.refused is not None or entry.recording is not None:
            return super()._learn(reason, entry, call, native)
        if not self._mentions.can_listen():
            # What is not heard is not watched, and a recording would freeze it.
            return self._natively(Reason.HOOKS, native, call.args, call.kwargs)
        known = len(self._mentions.names)
        self._learning = True
        try:
            result = super()._learn(reason, entry, call, native)
        finally:
            self._learning = False
        if read := sorted(self._mentions.own.intersection(self._frozen)):
            self.retire(Reason.SCALARS, f"the step mentions {', '.join(read)}, which a recording would freeze")
        elif len(self._mentions.names) != known and self._certificate is not None and not self._certificate.change():
            self._certificate = self._certify()
        return result

    def gradients(self, parameters: Collection[Tensor]) -> list[Tensor] | None:
        """Return the gradients of ``parameters`` that are there, ``None`` unless all of them come from a replay."""
        now = list(map(_grad, parameters))
        if any(map(is_, now, repeat(None))):
            now = [gradient for gradient in now if gradient is not None]
        return now if self.attached is not None and self.attached.holds(now) else None

"""What every routing has in common, of a region and of a routine: when it is native whatever is recorded."""

from __future__ import annotations

from abc import ABC, abstractmethod

from lucid_accel.graphs.context import native_context
from lucid_accel.graphs.engine import Engine
from lucid_accel.graphs.listener import Listener
from lucid_accel.reasons import Reason

__all__ = ["LATER_WARMUP", "REARMS", "WARMUP", "WHOLE_CHECK", "Router"]

#: Native calls before the first signature is recorded; of these one follows where it is proven.
WARMUP = 3
#: The same for a further signature: more than a partial batch has in a few epochs.
LATER_WARMUP = 10
#: How often recordings may be dropped and made again.
REARMS = 3
#: Calls between two comparisons of everything.
WHOLE_CHECK = 50


class Router(ABC):
    """Calls a part of the step natively until it is known, then replays it. Knows nothing of Lightning.

    Args:
        engine: Records.
        listener: Is told.
        proof: Compare a replay with a native run after recording, and again later.
        differentiable: The part is called where gradients are on; a routine is called where they are off.
    """

    def __init__(self, engine: Engine, listener: Listener, proof: bool, differentiable: bool) -> None:
        self._engine = engine
        self._listener = listener
        self._proof = proof
        self._differentiable = differentiable
        self._stream: int | None = None
        self._over = False
        self._suspended = False
        self._suspect = False

    def suspend(self) -> None:
        """Call natively, and keep what is recorded, until :meth:`resume`."""
        self._suspended = True

    def resume(self) -> None:
        """Replay again."""
        self._suspended = False

    def suspect(self) -> None:
        """Compare everything at the next call."""
        self._suspect = True

    def retire(self, reason: Reason, why: str, cause: Exception | None = None) -> None:
        """Stay native from now on, and give the memory back. May be called twice."""
        if not self._over:
            self.drop()
            self._listener.retired(reason, why, cause)

    def drop(self) -> None:
        """Let go of every recording. May be called twice; never raises for what is already gone."""
        self._over = True
        self._drop_recordings()

    @abstractmethod
    def next_step(self) -> None:
        """Tell that a new step begins: what an earlier one left undone never comes."""

    def after_backward(self) -> None:  # noqa: B027 - what needs no gradients waits for none
        """Tell that the backward of the step is done."""

    @abstractmethod
    def _drop_recordings(self) -> None:
        """Let go of every recording."""

    def _skip(self) -> Reason | None:
        """Say why this call is native whatever is recorded."""
        if self._over:
            return Reason.RETIRED
        if self._suspended:
            return Reason.DISABLED
        if self._engine.is_capturing():
            return Reason.FOREIGN_CAPTURE
        if (context := native_context(self._differentiable)) is not None:
            return context
        stream = self._engine.stream()
        if self._stream is None:
            self._stream = stream
        return Reason.STREAM if stream != self._stream else None

"""Whether a replay of a routine gives the bytes of its native run: shown on a real call, which keeps its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.engine import Engine
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.proof import Verdict

__all__ = ["Trial"]

_Native = Callable[[], Sequence[Tensor]]


class Trial:
    """The state before a native call, to run the same call again, replayed.

    Args:
        engine: The recording's engine.
        job: The call.
    """

    def __init__(self, engine: Engine, job: Job) -> None:
        self._engine = engine
        self._job = job
        self._inputs = [Layout.of(x).copy(x.detach()) for x in job.inputs]
        self._written = list(job.written)
        self._before = self._state()

    def verdict(
        self, outputs: Sequence[Tensor], replay: Callable[[Job], Sequence[Tensor]], native: _Native
    ) -> tuple[Verdict, str]:
        """Replay and compare with ``outputs``, those of the native call; the native state stays.

        Returns:
            The verdict, and the first tensor that differs, if any.
        """
        after = self._state()
        try:
            for index, (x, y) in enumerate(zip(self._job.inputs, self._inputs, strict=True)):
                if not same_bits(x, y):
                    return Verdict.UNLIKE, f"input {index}, which it writes to,"
            self._restore(self._before)
            different = self._difference(outputs, after, replay(self._job))
            if different is None:
                return Verdict.EQUAL, ""
            self._restore(self._before)
            again = self._difference(outputs, after, native())
            return (Verdict.UNLIKE, different) if again is None else (Verdict.UNPROVABLE, again)
        finally:
            self._restore(after)

    def _difference(self, outputs: Sequence[Tensor], state: list[Tensor], others: Sequence[Tensor]) -> str | None:
        if len(outputs) != len(others):
            return "the number of results"
        for index, (x, y) in enumerate(zip(outputs, others, strict=True)):
            if not same_bits(x, y):
                return f"result {index}"
        *now, generator = self._state()
        for index, (x, y) in enumerate(zip(state[:-1], now, strict=True)):
            if not same_bits(x, y):
                return f"state {index}"
        return None if same_bits(state[-1], generator) else "the random generator"

    def _state(self) -> list[Tensor]:
        return [*(x.detach().clone() for x in self._written), self._engine.generator_state()]

    def _restore(self, state: Sequence[Tensor]) -> None:
        for x, value in zip(self._written, state[:-1], strict=True):
            x.detach().copy_(value)
        self._engine.set_generator_state(state[-1])

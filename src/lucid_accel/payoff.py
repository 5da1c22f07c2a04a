"""Keeps what pays: measures the accelerations of a fit while it trains, one at a time. Knows nothing of Lightning."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from lucid_accel.finding import Finding, judge, unmeasured
from lucid_accel.graphs.engine import Engine
from lucid_accel.state import State
from lucid_accel.tally import Tally
from lucid_accel.windows import WINDOW, Windows

if TYPE_CHECKING:
    from lucid_accel.acceleration import Acceleration

__all__ = ["Payoff", "Progress", "Suspendable"]

#: Optimizer steps without recording or proving, before measuring begins.
QUIET = 5
#: Optimizer steps that have to be left for measuring to be worth it, and within which a verdict comes.
LIMIT = 200
#: Windows in a row that may be interrupted.
MISSES = 5
#: Pairs of windows: a verdict that is clear comes after the first number, any other one after the second.
PAIRS = 6, 9


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a fit is, in optimizer steps.

    Attributes:
        done: Steps so far.
        total: Steps of the whole fit; infinite where nobody knows.
        stretch: Steps from one epoch or validation to the next.
    """

    done: int
    total: float
    stretch: float

    @property
    def left(self) -> float:
        """Steps to come."""
        return self.total - self.done


@runtime_checkable
class Suspendable(Protocol):
    """An acceleration that can work natively for a while; others are not measured."""

    def suspend(self) -> None:
        """Work natively, and keep what is recorded."""

    def resume(self) -> None:
        """Replay again."""


class Payoff:
    """Measures the accelerations of a fit whose ``keep`` is ``auto``, and tells each what was found.

    One is measured at a time, the first in order that is recorded and proven; the others stay as they are. One that
    retires or is to be recorded again meanwhile is let go, and is measured later where it can be.

    Args:
        now: A clock, in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self._done: int | None = None
        self._quiet = 0
        self._measured: tuple[Acceleration, Windows] | None = None
        self._engine: Engine | None = None
        self._suspended = False

    @property
    def suspended(self) -> bool:
        """Whether an acceleration is native now, to be measured."""
        return self._suspended

    def step(
        self,
        party: Sequence[Acceleration],
        at: Progress,
        engine: Callable[[], Engine | None],
        setup: bool,
        interrupted: bool,
    ) -> None:
        """A training batch ended.

        Args:
            party: The accelerations of the fit.
            at: How far the fit is.
            engine: Makes an engine for the device of the fit, to wait for it and to ask for memory.
            setup: Something was recorded or proven in the batch.
            interrupted: Something else came since the last batch, such as a validation.
        """
        stepped = 0 if self._done is None else at.done - self._done
        self._done = at.done
        self._quiet = 0 if setup else self._quiet + stepped
        if self._measured is None:
            ready = (x for x in party if x.keep == "auto" and x.finding is None and x.state is State.RECORDED)
            item = next((x for x in ready if x.tally.replayed), None)
            # Between optimizer steps gradients are kept, by native and by replayed steps in different places.
            if item is not None and stepped and self._quiet >= QUIET:
                self._begin(party, item, at, engine())
            return
        item, windows = self._measured
        if item.state is not State.RECORDED:
            self._end(item)
            return
        windows.step(stepped, not (setup or interrupted))
        finding = _verdict(windows, item.tally, at.left) if stepped else None
        if finding is None:
            self._turn(item, windows.native)
        else:
            self._end(item)
            item.weighed(self._mind_memory(party, item, finding))

    def _begin(self, party: Sequence[Acceleration], item: Acceleration, at: Progress, engine: Engine | None) -> None:
        self._engine = engine
        length = min(WINDOW, at.stretch - 1)
        if not isinstance(item, Suspendable):
            finding = unmeasured("it cannot be native for a while")
        elif at.left < LIMIT:
            finding = unmeasured(f"the fit was too short, with {at.left:.0f} steps left")
        elif length < 1:
            finding = unmeasured("epochs of one step leave nothing to time")
        else:
            finding = None
        # Asked first: without room for them, the native steps of a window would end the run.
        found = self._mind_memory(party, item, finding or unmeasured(""))
        if finding is not None or not found.kept:
            item.weighed(found)
            return
        windows = Windows(self._wait, int(length), self._now)
        self._measured = item, windows
        self._turn(item, windows.native)

    def _mind_memory(self, party: Sequence[Acceleration], item: Acceleration, finding: Finding) -> Finding:
        """Add what is held and what is free; where less is free than held, it is not kept.

        Partial batches, evaluation and the later proof are native, and need about what a recording of them holds.
        """
        room, held = None if self._engine is None else self._engine.headroom(), item.tally.held
        # Between replays recordings use nothing of what they hold, and the engine counts what is not used as room.
        recorded = [other.tally.held for other in party if other.state is State.RECORDED]
        free = None if room is None else max(0, room - sum(recorded))
        finding = replace(finding, held_bytes=held, free_bytes=free)
        if free is None or free >= held:
            return finding
        why = f"does not pay: it holds {held / 2**20:.0f} MiB, and {free / 2**20:.0f} MiB are left for native steps"
        return replace(finding, kept=False, why=why)

    def _turn(self, item: Acceleration, native: bool) -> None:
        if native is not self._suspended and isinstance(item, Suspendable):
            (item.suspend if native else item.resume)()
            self._suspended = native

    def _end(self, item: Acceleration) -> None:
        self._turn(item, native=False)
        self._measured = None
        if self._engine is not None:
            # What native steps needed beside the recording is free now.
            self._engine.trim()

    def _wait(self) -> None:
        if self._engine is not None:
            self._engine.synchronize()


def _verdict(windows: Windows, tally: Tally, left: float) -> Finding | None:
    """Say what was found, once it is."""
    (few, many), pairs = PAIRS, windows.pairs
    over = windows.steps >= LIMIT or windows.misses > MISSES
    if len(pairs) < few:
        return unmeasured("its steps were interrupted too often") if over else None
    # The later proof costs what the first one did, and takes a native step.
    finding, clear = judge(pairs, left, tally.proof_seconds + pairs[-1][0] if tally.proofs else 0.0)
    return finding if clear or over or len(pairs) >= many else None

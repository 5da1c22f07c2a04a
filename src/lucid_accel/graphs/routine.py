"""The routing of work that needs no gradients, such as an optimizer's: native or replayed, call by call."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from lucid_accel.graphs.engine import CaptureError, CollectionPause, Engine
from lucid_accel.graphs.entry import SECOND_PROOF
from lucid_accel.graphs.job import Job, JobSignature
from lucid_accel.graphs.listener import Listener
from lucid_accel.graphs.proof import Verdict
from lucid_accel.graphs.router import LATER_WARMUP, REARMS, WARMUP, WHOLE_CHECK, Router
from lucid_accel.graphs.shelf import KNOWN, RECORDED
from lucid_accel.graphs.single import SingleRecording
from lucid_accel.graphs.trial import Trial
from lucid_accel.reasons import Reason

__all__ = ["Routine"]

T = TypeVar("T")

Native = Callable[[], Sequence[Tensor]]


@dataclass(slots=True)
class _Known:
    """What is known of the calls of one signature."""

    sightings: int = 0
    calls: int = 0
    checked: int = 0
    replays: int = 0
    proofs: int = 0
    refused: Reason | None = None
    recording: SingleRecording | None = None

    def proof_due(self) -> bool:
        return self.proofs == 0 or (self.proofs == 1 and self.replays >= SECOND_PROOF)


class _Family:
    """The signatures of one key."""

    def __init__(self) -> None:
        self._known: dict[JobSignature, _Known] = {}
        self._last: tuple[Any, _Known] | None = None

    def of(self, job: Job) -> _Known:
        # Hundreds of strides take longer to hash than to compare.
        if self._last is not None and job.is_like(self._last[0]):
            return self._last[1]
        signature = job.signature
        if signature not in self._known:
            if len(self._known) == KNOWN:
                # The oldest one: settings that changed at every step, as in a warm-up, never come back.
                del self._known[next(old for old, known in self._known.items() if known.recording is None)]
            self._known[signature] = _Known()
        known = self._known[signature]
        # A recording keeps what it works on; a signature that was merely seen should not.
        self._last = None if known.recording is None else (job.likeness, known)
        return known

    def recorded(self) -> list[tuple[JobSignature, SingleRecording]]:
        return [(signature, known.recording) for signature, known in self._known.items() if known.recording is not None]


class Routine(Router):
    """Routes work that needs no gradients, and is complete when it returns.

    Args:
        engine: Records.
        listener: Is told.
        proof: Compare a replay with a native run after recording, and again later.
        lend: Replays return the recording's own memory, for a caller that is done with it before the next one.
    """

    def __init__(self, engine: Engine, listener: Listener, proof: bool = True, lend: bool = False) -> None:
        super().__init__(engine, listener, proof, differentiable=False)
        self._lend = lend
        self._families: dict[Hashable, _Family] = {}
        self._version: Hashable = None
        self._rearms = 0
        self._suspicions = 0
        self._growth = 0
        self._fresh = False
        self._pause = CollectionPause()

    @property
    def device(self) -> torch.device:
        """Where recorded work runs."""
        return self._engine.device

    def __call__(self, native: Native, describe: Callable[[], Job]) -> Sequence[Tensor]:
        """Do the work.

        Args:
            native: Does it natively.
            describe: Returns what it is, where that is asked.
        """
        if (skip := self._skip()) is not None:
            return self._natively(skip, native)
        job = describe()
        if not self._current(job):
            return self._natively(Reason.STORAGE, native)
        if job.refusal is not None:
            return self._natively(job.refusal, native)
        family = self._families.setdefault(job.key, _Family())
        known = family.of(job)
        if known.recording is None:
            return self._learn(family, known, job, native)
        change = self._change(known, known.recording, job)
        if isinstance(change, tuple):
            self.retire(*change)
            return self._natively(change[0], native)
        if change is not None:
            return self._natively(change, native)
        if self._proof and known.proof_due():
            return self._prove(known, known.recording, job, native)
        return self._replay(known, known.recording, job)

    def branches(self, bodies: Sequence[Callable[[], T]]) -> list[T]:
        """Record work that a replay may do side by side; see :meth:`Engine.branches`."""
        return self._engine.branches(bodies)

    def suspect(self) -> None:
        """Compare everything at the next call of each signature."""
        self._suspicions += 1

    def renew(self) -> None:
        """Start anew: what the work is done on was exchanged, and is known to have been."""
        self._drop_recordings()

    def next_step(self) -> None:
        """Tell that a new step begins."""
        if not self._fresh:
            self._pause.end()
        self._fresh = False

    # One decision each

    def _current(self, job: Job) -> bool:
        """Start anew where the job says that what it works on was replaced; say whether that is still allowed."""
        if self._version is None:
            self._version = job.version
        if self._version == job.version:
            return True
        self._version = job.version
        if not any(family.recorded() for family in self._families.values()):
            self._families.clear()
            return True
        why = "the optimizer's state was loaded, or its groups changed"
        if self._rearms == REARMS:
            self.retire(Reason.STORAGE, f"{why}, for the {REARMS + 1}th time")
            return False
        self._rearms += 1
        self._drop_recordings()
        self._listener.rearmed(why)
        return True

    def _change(self, known: _Known, recording: SingleRecording, job: Job) -> tuple[Reason, str] | Reason | None:
        """Say what changed under a recording: for good, with words, or for this call."""
        # First: where something was moved from, an input may lie by now.
        if recording.moved(job):
            return Reason.STORAGE, "a tensor that it works on was moved"
        if recording.overlaid(job):
            return Reason.ALIAS
        known.calls += 1
        if known.checked == self._suspicions and known.calls % WHOLE_CHECK:
            return None
        known.checked = self._suspicions
        if recording.changed(job):
            return Reason.STORAGE, "a tensor that it works on has another layout"
        objection = job.objection()
        return None if objection is None else (objection, "a tensor that it works on is no longer one of its own")

    def _learn(self, family: _Family, known: _Known, job: Job, native: Native) -> Sequence[Tensor]:
        """Work natively, and get nearer to a recording; make it where the signature has been seen often enough."""
        known.sightings += 1
        recorded = family.recorded()
        reason = recorded[0][0].difference(job.signature) if recorded else Reason.WARMUP
        needed = (LATER_WARMUP if recorded else WARMUP) - self._proof
        if known.refused is None and known.sightings >= needed:
            known.refused = job.objection() or (None if self._has_room(len(recorded)) else Reason.MEMORY)
            if known.refused is None and not self._record(known, job):
                return self._natively(Reason.CAPTURE_FAILED, native)
        # Proven on the next call: a Python value that changes from call to call was frozen now, and shows then.
        if known.recording is None or self._proof:
            return self._natively(known.refused or reason, native)
        return self._replay(known, known.recording, job)

    def _has_room(self, recorded: int) -> bool:
        room = self._engine.headroom()
        return recorded < RECORDED and (not recorded or room is None or room > 2 * self._growth)

    # Calls

    def _natively(self, reason: Reason, native: Native) -> Sequence[Tensor]:
        self._listener.native(reason)
        return native()

    def _replay(self, known: _Known, recording: SingleRecording, job: Job) -> Sequence[Tensor]:
        outputs = recording(job)
        known.replays += 1
        self._pause.end()
        self._listener.replayed()
        return outputs

    def _prove(self, known: _Known, recording: SingleRecording, job: Job, native: Native) -> Sequence[Tensor]:
        """Work natively, and run the same call again, replayed."""
        start = time.perf_counter()
        short = Reason.MEMORY, "there is no memory to run a call beside its replay, to prove it"
        try:
            trial = Trial(self._engine, job)
        except torch.OutOfMemoryError:
            self.retire(*short)
            return self._natively(Reason.MEMORY, native)
        outputs = self._natively(Reason.WARMUP, native)
        try:
            verdict, where = trial.verdict(outputs, recording, native)
        except torch.OutOfMemoryError:
            self.retire(*short)
            return outputs
        finally:
            self._pause.end()
        if verdict is not Verdict.EQUAL:
            self.retire(*verdict.complaint(where))
            return outputs
        known.proofs += 1
        self._listener.proven()
        del trial
        self._engine.trim()
        self._listener.spent(time.perf_counter() - start)
        return outputs

    def _record(self, known: _Known, job: Job) -> bool:
        start = time.perf_counter()
        # A capture begins by emptying the cache, which would count as shrinking.
        self._engine.trim()
        reserved = self._engine.reserved()
        self._pause.begin()
        try:
            known.recording = SingleRecording(self._engine, job, self._lend)
        except (CaptureError, torch.OutOfMemoryError) as error:
            self.retire(Reason.CAPTURE_FAILED, f"it could not be recorded: {error}", error)
            return False
        except BaseException:
            self._pause.end()
            raise
        growth = self._engine.reserved() - reserved
        self._growth = max(self._growth, growth)
        self._fresh = True
        self._listener.recorded(growth)
        self._listener.spent(time.perf_counter() - start)
        return True

    def _drop_recordings(self) -> None:
        for family in self._families.values():
            for _, recording in family.recorded():
                recording.drop()
        self._families.clear()
        self._pause.end()
        self._engine.trim()

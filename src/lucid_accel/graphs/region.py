"""The routing of one region of the step: native or replayed, call by call. Knows nothing of Lightning."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lucid_accel.graphs.call import Call, Padded
from lucid_accel.graphs.certificate import Certificate, Change
from lucid_accel.graphs.engine import CaptureError, Engine
from lucid_accel.graphs.entry import Entry
from lucid_accel.graphs.listener import Listener
from lucid_accel.graphs.proof import Proof, Verdict
from lucid_accel.graphs.recording import OtherResult
from lucid_accel.graphs.router import LATER_WARMUP, REARMS, WARMUP, WHOLE_CHECK, Router
from lucid_accel.graphs.shelf import Shelf
from lucid_accel.graphs.side_effects import SideEffects
from lucid_accel.reasons import Reason

__all__ = ["Region"]

Native = Callable[..., Any]

_REARMING = frozenset({Reason.MODE, Reason.FREEZE})


class Region(Router):
    """Routes one differentiable part of the step, with its backward.

    Args:
        engine: Records.
        module: The part: its parameters, buffers, hooks, modes and attributes are what the recording relies on.
        listener: Is told.
        padded: Names the arguments that have a capacity; see :class:`~lucid_accel.graphs.call.Call`.
        proof: Compare a replay with a native run after recording, and again later.
    """

    def __init__(
        self,
        engine: Engine,
        module: nn.Module,
        listener: Listener,
        padded: Padded = lambda args: (),
        proof: bool = True,
    ) -> None:
        super().__init__(engine, listener, proof, differentiable=True)
        self._module = module
        self._padded = padded
        self._rearms = 0
        self._calls = 0
        self._watched: Entry | None = None
        self._fresh = False
        self._proving: tuple[Proof, Entry] | None = None
        self._shelf = self._make_shelf()
        self._certificate: Certificate | None = None

    def __call__(self, native: Native, *args: Any, **kwargs: Any) -> Any:
        """Call the region."""
        if (skip := self._skip()) is not None:
            return self._natively(skip, native, args, kwargs)
        if (change := self._change()) is not None and not self._rearm(*change):
            return self._natively(change[0], native, args, kwargs)
        call = self._describe(args, kwargs)
        if call.refusal is not None:
            return self._natively(call.refusal, native, args, kwargs)
        if (entry := self._shelf.entry(call.signature)) is None:
            return self._natively(Reason.MEMORY, native, args, kwargs)
        if (reason := self._not_ready(entry, call)) is not None:
            return self._learn(reason, entry, call, native)
        assert entry.recording is not None
        if self._proof and entry.proof_due():
            return self._prove(entry, call, native)
        outputs = entry.recording(call.tensors)
        entry.replays += 1
        self._shelf.pause.end()
        self._listener.replayed()
        entry.hand_out(outputs)
        return entry.rebuild(outputs)

    def after_backward(self) -> None:
        """Finish the watch, or the proof, that waits for the backward of its step, if one does."""
        if self._watched is not None:
            self._watched.end_watch()
            self._watched = None
        if self._proving is None:
            return
        (proof, entry), self._proving = self._proving, None
        start = time.perf_counter()
        try:
            result = proof.verdict()
        except torch.OutOfMemoryError:
            return self.retire(Reason.MEMORY, "there is no memory to run a step beside its replay, to prove it")
        finally:
            self._shelf.pause.end()
        if result is None:
            return
        verdict, where = result
        if verdict is Verdict.EQUAL:
            entry.proofs += 1
            self._listener.proven()
            # What the native steps needed beside the recording is free now.
            self._engine.trim()
            self._listener.spent(time.perf_counter() - start)
        else:
            self.retire(*verdict.complaint(where))

    def next_step(self) -> None:
        """Tell that a new step begins: what an earlier one left undone never comes."""
        self._end_proof()
        if not self._fresh:
            self._shelf.pause.end()
        self._fresh = False
        for recording in [entry.recording for entry in self._shelf.recorded()]:
            assert recording is not None
            recording.forget()
            if recording.surprise is not None:
                self.retire(Reason.MISSING_GRAD, recording.surprise)

    # What depends on how much of the step the region is

    def _make_shelf(self) -> Shelf:
        return Shelf(self._engine, self._module)

    def _describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return Call(args, kwargs, self._padded, self._engine.device)

    def _certify(self) -> Certificate:
        return Certificate(self._module)

    # One decision each

    def _skip(self) -> Reason | None:
        skip = super()._skip()
        if self._certificate is not None and self._certificate.trained and not self._module.training:
            # Said before what evaluation brings with it, such as the absence of gradients.
            return skip if self._over or self._suspended else Reason.EVAL
        waiting = self._shelf.pending() or self._proving is not None
        return Reason.OUTSTANDING_BACKWARD if skip is None and waiting else skip

    def _change(self) -> Change | None:
        """Say what changed under the recordings."""
        self._calls += 1
        if self._certificate is None or self._calls < WARMUP:
            # Nothing was watched yet. A forward may make what it keeps when it is first called.
            self._certificate = self._certify()
        change = self._certificate.change()
        if change is None and (self._suspect or self._calls % WHOLE_CHECK == 0):
            self._suspect = False
            change = self._certificate.whole_change()
        return change

    def _rearm(self, reason: Reason, why: str) -> bool:
        """Start anew where the change is one that runs make on purpose; else retire."""
        if reason not in _REARMING or self._rearms == REARMS:
            self.retire(reason, why if reason not in _REARMING else f"{why}, for the {REARMS + 1}th time")
            return False
        self._rearms += 1
        self._drop_recordings()
        self._certificate = self._certify()
        self._listener.rearmed(why)
        return True

    def _not_ready(self, entry: Entry, call: Call) -> Reason | None:
        """Say why there is no recording to serve this call."""
        if entry.refused is not None:
            return entry.refused
        if entry.recording is not None and call.rows <= entry.capacity:
            return None
        others = [other for other in self._shelf.recorded() if other is not entry]
        return others[0].signature.difference(call.signature) if others else Reason.WARMUP

    def _learn(self, reason: Reason, entry: Entry, call: Call, native: Native) -> Any:
        """Call natively, and get nearer to a recording; make it where all is known."""
        entry.sightings += 1
        entry.seen_rows = max(entry.seen_rows, call.rows)
        others = any(other is not entry for other in self._shelf.recorded())
        needed = (LATER_WARMUP if others else WARMUP) - self._proof
        if entry.refused is not None or entry.sightings < needed:
            return self._natively(reason, native, call.args, call.kwargs)
        entry.end_watch()
        if entry.fault is not None:
            self.retire(Reason.CAPTURE_FAILED, f"it cannot be recorded: {entry.fault}")
            return self._natively(Reason.CAPTURE_FAILED, native, call.args, call.kwargs)
        if entry.cotangents is None:
            return self._watch(reason, entry, call, native)
        if entry.grown == REARMS:
            return self._natively(Reason.SHAPE, native, call.args, call.kwargs)
        if entry.recording is None and not self._shelf.has_room():
            entry.refused = Reason.MEMORY
            return self._natively(Reason.MEMORY, native, call.args, call.kwargs)
        if not self._record(entry, call, native):
            return self._natively(Reason.CAPTURE_FAILED, native, call.args, call.kwargs)
        # Proven on the next step: a Python value that changes from step to step was frozen now, and shows then.
        if self._proof:
            return self._natively(reason, native, call.args, call.kwargs)
        return self(native, *call.args, **call.kwargs)

    # Native calls

    def _natively(self, reason: Reason, native: Native, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._listener.native(reason)
        return native(*args, **kwargs)

    def _watch(self, reason: Reason, entry: Entry, call: Call, native: Native) -> Any:
        """Call natively; note which results get gradients, how these are laid out, and what Python does meanwhile."""
        assert self._certificate is not None
        effects = SideEffects(self._engine.device, self._certificate, call)
        result = self._natively(reason, native, call.args, call.kwargs)
        if (found := effects.found()) is not None:
            self.retire(*found)
            return result
        self._watched = entry
        return entry.watch(result, self._shelf.wanted(call), self._shelf.own(call))

    def _prove(self, entry: Entry, call: Call, native: Native) -> Any:
        """Run this step natively, watched, and replay it after its backward."""
        assert entry.recording is not None
        written = {**dict(self._module.named_parameters()), **dict(self._module.named_buffers())}
        proof = Proof(self._engine, entry.recording, self._shelf.parameters(), written)
        try:
            proof.begin()
        except torch.OutOfMemoryError:
            self.retire(Reason.MEMORY, "there is no memory to note the state of a step, to prove its replay")
            return self._natively(Reason.MEMORY, native, call.args, call.kwargs)
        self._proving = proof, entry
        self._listener.native(Reason.WARMUP)
        try:
            outputs = proof.run(entry.observed(call.form, native), call.tensors)
        except OtherResult as other:
            self.retire(Reason.SCALARS, str(other))
            return other.result
        if not any(x.requires_grad for x in outputs):
            self.after_backward()
        return entry.rebuild(outputs)

    def _record(self, entry: Entry, call: Call, native: Native) -> bool:
        start = time.perf_counter()
        try:
            growth = self._shelf.record(entry, call, native)
        except (CaptureError, ValueError, torch.OutOfMemoryError) as error:
            self.retire(Reason.CAPTURE_FAILED, f"it could not be recorded: {error}", error)
            return False
        self._fresh = True
        self._listener.recorded(growth)
        self._listener.spent(time.perf_counter() - start)
        return True

    def _drop_recordings(self) -> None:
        self._end_proof()
        self._shelf.clear()
        self._certificate = None  # it keeps what it was made of, even what the module has exchanged since

    def _end_proof(self) -> None:
        if self._proving is not None:
            self._proving[0].end()
            self._proving = None
            self._shelf.pause.end()

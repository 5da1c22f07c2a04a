"""The recordings of one region, by signature, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from lucid_accel.graphs.aside import Aside
from lucid_accel.graphs.attached import Attached
from lucid_accel.graphs.call import Call, Signature
from lucid_accel.graphs.engine import CollectionPause, Engine
from lucid_accel.graphs.entry import Entry
from lucid_accel.graphs.recording import Recording
from lucid_accel.graphs.writes import writing_within

__all__ = ["Shelf"]

#: Signatures that may be recorded.
RECORDED = 8
#: Signatures that are kept count of.
KNOWN = 64


class Shelf:
    """What is known of each signature, and the recordings there are.

    Args:
        engine: Records.
        module: The part of the model that the region is.
        attach: Gradients of parameters are attached to them, past autograd.
        aside: Takes what the region hands out beside its result.
        names: Of its arguments, for messages.

    Attributes:
        pause: Keeps the garbage collector off from a capture until its first replay is done.
        attached: The gradients, with ``attach``, once there is a recording.
    """

    def __init__(
        self,
        engine: Engine,
        module: nn.Module,
        attach: bool = False,
        aside: Aside | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self.pause = CollectionPause()
        self.attached: Attached | None = None
        self._attach = attach
        self._aside = aside
        self._names = list(names)
        self._engine = engine
        self._module = module
        self._entries: dict[Signature, Entry] = {}
        self._growth = 0

    def entry(self, signature: Signature) -> Entry | None:
        """Return what is known of ``signature``; ``None`` where too many others are known."""
        if signature not in self._entries and len(self._entries) < KNOWN:
            self._entries[signature] = Entry(signature, self._aside)
        return self._entries.get(signature)

    def recorded(self) -> list[Entry]:
        """Return the entries that have a recording, oldest first."""
        return [entry for entry in self._entries.values() if entry.recording is not None]

    def pending(self) -> bool:
        """Whether the backward of a replay is still to come."""
        return any(entry.recording is not None and entry.recording.pending for entry in self._entries.values())

    def parameters(self) -> dict[str, Tensor]:
        """Return the trainable parameters by name."""
        return {name: x for name, x in self._module.named_parameters() if x.requires_grad}

    def wanted(self, call: Call) -> dict[Any, Tensor]:
        """Return what gets a gradient: inputs by their place, parameters by name."""
        return {i: x for i, x in enumerate(call.tensors) if x.requires_grad} | self.parameters()  # type: ignore[return-value]

    def own(self, call: Call) -> list[Tensor]:
        """Return inputs, parameters and buffers."""
        return [*call.tensors, *self._module.parameters(), *self._module.buffers()]

    def has_room(self) -> bool:
        """Whether one more signature may be recorded: there are few, and one of the largest would fit twice."""
        recorded, room = len(self.recorded()), self._engine.headroom()
        return recorded < RECORDED and (not recorded or room is None or room > 2 * self._growth)

    def record(self, entry: Entry, call: Call, native: Callable[..., Any]) -> int:
        """Record ``entry`` from ``call``, with the largest capacity seen; a smaller recording is replaced.

        Returns:
            Bytes by which the device's reserved memory grew.

        Raises:
            CaptureError: See :meth:`Engine.capture`. Then there is no recording.
            ValueError: With ``attach``: a parameter has gaps, or overlaps itself.
        """
        # A capture begins by emptying the cache, which would count as shrinking.
        self._engine.trim()
        reserved, capacity = self._engine.reserved(), max(entry.seen_rows, call.rows)
        if entry.recording is not None:
            entry.recording.drop()
            entry.recording = None
            entry.grown += 1
        parameters = list(self.parameters().values())
        known = [*self._module.parameters(), *self._module.buffers()]
        self.pause.begin()
        try:
            if self._attach and self.attached is None:
                self.attached = Attached(parameters)
            entry.recording = Recording(
                self._engine,
                writing_within(known, entry.recordable(call.sealed(self._names), native)),
                call.padded(capacity),
                parameters,
                list(self._module.buffers()),
                entry.cotangents or [],
                self.attached,
            )
        except BaseException:
            self.pause.end()
            raise
        entry.capacity, entry.proofs, entry.replays = capacity, 0, 0
        growth = self._engine.reserved() - reserved
        self._growth = max(self._growth, growth)
        return growth

    def clear(self) -> None:
        """Drop every recording, and give the memory back. May be called twice."""
        for entry in self.recorded():
            assert entry.recording is not None
            entry.recording.drop()
        for entry in self._entries.values():
            entry.close()
        self._entries.clear()
        if self.attached is not None:
            self.attached.release()
            self.attached = None
        self.pause.end()
        self._engine.trim()

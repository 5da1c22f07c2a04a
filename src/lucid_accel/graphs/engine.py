"""How device work is recorded: the interface that both engines have, and the choice between them."""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar, Protocol, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

__all__ = ["CaptureError", "Engine", "Graph", "engine_for", "use_engine"]

T = TypeVar("T")


class CaptureError(RuntimeError):
    """Device work could not be recorded; nothing was changed by the attempt. The cause is chained."""


class Graph(Protocol):
    """Recorded device work over tensors that keep their addresses."""

    def replay(self) -> None:
        """Run the work once more, on the current stream."""


class Engine(ABC):
    """Records device work into one memory pool of its own.

    One acceleration owns one engine: recordings made lazily at different seams are not captured in running order, so a
    pool shared between accelerations would overwrite live activations.

    Args:
        device: Where the work runs.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abstractmethod
    def capture(self, body: Callable[[], T], after: Graph | None = None) -> tuple[Graph, T]:
        """Record the device work of ``body`` without doing it.

        Args:
            body: Python that launches device work. It runs once; what it reads from Python is frozen.
            after: A graph of this engine that this one goes on from, and is always replayed after: a forward whose
                backward ``body`` is.

        Returns:
            The graph, and what ``body`` returned: its tensors hold values after each replay, and only then.

        Raises:
            CaptureError: ``body`` raised, or did what cannot be recorded. Random generators, the memory that ``body``
                wrote to, streams and the autocast cache are as before.
        """

    def branches(self, bodies: Sequence[Callable[[], T]]) -> list[T]:
        """Record work within :meth:`capture` that a replay may do side by side.

        Args:
            bodies: Python that launches device work, each independent of the others: none reads or writes what another
                one writes.

        Returns:
            What each body returned.
        """
        return [body() for body in bodies]

    @abstractmethod
    def generator_state(self) -> Tensor:
        """Return the state of the random generator that recorded work draws from."""

    @abstractmethod
    def set_generator_state(self, state: Tensor) -> None:
        """Put back what :meth:`generator_state` returned."""

    @abstractmethod
    def reserved(self) -> int:
        """Return the bytes that the process has reserved on the device; 0 where nobody counts."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""

    @abstractmethod
    def is_capturing(self) -> bool:
        """Whether somebody is recording on the current stream."""

    @abstractmethod
    def stream(self) -> int:
        """Return the identity of the current stream."""

    def headroom(self) -> int | None:
        """Return the bytes that could still be reserved; ``None`` where nobody counts."""
        return None

    def trim(self) -> None:  # noqa: B027 - where nobody counts memory there is nothing to give back
        """Give memory that nothing uses back to the device. Slow; never inside a capture."""


_chosen: ContextVar[Callable[[torch.device], Engine] | None] = ContextVar("engine", default=None)


def engine_for(device: torch.device) -> Engine | None:
    """Return a new engine for ``device``, or ``None`` where work cannot be recorded."""
    if (chosen := _chosen.get()) is not None:
        return chosen(device)
    if device.type == "cuda":
        from lucid_accel.graphs.cuda import CudaGraphEngine

        return CudaGraphEngine(device)
    return None


@contextmanager
def use_engine(make: Callable[[torch.device], Engine]) -> Iterator[None]:
    """Let :func:`engine_for` return what ``make`` makes, for tests."""
    token = _chosen.set(make)
    try:
        yield
    finally:
        _chosen.reset(token)


class CollectionPause:
    """Keeps the garbage collector off, from a capture until its first replay is done.

    Destroying a graph while a stream is capturing invalidates the capture, and recorded modules sit in reference
    cycles, so the collector would choose the moment. There is one collector, so it stays off until the last of several
    pauses ends.
    """

    _open: ClassVar[WeakSet[CollectionPause]] = WeakSet()
    _was_on: ClassVar[bool] = False

    def begin(self) -> None:
        """Collect what is unreachable now, then keep the collector off. May be called twice."""
        if self not in self._open:
            gc.collect()
            if not self._open:
                CollectionPause._was_on = gc.isenabled()
            self._open.add(self)
        gc.disable()

    def end(self) -> None:
        """Put the collector back to what it was, if no other pause is open. May be called twice."""
        if self in self._open:
            self._open.discard(self)
            if not self._open and self._was_on:
                gc.enable()

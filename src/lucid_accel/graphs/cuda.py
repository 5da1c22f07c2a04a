"""Recording with CUDA graphs. The only module that opens a capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from lucid_accel.graphs.engine import CaptureError, Engine, Graph
from lucid_accel.graphs.witness import Witness

__all__ = ["CudaGraphEngine"]

T = TypeVar("T")

#: Branches that run side by side. Each has a workspace of its own for matrix products, of up to 32 MiB.
BRANCHES = 3


class CudaGraphEngine(Engine):
    """Records on a stream of its own into one private memory pool.

    Captures are ``thread_local``: with ``global`` ones every CUDA call of another thread, such as the loader's that
    pins memory, fails and breaks the capture.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None
        self._beside: list[torch.cuda.Stream] = []

    def capture(self, body: Callable[[], T], after: Graph | None = None) -> tuple[Graph, T]:
        """Record ``body``; see :meth:`Engine.capture`."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._beside = [torch.cuda.Stream(self.device) for _ in range(BRANCHES - 1)]  # type: ignore[no-untyped-call]
            self._pool = torch.cuda.graph_pool_handle()
        generator, stream = self.generator_state(), torch.cuda.current_stream(self.device)
        graph = torch.cuda.CUDAGraph()
        # A cast that autocast kept from before would be read by every replay, and never made anew.
        torch.clear_autocast_cache()
        # A workspace that a stream already has lies outside the pool, and is freed below: it must be made anew inside.
        torch._C._cuda_clearCublasWorkspaces()
        made = after.made if isinstance(after, _Recorded) else frozenset[int]()
        witness, first, done = Witness(self.device, made), None, False
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                try:
                    with witness:
                        result = body()
                except Exception as error:
                    first = error
                    raise
            done = True
        except Exception as error:
            # A capture that was invalidated makes its own end fail too: the first error is the one to tell.
            cause = first or error
            raise CaptureError(f"{type(cause).__name__}: {cause}") from cause
        finally:
            torch.cuda.set_stream(stream)
            if not done:
                self._mend()
            torch.clear_autocast_cache()
            # The workspace of matrix products lies in the pool: kept for later ones, it would keep the pool.
            torch._C._cuda_clearCublasWorkspaces()
            self.set_generator_state(generator)
        return _Recorded(graph, list(witness.kept.values()), frozenset(witness.made)), result

    def branches(self, bodies: Sequence[Callable[[], T]]) -> list[T]:
        """Record ``bodies`` on streams that part here and meet again; see :meth:`Engine.branches`."""
        here = torch.cuda.current_stream(self.device)
        beside = self._beside[: max(0, len(bodies) - 1)]
        for stream in beside:
            stream.wait_stream(here)
        try:
            results = [_on([here, *beside][index % BRANCHES], body) for index, body in enumerate(bodies)]
        except BaseException:
            # What was invalidated cannot be joined any more: the error to tell is the body's.
            for stream in beside:
                with suppress(RuntimeError):
                    here.wait_stream(stream)
            raise
        for stream in beside:
            here.wait_stream(stream)
        return results

    def _mend(self) -> None:
        """Leave the state that a capture leaves that did end well.

        One that was invalidated keeps its pool open, with a use of it counted, and its random generator in capture.
        Raises where the device is beyond repair.
        """
        torch.cuda.synchronize(self.device)
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        # The first one raises where the capture did end, in its body's error alone: then nothing is left to release.
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(index, self._pool)
            torch._C._cuda_releasePool(index, self._pool)
        # A pool that nothing uses cannot be used again as long as somebody, such as a traceback, keeps memory of it.
        self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=self._stream, capture_error_mode="thread_local"):
            torch.zeros((), device=self.device)

    def generator_state(self) -> Tensor:
        """Return the state of the device's default generator."""
        return torch.cuda.get_rng_state(self.device)

    def set_generator_state(self, state: Tensor) -> None:
        """Set the state of the device's default generator."""
        torch.cuda.set_rng_state(state, self.device)

    def reserved(self) -> int:
        """Return the bytes reserved by the caching allocator."""
        return torch.cuda.memory_reserved(self.device)

    def headroom(self) -> int:
        """Return the bytes that are free on the device or in unused blocks."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self.device)

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""
        return torch.cuda.is_current_stream_capturing()

    def stream(self) -> int:
        """Return the current stream's handle."""
        handle: int = torch.cuda.current_stream(self.device).cuda_stream
        return handle

    def trim(self) -> None:
        """Return unused blocks to the device."""
        torch.cuda.empty_cache()


def _on(stream: torch.cuda.Stream, body: Callable[[], T]) -> T:
    with torch.cuda.stream(stream):
        return body()


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A graph, the memory that it reads from outside its pool, and the addresses of what it made inside."""

    graph: torch.cuda.CUDAGraph
    kept: list[torch.UntypedStorage]
    made: frozenset[int]

    def replay(self) -> None:
        self.graph.replay()

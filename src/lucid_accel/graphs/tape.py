"""Recording on the CPU, for tests: every hazard of a graph, without a GPU.

A tape notes each operator call with the very tensors it read and wrote. Replaying calls the operators again on these
tensors and copies each result into the tensor that held it before. So Python numbers are frozen, addresses are baked
in, results are overwritten by the next replay, and reading a value on the host is refused: as in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lucid_accel.graphs.engine import CaptureError, Engine, Graph
from lucid_accel.graphs.witness import tensors_in

__all__ = ["TapeEngine"]

T = TypeVar("T")

aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
#: What waits for the device, or has a shape that depends on values.
_READS = (aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten.equal, aten.bincount)


class TapeEngine(Engine):
    """Records operator calls on the CPU."""

    _open = False

    def capture(self, body: Callable[[], T], after: Graph | None = None) -> tuple[Graph, T]:
        """Record ``body``; see :meth:`Engine.capture`."""
        tape = _Tape()
        generator = self.generator_state()
        torch.clear_autocast_cache()
        TapeEngine._open = True
        try:
            with tape:
                result = body()
        except Exception as error:
            raise CaptureError(f"{type(error).__name__}: {error}") from error
        finally:
            TapeEngine._open = False
            torch.clear_autocast_cache()
            # The operators did run, which a capture on a GPU would not have let them.
            tape.undo()
            self.set_generator_state(generator)
        return tape, result

    def branches(self, bodies: Sequence[Callable[[], T]]) -> list[T]:
        """Record ``bodies`` in an order that nobody may count on; see :meth:`Engine.branches`."""
        return [body() for body in reversed(bodies)][::-1]

    def generator_state(self) -> Tensor:
        """Return the state of torch's CPU generator."""
        return torch.get_rng_state()

    def set_generator_state(self, state: Tensor) -> None:
        """Set the state of torch's CPU generator."""
        torch.set_rng_state(state)

    def reserved(self) -> int:
        """Return 0: nobody counts the CPU's memory."""
        return 0

    def synchronize(self) -> None:
        """Return: the CPU is done when a call returns."""

    def is_capturing(self) -> bool:
        """Whether a tape is open."""
        return TapeEngine._open

    def stream(self) -> int:
        """Return 0: there are no streams."""
        return 0


class _Tape(TorchDispatchMode):
    """The calls of one recording, in order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, Any, Any, Any]] = []
        self._made: set[int] = set()
        self._before: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in _READS:
            raise RuntimeError(f"{func} reads a value back to the host")
        if func.overloadpacket is aten.index and any(x.dtype in _MASKS for x in tensors_in(args[1])):
            raise RuntimeError(f"{func} with a mask has a shape that depends on values")
        if any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((args, kwargs))):
            raise RuntimeError(f"{func} draws from a generator of its own")
        for tensor in tensors_in((args, kwargs)):
            address = tensor.untyped_storage().data_ptr()
            if address not in self._made and address not in self._before:
                whole = _whole(tensor)
                self._before[address] = (whole, whole.clone())
        result = func(*args, **kwargs)
        known = {tensor.untyped_storage().data_ptr() for tensor in tensors_in((args, kwargs))}
        self._made |= {tensor.untyped_storage().data_ptr() for tensor in tensors_in(result)} - known
        self._calls.append((func, args, kwargs, result))
        return result

    def undo(self) -> None:
        """Put back what was in memory that the recording did not allocate itself."""
        for whole, before in self._before.values():
            whole.copy_(before)
        self._before.clear()

    @torch.no_grad()
    def replay(self) -> None:
        """Call every operator again, and leave its results where they were."""
        for func, args, kwargs, result in self._calls:
            again = func(*args, **kwargs)
            for old, new in zip(tensors_in(result), tensors_in(again), strict=True):
                if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    old.detach().copy_(new)


def _whole(tensor: Tensor) -> Tensor:
    """The memory behind ``tensor`` as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())

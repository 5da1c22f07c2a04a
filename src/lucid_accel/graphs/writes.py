"""What recorded work may write to: itself, and what a proof puts back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lucid_accel.graphs.witness import tensors_in

__all__ = ["writing_within"]

_Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]


def writing_within(own: Iterable[Tensor], function: _Function) -> _Function:
    """Return ``function`` such that it raises where it writes to a tensor from elsewhere.

    A step that is proven runs natively and replayed, and only what is known to be written is put back in between: any
    other tensor would be written twice.

    Args:
        own: What it may write to, beside its arguments and what it makes.
        function: Tensors in, tensors out.
    """
    own = list(own)

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        with _Within([*own, *tensors]):
            return function(tensors)

    return run


class _Within(TorchDispatchMode):
    """Refuses operators that write to memory that is neither ``own`` nor made while it is on."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writable = {x.untyped_storage().data_ptr() for x in own}
        self._foreign: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for x in tensors_in(list(_written(func, args, kwargs))):
            if x.numel() and x.untyped_storage().data_ptr() not in self._writable:
                raise RuntimeError(
                    f"it writes to a tensor of shape {tuple(x.shape)} that is no parameter or buffer of the module: "
                    "register it as a buffer"
                )
        self._foreign |= {x.untyped_storage().data_ptr() for x in tensors_in((args, kwargs))} - self._writable
        result = func(*args, **kwargs)
        self._writable |= {x.untyped_storage().data_ptr() for x in tensors_in(result)} - self._foreign
        return result


def _written(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[Any]:
    """Yield the arguments that the schema of an operator says it writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield args[place] if place < len(args) else kwargs.get(argument.name)

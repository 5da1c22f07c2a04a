"""What recorded work reads from outside: memory that has to live as long as the recording does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Witness", "tensors_in"]

_COPIES = (torch.ops.aten._to_copy, torch.ops.aten.copy_, torch.ops.aten._foreach_copy_)


class Witness(TorchDispatchMode):
    """Sees every operator of a capture.

    A graph keeps addresses, not tensors: what Python alone held, such as the anchors of a cache, could be freed, and a
    replay would read what came to lie there.

    Args:
        device: Where the recorded work runs. Reading a tensor of another device is refused: the graph would read the
            memory of the host at every replay, whatever lies there by then.
        made: Addresses of what a capture before this one made. Keeping that would keep a backward from using the memory
            of the activations that it is done with.

    Attributes:
        kept: The memory that was read, or written, and not made inside.
        made: Addresses of what was made inside, and before.
    """

    def __init__(self, device: torch.device, made: Iterable[int] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: dict[int, torch.UntypedStorage] = {}
        self._device = device.type
        self.made = set(made)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors_in((args, kwargs)):
            if tensor.device.type != self._device:
                if tensor.dim() or func.overloadpacket in _COPIES:
                    raise RuntimeError(
                        f"{func} reads a tensor on {tensor.device}, whose memory a replay would read again"
                    )
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.made:
                self.kept.setdefault(storage.data_ptr(), storage)
        result = func(*args, **kwargs)
        self.made |= {x.untyped_storage().data_ptr() for x in tensors_in(result)} - self.kept.keys()
        return result


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))

"""The arguments of a call as a flat list of tensors, and what must match for a recording to serve it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from lucid_accel.reasons import Reason

__all__ = ["Call", "Signature"]


class _Row(NamedTuple):
    """What must match of one argument."""

    shape: tuple[Any, ...]
    stride: Any
    dtype: Any
    device: Any
    requires_grad: bool


class Signature(NamedTuple):
    """What must match of a call. Hashable."""

    spec: TreeSpec
    rows: tuple[_Row, ...]
    numerics: tuple[Any, ...]

    def difference(self, other: Signature) -> Reason:
        """Say what keeps a recording of this signature from serving a call of the ``other`` one."""
        if self.numerics != other.numerics:
            return Reason.PRECISION
        for own, now in zip(self.rows, other.rows, strict=False):
            if own.shape != now.shape:
                fewer = own.shape[1:] == now.shape[1:] and now.shape[:1] < own.shape[:1]
                return Reason.PARTIAL_BATCH if fewer else Reason.SHAPE
            for name, reason in (("dtype", Reason.DTYPE), ("stride", Reason.STRIDE), ("requires_grad", Reason.FREEZE)):
                if getattr(own, name) != getattr(now, name):
                    return reason
        return Reason.SHAPE


class Call:
    """One call of a region.

    Args:
        args: Positional arguments: trees of tensors and plain values.
        kwargs: Keyword arguments.
        growable: Positions of arguments whose tensors are padded: dimension 1 is a capacity that belongs to no
            signature, and rows of zeros past it are inert.

    Attributes:
        tensors: The tensors among the arguments.
        signature: What must match.
        rows: The capacity in use, 0 where nothing is growable.
        aliased: A tensor repeats itself in memory, so that a copy of it has another layout.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], growable: Collection[int] = ()) -> None:
        self._leaves, self._spec = tree_flatten((args, kwargs))
        padded = {id(leaf) for position in growable for leaf in tree_leaves(args[position])}
        self.tensors: list[Tensor] = []
        self._grows: list[bool] = []
        self.rows = 0
        self.aliased = False
        rows: list[_Row] = []
        for leaf in self._leaves:
            if not isinstance(leaf, Tensor):
                rows.append(_Row((repr(leaf),), type(leaf), None, None, False))
                continue
            shape: tuple[int, ...] = leaf.shape
            stride: Any = leaf.stride()
            grows = id(leaf) in padded
            if grows:
                self.rows = max(self.rows, shape[1])
                shape, stride = shape[:1] + shape[2:], leaf.is_contiguous()
            elif 0 in stride:
                self.aliased = True
            self.tensors.append(leaf)
            self._grows.append(grows)
            rows.append(_Row(shape, stride, leaf.dtype, leaf.device, leaf.requires_grad))
        self.signature = Signature(self._spec, tuple(rows), _numerics(self.tensors))

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with other tensors in the places of these."""
        fresh = iter(tensors)
        leaves = [next(fresh) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = tree_unflatten(leaves, self._spec)
        return args, kwargs

    def padded(self, rows: int) -> list[Tensor]:
        """Return the tensors with room for ``rows`` rows where they are growable."""
        return [
            torch.cat((x, x.new_zeros(x.shape[0], rows - x.shape[1], *x.shape[2:])), 1) if grows else x
            for x, grows in zip(self.tensors, self._grows, strict=True)
        ]


def _numerics(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """What decides which kernels run and in which precision, beside the tensors."""
    device = tensors[0].device.type if tensors else "cpu"
    return (
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
    )

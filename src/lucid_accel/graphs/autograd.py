"""Gradients of a region, and results with edges of their own in the graph of autograd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["Gradients", "aliases", "differentiate"]

#: Gradients of the inputs that require one, then of the parameters; ``None`` where none arrives.
Gradients = list[Tensor | None]


def differentiate(
    outputs: Sequence[Tensor], wanted: Sequence[Tensor], cotangents: Sequence[Tensor | None]
) -> Gradients:
    """Return the gradients of ``wanted`` from those of ``outputs`` that have a cotangent."""
    pairs = [(out, c) for out, c in zip(outputs, cotangents, strict=True) if c is not None and out.requires_grad]
    if not pairs or not wanted:
        return [None] * len(wanted)
    # Natively, backward runs outside the autocast of the forward. Hooks on parameters meet what is returned later.
    with torch.autocast(outputs[0].device.type, enabled=False), _unhooked(wanted):
        return list(torch.autograd.grad([out for out, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True))


@contextmanager
def _unhooked(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Keep the hooks on ``tensors`` out of the way: ``torch.autograd.grad`` calls them too."""
    tables = [table for x in tensors if (table := x._backward_hooks)]
    hooks = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, held in zip(tables, hooks, strict=True):
            table.update(held)


def aliases(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors that share memory with these, each with an edge of its own in the autograd graph.

    A hook on an alias meets only the gradient that crosses the border of a region: an input may have other users, and
    an output may be an intermediate of another output.
    """
    return [_Alias.apply(x) if x.requires_grad else x for x in tensors]  # type: ignore[no-untyped-call]


class _Alias(torch.autograd.Function):
    """The same memory. No view: what writes to a view replaces its edge, and hooks on that are never called."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        own = torch.empty(0, dtype=x.dtype, device=x.device)
        return own.set_(x.untyped_storage(), x.storage_offset(), x.size(), x.stride())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        return gradient

"""The gradients that leave a region of the step in a native backward, seen where they leave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from lucid_accel.graphs.compare import same_bits

__all__ = ["Border", "foreign_leaf"]

_End = tuple[Node, int]


class Border:
    """Watches one native backward through a region.

    A hook on a parameter would meet the sum with what arrives from elsewhere, after other hooks on it. So the nodes of
    autograd that send a gradient out of the region are watched, and what they send is added up as autograd does.

    Args:
        outputs: Results of the region, whose graph is alive.
        wanted: Inputs and parameters that require gradients, by any key.
    """

    def __init__(self, outputs: Sequence[Tensor], wanted: Mapping[Any, Tensor]) -> None:
        self._gradients: dict[Any, Tensor] = {}
        self._totals: dict[Any, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        ends: dict[_End, Any] = {_end(x): key for key, x in wanted.items()}
        exits: dict[Node, list[tuple[int, Any]]] = {}
        for node, index, end in _edges(outputs, ends):
            if end in ends:
                exits.setdefault(node, []).append((index, ends[end]))
        sent = [key for found in exits.values() for _, key in found]
        self._several = {key for key in sent if sent.count(key) > 1}
        for node, found in exits.items():
            self._handles.append(node.register_hook(self._adding(found)))
        for key in self._several:
            self._handles.append(wanted[key].register_hook(self._noting(key)))  # type: ignore[no-untyped-call]

    def gradient(self, key: Any) -> Tensor | None:
        """Return the gradient of the region for one of the wanted tensors, ``None`` where none came."""
        return self._gradients.get(key)

    def mixed(self) -> Any | None:
        """Return the key of a tensor whose gradient is a sum of several from inside and some from outside.

        A recording would hand out the sum of the inner ones, and another order of summation gives other bits. Waits
        for the device.
        """
        pairs = ((key, self._totals.get(key)) for key in self._several)
        return next((key for key, total in pairs if not same_bits(total, self._gradients.get(key))), None)

    def end(self) -> None:
        """Stop watching. May be called twice."""
        while self._handles:
            self._handles.pop().remove()

    def _adding(self, exits: list[tuple[int, Any]]) -> Any:
        def add(sent: Sequence[Tensor | None], _: Any) -> None:
            with torch.no_grad():
                for index, key in exits:
                    if (gradient := sent[index]) is not None:
                        # Kept as it is: what somebody holds is copied into .grad, and not taken over.
                        earlier = self._gradients.get(key)
                        self._gradients[key] = gradient if earlier is None else earlier + gradient

        return add

    def _noting(self, key: Any) -> Any:
        def note(gradient: Tensor) -> None:
            self._totals[key] = gradient

        return note


def foreign_leaf(outputs: Sequence[Tensor], wanted: Sequence[Tensor]) -> Tensor | None:
    """Return a trainable tensor that ``outputs`` depend on and that is not among the ``wanted`` ones, if any is."""
    ends = {_end(x): x for x in wanted}
    for _, _, (node, _) in _edges(outputs, ends):
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor) and not any(leaf is x for x in wanted):
            return leaf
    return None


def _end(x: Tensor) -> _End:
    edge = get_gradient_edge(x)
    return edge.node, edge.output_nr


def _edges(outputs: Sequence[Tensor], ends: Mapping[_End, Any]) -> Iterator[tuple[Node, int, _End]]:
    """Walk the graph of ``outputs`` and yield each edge once: its node, its place among the node's, where it leads."""
    todo = [_end(x)[0] for x in outputs if x.requires_grad and _end(x) not in ends]
    seen = set(todo)
    while todo:
        node = todo.pop()
        for index, (then, number) in enumerate(node.next_functions):
            if then is None:
                continue
            yield node, index, (then, number)
            if (then, number) not in ends and then not in seen:
                seen.add(then)
                todo.append(then)

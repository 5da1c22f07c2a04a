"""The edges of the autograd graph by which gradients leave a region."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

__all__ = ["Border"]


class Border:
    """Notes what a region, run natively, adds to the gradients of what enters it, apart from what others add to them.

    A hook on a tensor meets the sum over all users of the tensor. So the hooks are on the nodes of the region that
    touch the tensor. Nothing is put between them, which could change the order of a sum, and with it its bits.

    Args:
        entering: The inputs and parameters of the region that require gradients, by a key of the caller's.

    Attributes:
        gradients: What the region added, by key, once its backward is done; keys that it added nothing to are absent.
        uses: How often the region uses each, by key.
    """

    def __init__(self, entering: Mapping[Any, Tensor]) -> None:
        self.gradients: dict[Any, Tensor] = {}
        self.uses = dict.fromkeys(entering, 0)
        self._keys = {_place(get_gradient_edge(x)): key for key, x in entering.items()}

    def watch(self, outputs: Iterable[Tensor]) -> list[RemovableHandle]:
        """Follow the graph from the region's ``outputs``; return the handles of the hooks."""
        handles = []
        seen: set[Node] = set()
        new = [x.grad_fn for x in outputs if x.grad_fn is not None]
        while new:
            node = new.pop()
            if node in seen:
                continue
            seen.add(node)
            for index, edge in enumerate(node.next_functions):
                key = self._keys.get(edge, self)
                if key is not self:
                    self.uses[key] += 1
                    handles.append(node.register_hook(self._noting(key, index)))
                elif edge[0] is not None:
                    new.append(edge[0])
        return handles

    def _noting(self, key: Any, index: int) -> Callable[..., None]:
        def note(gradients: tuple[Tensor | None, ...], _: Any) -> None:
            if (gradient := gradients[index]) is not None:
                before = self.gradients.get(key)
                self.gradients[key] = gradient.detach() if before is None else before + gradient.detach()

        return note


def _place(edge: GradientEdge) -> tuple[Node | None, int]:
    return edge.node, edge.output_nr

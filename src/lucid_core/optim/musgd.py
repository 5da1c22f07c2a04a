"""MuSGD: momentum SGD for vectors, and a blend of SGD and Muon for matrices (YOLO26, arXiv 2606.03748)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from lucid_core.optim.newton_schulz import newton_schulz
from lucid_core.optim.stacks import pack, plan_stacks, unpack
from lucid_core.seams import seam

__all__ = ["MuSGD"]


class Scalars(NamedTuple):
    """What the device reads of a parameter group: 0-d float32 tensors, written from the host before each update."""

    lr: Tensor
    weight_decay: Tensor


class MuSGD(Optimizer):
    """Momentum SGD whose matrices also move along the orthogonalised direction.

    With gradient ``g``, momentum ``m <- mu*m + g`` and Nesterov direction ``v = g + mu*m``, a parameter moves by
    ``-lr * update``, where the update of a vector or scalar is ``v``, and of a matrix of ``r x c`` (a convolution
    counts as outputs x everything else) ``w_muon * 0.2*sqrt(max(r, c)) * NS(v) + w_sgd * v + weight_decay * p``.
    Vectors are never decayed. A parameter without gradient is left alone, state included.

    :meth:`step` runs the closure, then :meth:`write_scalars` on the host, then :meth:`update`, whose parts are pure
    device work: :meth:`prepare` has no learning rate and writes no parameter, :meth:`apply` does. Matrices of similar
    shape are orthogonalised as one stack (:mod:`lucid_core.optim.stacks`).

    Args:
        params: Parameters or groups, as for every optimizer of torch.
        lr: Learning rate, at least 0.
        momentum: ``mu``, in ``[0, 1)``.
        weight_decay: Decoupled decay of matrices, at least 0.
        w_muon: Weight of the orthogonalised direction, at least 0; 0 skips the orthogonalisation.
        w_sgd: Weight of the plain direction of matrices, at least 0.
        ns_steps: Newton-Schulz iterations, at least 1.

    Attributes:
        version: Counts what makes a recording of the update stale: loaded state and added groups.

    Raises:
        ValueError: A setting is out of its range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 5e-4,
        w_muon: float = 0.5,
        w_sgd: float = 0.5,
        ns_steps: int = 5,
    ) -> None:
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "w_muon": w_muon, "w_sgd": w_sgd}
        for name, value in settings.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"MuSGD needs a finite {name} of at least 0, got {value}")
        if momentum >= 1:
            raise ValueError(f"MuSGD needs a momentum under 1, got {momentum}")
        if ns_steps < 1:
            raise ValueError(f"MuSGD needs at least one Newton-Schulz step, got ns_steps={ns_steps}")
        self.version = 0
        self._scalars: list[Scalars] = []
        super().__init__(params, {**settings, "ns_steps": ns_steps})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Run ``closure``, if given, with gradients on, then update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.write_scalars()
        self.update()
        return loss

    def write_scalars(self) -> None:
        """Copy the learning rate and weight decay of every group to the device. Host work."""
        for index, group in enumerate(self.param_groups):
            device = group["params"][0].device
            if index == len(self._scalars):
                self._scalars.append(Scalars(*(torch.zeros((), device=device) for _ in Scalars._fields)))
            if self._scalars[index].lr.device != device:
                self._scalars[index] = Scalars(*(value.to(device) for value in self._scalars[index]))
            self._scalars[index].lr.fill_(group["lr"])
            self._scalars[index].weight_decay.fill_(group["weight_decay"])

    @seam("update")
    @torch.no_grad()
    def update(self) -> None:
        """Move every parameter that has a gradient. Device work only."""
        for index, group in enumerate(self.param_groups):
            for params in _by_kind(group["params"]):
                self.apply(params, self.prepare(params, group, self._scalars[index].weight_decay), index)

    @seam("update.prepare")
    def prepare(self, params: list[Tensor], group: dict[str, Any], weight_decay: Tensor) -> list[Tensor]:
        """Advance the momentum and return the update of each parameter, before the learning rate.

        Args:
            params: Parameters of one device and dtype, all with a gradient.
            group: Their group; its ``momentum``, ``w_muon``, ``w_sgd`` and ``ns_steps`` are read.
            weight_decay: 0-d float32 tensor.
        """
        momentum: float = group["momentum"]
        grads = [p.grad for p in params if p.grad is not None]
        buffers = [self._momentum(p) for p in params]
        torch._foreach_mul_(buffers, momentum)
        torch._foreach_add_(buffers, grads)
        updates = list(torch._foreach_add(grads, buffers, alpha=momentum))

        matrices = [i for i, p in enumerate(params) if p.ndim >= 2]
        if not matrices:
            return updates
        directions = [updates[i] for i in matrices]
        moves = torch._foreach_mul([params[i] for i in matrices], weight_decay)
        torch._foreach_add_(moves, directions, alpha=group["w_sgd"])
        if group["w_muon"] > 0:
            torch._foreach_add_(moves, self._orthogonal(directions, group["w_muon"], group["ns_steps"]))
        for i, move in zip(matrices, moves, strict=True):
            updates[i] = move
        return updates

    @seam("update.prepare.orthogonalize")
    def orthogonalize(self, stack: Tensor, steps: int) -> Tensor:
        """Orthogonalise a stack ``(n, rows, columns)`` of float32 matrices, rows <= columns."""
        return newton_schulz(stack, steps)

    def apply(self, params: list[Tensor], updates: list[Tensor], index: int) -> None:
        """Move ``params`` by their updates times the learning rate of group ``index``."""
        torch._foreach_mul_(updates, self._scalars[index].lr)
        torch._foreach_sub_(params, updates)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as every optimizer of torch does."""
        super().add_param_group(param_group)
        self.version += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state, as every optimizer of torch does; momentum takes the memory format of its parameter."""
        super().load_state_dict(state_dict)
        for param, state in self.state.items():
            state["momentum"] = torch.empty_like(param).copy_(state["momentum"])
        self.version += 1

    def _momentum(self, param: Tensor) -> Tensor:
        state = self.state[param]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(param)
        buffer: Tensor = state["momentum"]
        return buffer

    def _orthogonal(self, directions: Sequence[Tensor], w_muon: float, steps: int) -> list[Tensor]:
        """Return the orthogonalised directions, each times ``w_muon * 0.2*sqrt(max(rows, columns))``."""
        matrices = [_matrix(d) for d in directions]
        shapes = tuple((m.shape[0], m.shape[1]) for m in matrices)
        moves = list(matrices)
        for stack in plan_stacks(shapes):
            unpack(self.orthogonalize(pack(matrices, stack), steps), stack, moves)
        torch._foreach_mul_(moves, [w_muon * 0.2 * math.sqrt(max(shape)) for shape in shapes])
        return [_tensor(move, direction) for move, direction in zip(moves, directions, strict=True)]


def _by_kind(params: Sequence[Tensor]) -> Iterable[list[Tensor]]:
    """Split the parameters that have a gradient by device and dtype: the foreach kernels want them alike."""
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for param in params:
        if param.grad is not None:
            kinds.setdefault((param.device, param.dtype), []).append(param)
    return kinds.values()


def _matrix(tensor: Tensor) -> Tensor:
    """View a parameter as outputs x everything else, its columns in the order of memory.

    A permutation of columns commutes with the orthogonalisation, and this one makes the view free in either format.
    """
    if tensor.ndim == 4 and not tensor.is_contiguous():
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.reshape(tensor.shape[0], -1)


def _tensor(matrix: Tensor, like: Tensor) -> Tensor:
    """Undo :func:`_matrix`: a view of ``matrix`` with the shape and the strides of ``like``."""
    if like.ndim == 4 and not like.is_contiguous():
        rows, channels, height, width = like.shape
        return matrix.view(rows, height, width, channels).permute(0, 3, 1, 2)
    return matrix.view(like.shape)

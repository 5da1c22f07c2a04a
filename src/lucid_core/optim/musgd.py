"""MuSGD: momentum SGD for vectors, and a blend of SGD and Muon for matrices (YOLO26, arXiv 2606.03748)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import compress, repeat
from operator import attrgetter, contains, is_, is_not, itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from lucid_core.optim.newton_schulz import newton_schulz
from lucid_core.optim.stacks import pack, plan_stacks, unpack
from lucid_core.seams import seam

__all__ = ["MuSGD", "with_gradient"]


class Scalars(NamedTuple):
    """What the device reads of a parameter group: 0-d float32 tensors, written from the host before each update."""

    lr: Tensor
    weight_decay: Tensor


class MuSGD(Optimizer):
    """Momentum SGD whose matrices also move along the orthogonalised direction.

    With gradient ``g``, momentum ``m <- mu*m + g`` and Nesterov direction ``v = g + mu*m``, a parameter moves by
    ``-lr * update``, where the update of a vector or scalar is ``v``, and of a matrix of ``r x c`` (a convolution
    counts as outputs x everything else) ``w_muon * 0.2*sqrt(max(r, c)) * NS(v) + w_sgd * v + weight_decay * p``.
    Vectors are never decayed. A parameter without gradient is left alone, state included. Momentum has the dtype and
    the memory format of its parameter; the orthogonalisation is float32 or wider.

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
        version: Counts what makes a recording of the update stale: loaded state, added groups, moved parameters. The
            settings of a group other than its learning rate and decay are read as Python numbers.

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
        self.version = 0
        self._scalars: list[Scalars] = []
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "w_muon": w_muon, "w_sgd": w_sgd}
        super().__init__(params, {**settings, "ns_steps": ns_steps})

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle: torch leaves out what is not state."""
        self.__dict__.setdefault("version", 0)
        self.__dict__.setdefault("_scalars", [])
        super().__setstate__(state)

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
        """Copy the rate and the decay of every group to the device, and make momentum that is missing. Host work."""
        for index, group in enumerate(self.param_groups):
            params = with_gradient(group["params"])
            device = params[0].device if params else torch.device("cpu")
            if index == len(self._scalars):
                self._scalars.append(Scalars(*(torch.zeros((), device=device) for _ in Scalars._fields)))
            if params and self._scalars[index].lr.device != device:
                self._scalars[index] = Scalars(*(value.to(device) for value in self._scalars[index]))
                self.version += 1
            self._scalars[index].lr.fill_(group["lr"])
            self._scalars[index].weight_decay.fill_(group["weight_decay"])
            if not self._is_state_of(params):
                for param in params:
                    if "momentum" not in self.state[param]:
                        self.state[param]["momentum"] = torch.zeros_like(param)

    @torch.no_grad()
    @seam("update")
    def update(self) -> None:
        """Move every parameter that has a gradient. Device work only."""
        for group, scalars in zip(self.param_groups, self._scalars, strict=True):
            params = with_gradient(group["params"])
            # At once: what was prepared may be memory that the next group's preparation uses.
            self.apply(params, self.prepare(params, group, scalars.weight_decay), scalars.lr)

    @seam("update.prepare")
    def prepare(self, params: Sequence[Tensor], group: dict[str, Any], weight_decay: Tensor) -> list[Tensor]:
        """Advance the momentum and return the update of each parameter, before the learning rate.

        Args:
            params: Parameters of the group that have a gradient and a momentum.
            group: Its ``momentum``, ``w_muon``, ``w_sgd`` and ``ns_steps`` are read.
            weight_decay: 0-d float32 tensor.
        """
        updates, momenta = list(params), self.momenta(params)
        matrices = []
        for members in _alike(params):
            grads = [g for g in (params[i].grad for i in members) if g is not None]
            buffers = [momenta[i] for i in members]
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, grads)
            for i, direction in zip(members, torch._foreach_add(grads, buffers, alpha=group["momentum"]), strict=True):
                updates[i] = direction
            matrices.append([i for i in members if params[i].ndim >= 2 and params[i].numel()])
        directions = [[updates[i] for i in members] for members in matrices]
        orthogonal = self._orthogonal(directions, group["ns_steps"], group["w_muon"])
        for members, plain, turned in zip(matrices, directions, orthogonal, strict=True):
            if members:
                moves = torch._foreach_mul([params[i] for i in members], weight_decay)
                torch._foreach_add_(moves, plain, alpha=group["w_sgd"])
                if turned:
                    torch._foreach_add_(moves, turned)
                for i, move in zip(members, moves, strict=True):
                    updates[i] = move
        return updates

    @seam("update.prepare.orthogonalize")
    def orthogonalize(self, stacks: Sequence[Tensor], steps: int) -> list[Tensor]:
        """Orthogonalise stacks ``(n, rows, columns)`` of float32 matrices, rows <= columns."""
        return [newton_schulz(stack, steps) for stack in stacks]

    def momenta(self, params: Sequence[Tensor]) -> list[Tensor]:
        """Return the momentum of each of ``params``, in its shape, dtype and memory format.

        Raises:
            KeyError: One has none: it was never updated.
        """
        if self._is_state_of(params):
            return list(map(itemgetter("momentum"), self.state.values()))
        return [self.state[param]["momentum"] for param in params]

    def apply(self, params: Sequence[Tensor], updates: Sequence[Tensor], lr: Tensor) -> None:
        """Move ``params`` by their updates, which are consumed, times ``lr``, a 0-d float32 tensor."""
        for members in _alike(params):
            moves = [updates[i] for i in members]
            torch._foreach_mul_(moves, lr)
            torch._foreach_sub_([params[i] for i in members], moves)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as every optimizer of torch does.

        Raises:
            ValueError: A setting is out of its range.
        """
        settings = {**self.defaults, **param_group}
        for name in ("lr", "momentum", "weight_decay", "w_muon", "w_sgd"):
            if not (math.isfinite(settings[name]) and settings[name] >= 0):
                raise ValueError(f"MuSGD needs a finite {name} of at least 0, got {settings[name]}")
        if settings["momentum"] >= 1:
            raise ValueError(f"MuSGD needs a momentum under 1, got {settings['momentum']}")
        if settings["ns_steps"] < 1:
            raise ValueError(f"MuSGD needs at least one Newton-Schulz step, got ns_steps={settings['ns_steps']}")
        super().add_param_group(param_group)
        self.version += 1

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state, as every optimizer of torch does; momentum takes the memory format of its parameter.

        Raises:
            ValueError: The state is that of another optimizer.
        """
        # torch adds this one to the defaults when it sets state for the first time, and to no group.
        settings = self.defaults.keys() - {"differentiable"}
        missing = {name for group in state_dict["param_groups"] for name in settings if name not in group}
        missing |= {"momentum" for state in state_dict["state"].values() if "momentum" not in state}
        if missing:
            raise ValueError(
                f"the saved state is not of MuSGD, it lacks {', '.join(sorted(missing))}: resume with the optimizer "
                "that saved it"
            )
        super().load_state_dict(state_dict)
        for param, state in self.state.items():
            state["momentum"] = torch.empty_like(param).copy_(state["momentum"])
        self.version += 1

    def _is_state_of(self, params: Sequence[Tensor]) -> bool:
        """Whether ``params`` are, in this order, all that there is a state of, and each has a momentum.

        Asked instead of looking each one up, where all are in one group: the hash of a tensor runs Python.
        """
        same = len(self.state) == len(params) and all(map(is_, self.state, params))
        return same and all(map(contains, self.state.values(), repeat("momentum")))

    def _orthogonal(self, directions: Sequence[Sequence[Tensor]], steps: int, w_muon: float) -> list[list[Tensor]]:
        """Return the directions orthogonalised, each times ``w_muon * 0.2*sqrt(max(rows, columns))``.

        Args:
            directions: Matrices, in lists of one device and dtype.
            steps: Newton-Schulz iterations.
            w_muon: At 0 the result is empty lists.
        """
        if w_muon == 0:
            return [[] for _ in directions]
        matrices = [[_matrix(d) for d in alike] for alike in directions]
        shapes = [tuple((m.shape[0], m.shape[1]) for m in alike) for alike in matrices]
        plans = [(alike, stack) for alike, s in zip(matrices, shapes, strict=True) for stack in plan_stacks(s)]
        turned = self.orthogonalize([pack(alike, stack) for alike, stack in plans], steps)
        for (alike, stack), packed in zip(plans, turned, strict=True):
            unpack(packed, stack, alike)
        for alike, sizes in zip(matrices, shapes, strict=True):
            if alike:
                torch._foreach_mul_(alike, [w_muon * 0.2 * math.sqrt(max(size)) for size in sizes])
        return [
            [_tensor(move, direction) for move, direction in zip(alike, plain, strict=True)]
            for alike, plain in zip(matrices, directions, strict=True)
        ]


# Loops in C: there are hundreds of parameters, and every one is asked several times a step.
_device = attrgetter("device")
_dtype = attrgetter("dtype")
_grad = attrgetter("grad")


def with_gradient(params: Sequence[Tensor]) -> list[Tensor]:
    """Return those of ``params`` that have a gradient."""
    return list(compress(params, map(is_not, map(_grad, params), repeat(None))))


def _alike(tensors: Sequence[Tensor]) -> Iterable[list[int]]:
    """Group positions by device and dtype: the foreach kernels want them alike."""
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, kind in enumerate(zip(map(_device, tensors), map(_dtype, tensors), strict=True)):
        kinds.setdefault(kind, []).append(i)
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

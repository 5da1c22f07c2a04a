"""Gradients in memory that stays: what a recorded backward writes, and a recorded update reads, where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, repeat
from operator import attrgetter, is_, is_not

import torch
from torch import Tensor

from lucid_accel.graphs.autograd import Gradients
from lucid_accel.graphs.packed import Packed

__all__ = ["Attached"]

# Loops in C: there are hundreds of parameters.
_grad = attrgetter("grad")
_hooks = attrgetter("_backward_hooks")
_late_hooks = attrgetter("_post_accumulate_grad_hooks")
_data_ptr = Tensor.data_ptr


class Attached:
    """The gradients of ``parameters``, laid out as these are, as autograd lays out what it accumulates.

    They are put in ``.grad`` where that is empty, so whoever empties it, reads it or exchanges it does so as ever. The
    next backward into an empty ``.grad`` writes to the same memory.

    Args:
        parameters: Trainable tensors.

    Attributes:
        parameters: As given.
        written: Room of the same plan, for a backward to write to, whichever one is next.

    Raises:
        ValueError: A parameter has gaps, or overlaps itself.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = list(parameters)
        if any(torch.empty_like(x).stride() != x.stride() for x in self.parameters):
            raise ValueError("a parameter has gaps, or overlaps itself")
        self.written = Packed(self.parameters)
        self._room = Packed(self.parameters)
        self._slots = self._room.within()
        self._addresses: list[int | None] = list(map(_data_ptr, self._slots))
        self._own = dict(zip(map(id, self._slots), self._addresses, strict=True))

    def laid(self, gradients: Gradients) -> Gradients:
        """Return ``gradients``, one for each parameter, in the layout that they would be accumulated in."""
        pairs = zip(self.parameters, gradients, strict=True)
        return [None if g is None else torch.empty_like(x).copy_(g) for x, g in pairs]

    def hooked(self) -> bool:
        """Whether a parameter has a hook, which autograd would call with its gradient."""
        return any(map(_hooks, self.parameters)) or any(map(_late_hooks, self.parameters))

    def holds(self, gradients: Sequence[Tensor]) -> bool:
        """Whether all these gradients, which there are, lie here, where they were put."""
        if len(gradients) == len(self._slots) and all(map(is_, gradients, self._slots)):
            own = self._addresses
        else:
            own = list(map(self._own.get, map(id, gradients)))
        return bool(gradients) and own == list(map(_data_ptr, gradients))

    def write(self, gradients: Gradients) -> None:
        """Let ``written`` hold ``gradients``, those that there are: device work, to be recorded."""
        pairs = [(x, _like(x, g)) for x, g in zip(self.written.slots, gradients, strict=True) if g is not None]
        # One pair with different strides would make all the others be copied one by one.
        for alike in (True, False):
            chosen = [(x, g) for x, g in pairs if (x.stride() == g.stride()) is alike]
            if chosen:
                torch._foreach_copy_([x for x, _ in chosen], [g for _, g in chosen])

    def take(self, reached: Sequence[bool]) -> None:
        """Accumulate what a backward has :attr:`written`, for the parameters that it reached."""
        params, slots = (list(compress(x, reached)) for x in (self.parameters, self._slots))
        now = list(map(_grad, params))
        moved = list(map(_data_ptr, self._slots)) != self._addresses
        if all(map(is_, now, slots)) and not moved:
            if all(reached):
                self._room.add_(self.written)
            elif slots:
                torch._foreach_add_(slots, list(compress(self.written.slots, reached)))
        elif any(map(is_not, now, repeat(None))):
            self.add([x if there else None for x, there in zip(self.written.slots, reached, strict=True)])
        else:
            if moved:
                # Somebody exchanged what a gradient holds, and not the gradient.
                for slot, room in compress(zip(self._slots, self._room.within(), strict=True), reached):
                    slot.data = room
            for param, slot in zip(params, slots, strict=True):
                param.grad = slot
            if all(reached):
                self._room.copy_(self.written)
            elif slots:
                torch._foreach_copy_(slots, list(compress(self.written.slots, reached)))

    def add(self, gradients: Gradients) -> None:
        """Accumulate ``gradients``, one for each parameter, as autograd does."""
        for param, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is None:
                continue
            if param.grad is None:
                param.grad = torch.empty_like(param).copy_(gradient)
            else:
                param.grad.add_(gradient)

    @torch.no_grad()
    def release(self) -> None:
        """Give parameters whose gradients lie here copies of them, each in memory of its own."""
        for param, slot in zip(self.parameters, self._slots, strict=True):
            if param.grad is slot:
                param.grad = slot.clone()


def _like(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the same memory with the strides of ``x``, where these differ for sides of length 1 alone."""
    sides = zip(x.shape, x.stride(), gradient.stride(), strict=True)
    if all(own == other or length == 1 for length, own, other in sides):
        return torch.as_strided(gradient, x.shape, x.stride(), gradient.storage_offset())
    return gradient

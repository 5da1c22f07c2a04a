"""What a tensor looks like without its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape, strides, dtype and device of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Layout:
        """Return the layout of ``tensor``."""
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of what has to be kept of the tensor: 1 where it repeats itself with stride 0."""
        return tuple(
            min(size, 1) if stride == 0 else size for size, stride in zip(self.shape, self.stride, strict=True)
        )

    @property
    def extent(self) -> int:
        """Elements from the first to the last one, gaps included."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))

    def overlaps(self) -> bool:
        """Whether elements share memory otherwise than by stride 0, so that no copy can have these strides."""
        reach = 0
        for stride, size in sorted(zip(self.stride, self.kept, strict=True)):
            if size > 1:
                if stride <= reach:
                    return True
                reach += (size - 1) * stride
        return False

    def room(self) -> Tensor:
        """Return memory for what has to be kept of a tensor of this layout.

        Floats hold NaN, so that a value that nobody wrote is seen.
        """
        tensor = torch.empty_strided(self.kept, self.stride, dtype=self.dtype, device=self.device)
        return tensor.fill_(torch.nan) if self.dtype.is_floating_point else tensor.zero_()

    def copy(self, tensor: Tensor) -> Tensor:
        """Return an owned copy of ``tensor``, which has this layout, in this layout: ``clone`` would fill gaps."""
        if self.overlaps():
            return tensor.clone()
        own = torch.empty_strided(self.kept, self.stride, dtype=self.dtype, device=self.device)
        own.copy_(self.reduced(tensor))
        return own if self.kept == self.shape else own.expand(self.shape)

    def reduced(self, tensor: Tensor) -> Tensor:
        """Return what has to be kept of ``tensor``, which has this layout, as a view."""
        return torch.as_strided(tensor, self.kept, self.stride, tensor.storage_offset())

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

    def room(self) -> Tensor:
        """Return memory for a tensor of this layout: of length 1 where the tensor repeats itself with stride 0.

        Floats hold NaN, so that a value that nobody wrote is seen.
        """
        shape = [1 if stride == 0 else size for size, stride in zip(self.shape, self.stride, strict=True)]
        tensor = torch.empty_strided(shape, self.stride, dtype=self.dtype, device=self.device)
        return tensor.fill_(torch.nan) if self.dtype.is_floating_point else tensor.zero_()

    def is_dense(self) -> bool:
        """Whether the tensor fills its memory without gaps and without overlap."""
        expected = 1
        for stride, size in sorted(zip(self.stride, self.shape, strict=True)):
            if size > 1:
                if stride != expected:
                    return False
                expected *= size
        return True

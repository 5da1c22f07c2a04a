"""One call of a routine: what is copied in, what is worked on where it lies, and what must match."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from operator import attrgetter, is_
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from lucid_accel.graphs.call import ALIGNMENT, numerics
from lucid_accel.graphs.fingerprint import fingerprint, is_plain
from lucid_accel.graphs.layout import Layout
from lucid_accel.reasons import Reason

__all__ = ["Job", "JobSignature", "bits", "span"]

_ORDINARY = frozenset((Tensor, Parameter))

_REASONS = {"sizes": Reason.SHAPE, "strides": Reason.STRIDE, "dtypes": Reason.DTYPE, "settings": Reason.SCALARS}

_dtype = attrgetter("dtype")
_data_ptr = Tensor.data_ptr


class JobSignature(NamedTuple):
    """What must match of a job. Hashable. Counts of elements stand for shapes, which take longer to read."""

    fixed: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[Any, ...]
    dtypes: tuple[Any, ...]
    settings: Hashable
    numerics: tuple[Any, ...]

    def difference(self, other: JobSignature) -> Reason:
        """Say what keeps a recording of this signature from serving a job of the ``other`` one."""
        if len(self.sizes) != len(other.sizes) or self.fixed != other.fixed:
            return Reason.MISSING_GRAD
        for name, reason in _REASONS.items():
            if getattr(self, name) != getattr(other, name):
                return reason
        return Reason.PRECISION


class Job:
    """One call of work that needs no gradients.

    Args:
        run: The work, given tensors in the place of ``inputs``. It may read and write ``fixed``.
        inputs: Tensors that come anew with each call, and are copied into a recording. The work does not write them.
        fixed: Tensors that the work reads, or writes, where they lie.
        certified: More of these, which the caller has shown to lie where they lay at every call before.
        written: Those of ``fixed`` and ``certified`` that it writes.
        settings: Python values that the work reads, such that equal ones have equal bits; see :func:`bits`.
        key: Which of several jobs of a step it is, such as a group's. Each is learnt for itself.
        version: Changes when what ``fixed`` is was replaced on purpose.
        device: Where recorded work runs.
        dtype: The only one that is allowed, if one is.

    Attributes:
        refusal: Why no recording can serve this call, if none can: ``missing_grad``, there is nothing to work on;
            ``dtype``, an input is no ordinary tensor, or not of the dtype that is allowed, or not on the device;
            ``stride``, one begins where no vector may, so that a copy of it, which does, may go to another kernel;
            ``precision``, autocast is on.
        fixed: What is worked on where it lies, all of it.
        addresses: Where that of it lies which may have been moved.
        pointers: Where ``inputs`` lie.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Tensor]], Sequence[Tensor]],
        inputs: Sequence[Tensor],
        device: torch.device,
        fixed: Sequence[Tensor] = (),
        certified: Sequence[Tensor] = (),
        written: Sequence[Tensor] = (),
        settings: Hashable = (),
        key: Hashable = None,
        version: Hashable = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.run = run
        self.inputs, self.fixed, self.written = inputs, [*fixed, *certified], written
        self._movable = fixed
        self.key, self.version = key, version
        self.addresses: list[int] = []
        self.pointers: NDArray[np.int64] = np.zeros(0, np.int64)
        self._device, self._dtype = device, dtype
        self._settings = settings
        self._dtypes = tuple(map(_dtype, inputs))
        self._strides: tuple[Any, ...] = ()
        self.refusal = self._refusal()

    @property
    def signature(self) -> JobSignature:
        """What must match, of a job that is not refused."""
        return JobSignature(tuple(map(id, self.fixed)), *self._rest)

    @property
    def likeness(self) -> tuple[Sequence[Tensor], tuple[Any, ...]]:
        """What :meth:`is_like` compares: it keeps ``fixed`` alive, and nothing else of the job."""
        return self.fixed, self._rest

    def is_like(self, likeness: tuple[Sequence[Tensor], tuple[Any, ...]]) -> bool:
        """Whether the signature is that of another job, by its :attr:`likeness`: sooner told than noted and hashed."""
        fixed, rest = likeness
        return len(fixed) == len(self.fixed) and all(map(is_, fixed, self.fixed)) and rest == self._rest

    @cached_property
    def _rest(self) -> tuple[Any, ...]:
        sizes = tuple(map(Tensor.numel, self.inputs))
        return sizes, self._strides, self._dtypes, self._settings, numerics(self._device)

    def objection(self) -> Reason | None:
        """Say why such calls cannot be recorded, looking at everything. Takes long."""
        everything = [*self.inputs, *self.fixed]
        plain = all(type(x) in _ORDINARY and x.layout is torch.strided for x in everything)
        plain = plain and {x.device.type for x in everything} == {self._device.type}
        if not plain or (self._dtype is not None and any(x.dtype != self._dtype for x in everything)):
            return Reason.DTYPE
        if not all(map(_is_dense, everything)):
            return Reason.STRIDE
        written = set(map(id, self.written))
        end, end_of_written = 0, 0
        for start, stop, writes in sorted((*span(x), id(x) in written) for x in everything if x.numel()):
            if start < (end if writes else end_of_written):
                return Reason.ALIAS
            end = max(end, stop)
            end_of_written = max(end_of_written, stop) if writes else end_of_written
        return None

    def _refusal(self) -> Reason | None:
        inputs = self.inputs
        if not inputs and not self.fixed:
            return Reason.MISSING_GRAD
        if not _ORDINARY.issuperset(map(type, inputs)) or (
            self._dtype is not None and not {self._dtype}.issuperset(self._dtypes)
        ):
            return Reason.DTYPE
        try:
            self._strides = tuple(map(Tensor.stride, inputs))
            self.pointers = np.fromiter(map(_data_ptr, inputs), np.int64, len(inputs))
            self.addresses = list(map(_data_ptr, self._movable))
        except RuntimeError:  # what is sparse has none
            return Reason.DTYPE
        if not {-1 if self._device.type == "cpu" else self._device.index}.issuperset(map(Tensor.get_device, inputs)):
            return Reason.DTYPE
        if (self.pointers % ALIGNMENT).any():
            return Reason.STRIDE
        return Reason.PRECISION if torch.is_autocast_enabled(self._device.type) else None


def _is_dense(x: Tensor) -> bool:
    """Whether ``x`` fills its memory from its first to its last element, and each one has a place of its own."""
    if x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)):
        return True
    layout = Layout.of(x)
    return layout.extent == x.numel() and not layout.overlaps()


def bits(value: Any) -> tuple[type, Hashable]:
    """Return something hashable that differs where plain values differ in type or in a bit: 1, 1.0, True; 0.0, -0.0.

    Anything else differs as its :func:`fingerprint` does: also where it was changed in place.
    """
    return type(value), repr(value if is_plain(value) else fingerprint(value))


def span(x: Tensor) -> tuple[int, int]:
    """Return the addresses of the first byte of a dense tensor and of the first one after it."""
    return x.data_ptr(), x.data_ptr() + x.numel() * x.element_size()

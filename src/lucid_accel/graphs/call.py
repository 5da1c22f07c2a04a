"""The arguments of a call as a flat list of tensors, and what must match for a recording to serve it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.backends import cuda, cudnn
from torch.nn import Parameter
from torch.utils._pytree import TreeSpec, keystr, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from lucid_accel.graphs.fingerprint import is_plain
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.sealed import Sealed
from lucid_accel.reasons import Reason

__all__ = ["ALIGNMENT", "Call", "Form", "Padded", "Signature", "numerics"]

#: Names the trees of tensors, among positional arguments, whose dimension 1 is a capacity; rows of zeros past it are
#: inert.
Padded = Callable[[tuple[Any, ...]], Any]

#: Bytes: the widest load of a kernel.
ALIGNMENT = 16


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
            if own.device is None or now.device is None:
                # No tensor, one of them at least, or the same one again.
                if own != now:
                    return Reason.SHAPE
                continue
            if own.shape != now.shape:
                fewer = own.shape[1:] == now.shape[1:] and now.shape[:1] < own.shape[:1]
                return Reason.PARTIAL_BATCH if fewer else Reason.SHAPE
            for name, reason in (("dtype", Reason.DTYPE), ("stride", Reason.STRIDE), ("requires_grad", Reason.FREEZE)):
                if getattr(own, name) != getattr(now, name):
                    return reason
        return Reason.SHAPE


class _Hole(NamedTuple):
    """The place of a tensor among the tensors of a call."""

    place: int


class _Held(NamedTuple):
    """What is no tensor on the device, and belongs to no signature."""

    value: Any


class Form(NamedTuple):
    """The arguments of a call without their tensors, so that keeping it keeps none of them alive."""

    leaves: list[Any]
    spec: TreeSpec

    def fill(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with these tensors."""
        full = [
            tensors[leaf.place] if type(leaf) is _Hole else leaf.value if type(leaf) is _Held else leaf
            for leaf in self.leaves
        ]
        args, kwargs = tree_unflatten(full, self.spec)
        return args, kwargs

    def same_as(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these arguments have the structure of those the form was made of."""
        return tree_flatten((args, kwargs))[1] == self.spec


class Call:
    """One call of a region.

    Args:
        args: Positional arguments: trees of tensors and plain values.
        kwargs: Keyword arguments.
        padded: Names the arguments whose capacity belongs to no signature.
        device: Where the region computes; ``None`` for anywhere.
        sealed: Nothing but tensors on the device may be read, so whatever else is there, ``None`` apart, belongs to no
            signature.

    Attributes:
        args: As given.
        kwargs: As given.
        form: The arguments without their tensors.
        tensors: The tensors among the arguments, each object once.
        signature: What must match.
        rows: The capacity in use, 0 where nothing is growable.
        refusal: Why no recording can serve such a call, if none can. ``scalars``: an argument is neither a tensor nor a
            plain value, so nobody can tell when it changes. ``dtype``: a tensor is no ordinary one, or not on the
            device, where a number that a kernel takes from it would be frozen. ``alias``: a tensor repeats itself in
            memory, so that a copy of it has another layout. ``stride``: a
            tensor begins where no vector may, so that a copy of it, which does, may go to another kernel.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        padded: Padded = lambda args: (),
        device: torch.device | None = None,
        sealed: bool = False,
    ) -> None:
        self.args, self.kwargs = args, kwargs
        leaves, spec = tree_flatten((args, kwargs))
        if sealed:
            leaves = [x if x is None or _is_on(x, device) else _Held(x) for x in leaves]
        places: dict[int, int] = {}
        self.form = Form(
            [_Hole(places.setdefault(id(x), len(places))) if isinstance(x, Tensor) else x for x in leaves], spec
        )
        grown = {id(leaf) for leaf in tree_leaves(padded(args))}
        self.tensors: list[Tensor] = []
        self._grows: list[bool] = []
        self.rows = 0
        self.refusal: Reason | None = None
        rows: list[_Row] = []
        for leaf in leaves:
            if type(leaf) is _Held:
                rows.append(_Row((), type(leaf.value), None, None, False))
                continue
            if not isinstance(leaf, Tensor):
                plain = is_plain(leaf)
                self.refusal = self.refusal if plain else Reason.SCALARS
                rows.append(_Row((repr(leaf) if plain else None,), type(leaf), None, None, False))
                continue
            if (place := places[id(leaf)]) < len(self.tensors):
                rows.append(_Row((place,), "again", None, None, False))
                continue
            ordinary = type(leaf) in (Tensor, Parameter) and leaf.layout is torch.strided
            if not ordinary or (device is not None and leaf.device.type != device.type):
                self.refusal = Reason.DTYPE
            shape: tuple[int, ...] = leaf.shape
            stride: Any = leaf.stride() if ordinary else type(leaf)
            grows = id(leaf) in grown and leaf.dim() > 1
            if ordinary and not leaf.is_contiguous() and _repeats(leaf):
                self.refusal = Reason.ALIAS
            if ordinary and leaf.data_ptr() % ALIGNMENT:
                self.refusal = Reason.STRIDE
            if grows:
                self.rows = max(self.rows, shape[1])
                shape, stride = shape[:1] + shape[2:], leaf.is_contiguous()
            self.tensors.append(leaf)
            self._grows.append(grows)
            rows.append(_Row(shape, stride, leaf.dtype, leaf.device, leaf.requires_grad))
        self.signature = Signature(spec, tuple(rows), numerics(self.tensors[0].device if self.tensors else device))

    def sealed(self, names: Sequence[str] = ()) -> Form:
        """Return the form for a recording, where what may not be read raises, and says its name among ``names``."""
        called = [names[i] if i < len(names) else f"argument {i}" for i in range(len(self.args))] + [*self.kwargs]
        places = [
            name + keystr(path)
            for name, value in zip(called, (*self.args, *self.kwargs.values()), strict=True)
            for path, _ in tree_flatten_with_path(value)[0]
        ]
        pairs = zip(self.form.leaves, places, strict=True)
        return Form(
            [Sealed(place, type(leaf.value)) if type(leaf) is _Held else leaf for leaf, place in pairs], self.form.spec
        )

    def versions(self) -> list[int]:
        """Return how often each tensor was written."""
        return [x._version for x in self.tensors if not x.is_inference()]

    def padded(self, rows: int) -> list[Tensor]:
        """Return the tensors with room for ``rows`` rows where they are growable."""
        return [
            torch.cat((x, x.new_zeros(x.shape[0], rows - x.shape[1], *x.shape[2:])), 1) if grows else x
            for x, grows in zip(self.tensors, self._grows, strict=True)
        ]


def _is_on(x: Any, device: torch.device | None) -> bool:
    return isinstance(x, Tensor) and (device is None or x.device.type == device.type)


def _repeats(x: Tensor) -> bool:
    layout = Layout.of(x)
    return layout.kept != layout.shape or layout.overlaps()


def numerics(device: torch.device | None) -> tuple[Any, ...]:
    """What decides which kernels run and in which precision, beside the tensors."""
    kind = "cpu" if device is None else device.type
    return (
        torch.is_autocast_enabled(kind) and (torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        *map(_fp32, (cuda.matmul, cudnn.conv, cudnn.rnn)),  # type: ignore[attr-defined]
        cudnn.enabled,
        cudnn.deterministic,
        cudnn.benchmark,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
    )


def _fp32(part: Any) -> str:
    """What is in force for float32 in a part of torch: "none" means what holds for all, and there exactness."""
    own: str = part.fp32_precision
    return "ieee" if own == "none" else own

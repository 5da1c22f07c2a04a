"""What is known of the calls of one signature, from the first one seen to its recording."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from lucid_accel.graphs.aside import Aside, Nothing, Taken
from lucid_accel.graphs.autograd import aliases
from lucid_accel.graphs.border import Border
from lucid_accel.graphs.call import Form, Signature
from lucid_accel.graphs.fingerprint import fingerprint, is_plain
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.recording import Function, OtherResult, Recording
from lucid_accel.reasons import Reason

__all__ = ["Entry"]

#: Replays after which a recording is proven once more.
SECOND_PROOF = 100


class _Shape(NamedTuple):
    """A result without its tensors: for each leaf the place among the tensors, or what its plain value is like."""

    spec: TreeSpec
    leaves: list[Any]


class _Detached(NamedTuple):
    """The place of the tensor that a leaf is a detached one of, as a loss beside itself for a log."""

    place: int


class Entry:
    """One signature.

    Args:
        signature: What its calls have in common.
        aside: Takes what the part hands out beside its result.

    Attributes:
        signature: What its calls have in common.
        sightings: Native calls so far.
        seen_rows: Largest capacity seen.
        refused: Why it stays native, if it does.
        recording: Its recording, once there is one.
        capacity: Capacity of the recording.
        grown: How often the recording was replaced by one of larger capacity.
        replays: Replays of the recording.
        proofs: How often the recording was proven.
        fault: What was seen that no recording can do, if anything was.
    """

    def __init__(self, signature: Signature, aside: Aside | None = None) -> None:
        self.signature = signature
        self._aside = aside or Nothing()
        self._labels: list[list[Any]] = []
        self.sightings = 0
        self.seen_rows = 0
        self.capacity = 0
        self.grown = 0
        self.replays = 0
        self.proofs = 0
        self.refused: Reason | None = None
        self.recording: Recording | None = None
        self._shape: _Shape | None = None
        self._constants: list[Any] = []
        self._layouts: list[Layout | None] = []
        self._grads: list[bool] = []
        self._border: Border | None = None
        self.fault: str | None = None

    def proof_due(self) -> bool:
        """Whether this call should prove the recording: the first one, and one more after many replays."""
        return self.proofs == 0 or (self.proofs == 1 and self.replays >= SECOND_PROOF)

    def watch(self, result: Any, wanted: Mapping[Any, Tensor], own: Collection[Tensor]) -> Any:
        """Note the structure of a native result, and the gradients that will reach it and leave; return it, aliased.

        Args:
            result: What the region returned.
            wanted: Its inputs and parameters that require gradients, by any key.
            own: Its inputs, parameters and buffers.
        """
        self.close()
        self.fault = _odd_leaf(result, own)
        if self.fault is not None:
            return result
        tensors, self._shape, self._constants = _split(result)
        if _overlap(tensors):
            self.fault = "two of its results share memory, and who writes to one would write to copies of the other"
            return result
        self._layouts = [None] * len(tensors)
        self._grads = [x.requires_grad for x in tensors]
        outputs = aliases(tensors)
        for index, x in enumerate(outputs):
            if x.requires_grad:
                x.register_hook(self._noting(index, self._layouts))  # type: ignore[no-untyped-call]
        self._border = Border(outputs, wanted)
        return self.rebuild(outputs)

    def end_watch(self) -> None:
        """Stop watching, and judge what was seen. May be called twice."""
        border = self._border
        self.close()
        if border is not None and (key := border.mixed()) is not None:
            name = f"input {key}" if isinstance(key, int) else key
            self.fault = f"the gradient of {name}, to which others add between its several uses, has another order"

    def close(self) -> None:
        """Stop watching. May be called twice; looks at no value."""
        if self._border is not None:
            self._border.end()
            self._border = None

    @property
    def cotangents(self) -> list[Layout | None] | None:
        """Layouts of the gradients of the results; ``None`` until a backward was seen."""
        unknown = self._shape is None or (any(self._grads) and all(layout is None for layout in self._layouts))
        return None if unknown else self._layouts

    def recordable(self, form: Form, native: Callable[..., Any]) -> Function:
        """Return the region as tensors in, tensors out: results, then what is handed out beside them, to nobody now.

        It raises :class:`OtherResult`; it keeps no tensor.
        """
        self._labels = []
        return _function(form, native, self._aside.kept_back, self._shape, self._labels)

    def observed(self, form: Form, native: Callable[..., Any]) -> Function:
        """Return the same, as it runs natively: what is handed out is handed out."""
        return _function(form, native, self._aside.noted, self._shape, self._labels)

    def rebuild(self, outputs: Sequence[Tensor]) -> Any:
        """Return the result that these tensors are the leaves of."""
        assert self._shape is not None
        pairs = zip(self._shape.leaves, self._constants, strict=True)
        return tree_unflatten([_leaf(x, value, outputs) for x, value in pairs], self._shape.spec)

    def hand_out(self, outputs: Sequence[Tensor]) -> None:
        """Hand out what a replay made beside its result."""
        for labels in filter(None, self._labels):
            self._aside.hand_out(labels, outputs[len(outputs) - len(labels) :])

    def _noting(self, index: int, layouts: list[Layout | None]) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            if layouts[index] is not None:
                self.fault = "its result goes backward more than once"
            elif torch.is_grad_enabled():
                self.fault = "its gradients are to be differentiated again"
            layouts[index] = Layout.of(gradient)

        return note


def _function(
    form: Form,
    native: Callable[..., Any],
    taking: Callable[[], AbstractContextManager[Taken]],
    shape: _Shape | None,
    labels: list[list[Any]],
) -> Function:
    """Make a function of tensors, whose first run says what is handed out beside its result, in ``labels``."""

    def run(tensors: Sequence[Tensor]) -> list[Tensor]:
        args, kwargs = form.fill(tensors)
        with taking() as taken:
            result = native(*args, **kwargs)
        outputs, seen, _ = _split(result)
        if not labels:
            labels.append(taken.labels)
        if seen != shape or taken.labels != labels[0]:
            raise OtherResult(result)
        return [*outputs, *taken.tensors]

    return run


def _leaf(shape: Any, value: Any, outputs: Sequence[Tensor]) -> Any:
    if isinstance(shape, _Detached):
        return outputs[shape.place].detach()
    return outputs[shape] if isinstance(shape, int) else value


def _split(result: Any) -> tuple[list[Tensor], _Shape, list[Any]]:
    """Take a result apart into tensors, each object once, its shape, and its plain values in the places of leaves."""
    leaves, spec = tree_flatten(result)
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
    whole = {_memory(x): x for x in sorted(tensors.values(), key=lambda x: x.requires_grad)}
    kept = [x for x in tensors.values() if x.requires_grad or not x.numel() or whole[_memory(x)] is x]
    places = {id(x): place for place, x in enumerate(kept)}
    shape = [
        fingerprint(leaf)
        if not isinstance(leaf, Tensor)
        else places[id(leaf)]
        if id(leaf) in places
        else _Detached(places[id(whole[_memory(leaf)])])
        for leaf in leaves
    ]
    return kept, _Shape(spec, shape), [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _memory(x: Tensor) -> tuple[int, Layout]:
    return x.data_ptr(), Layout.of(x)


def _odd_leaf(result: Any, own: Collection[Tensor]) -> str | None:
    addresses, devices = {x.untyped_storage().data_ptr() for x in own}, {x.device.type for x in own}
    for leaf in tree_flatten(result)[0]:
        ordinary = leaf.layout is torch.strided if type(leaf) in (Tensor, nn.Parameter) else is_plain(leaf)
        if not ordinary:
            return f"it returns a {type(leaf).__name__}, which a recording cannot make anew"
        if isinstance(leaf, Tensor) and devices and leaf.device.type not in devices:
            return f"it returns a tensor on {leaf.device}, which a recording would copy from the host at every replay"
        if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() in addresses:
            return "it returns an input, a parameter or a buffer, and who writes to it later would write to a copy"
    return None


def _overlap(tensors: Sequence[Tensor]) -> bool:
    """Whether a byte belongs to two of these tensors."""
    groups: dict[int, list[Tensor]] = {}
    for x in tensors:
        groups.setdefault(x.untyped_storage().data_ptr(), []).append(x)
    for alike in (group for group in groups.values() if len(group) > 1):
        touched = torch.zeros(max(x.untyped_storage().nbytes() // x.element_size() for x in alike), dtype=torch.uint8)
        for x in alike:
            layout = Layout.of(x)
            torch.as_strided(touched, layout.kept, layout.stride, x.storage_offset()).add_(1)
        if touched.max() > 1 or len({x.element_size() for x in alike}) > 1:
            return True
    return False

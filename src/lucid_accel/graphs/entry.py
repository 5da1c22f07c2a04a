"""What is known of the calls of one signature, from the first one seen to its recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from lucid_accel.graphs.call import Call, Signature
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.recording import Function, Recording, aliases
from lucid_accel.reasons import Reason

__all__ = ["Entry"]

#: Replays after which a recording is proven once more.
SECOND_PROOF = 100


class Entry:
    """One signature.

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
    """

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.sightings = 0
        self.seen_rows = 0
        self.capacity = 0
        self.grown = 0
        self.replays = 0
        self.proofs = 0
        self.refused: Reason | None = None
        self.recording: Recording | None = None
        self._constants: list[tuple[Any] | None] = []
        self._spec: TreeSpec | None = None
        self._layouts: list[Layout | None] = []
        self._grads: list[bool] = []

    def proof_due(self) -> bool:
        """Whether this call should prove the recording: the first one, and one more after many replays."""
        return self.proofs == 0 or (self.proofs == 1 and self.replays >= SECOND_PROOF)

    def watch(self, result: Any) -> Any:
        """Note the structure of a native result, and the gradients that will reach it; return it, aliased."""
        leaves, self._spec = tree_flatten(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        self._layouts = [None] * len(tensors)
        self._grads = [x.requires_grad for x in tensors]
        self._constants = [None if isinstance(leaf, Tensor) else (leaf,) for leaf in leaves]
        outputs = aliases(tensors)
        for index, x in enumerate(outputs):
            if x.requires_grad:
                x.register_hook(_noting(self._layouts, index))  # type: ignore[no-untyped-call]
        return self.rebuild(outputs)

    @property
    def cotangents(self) -> list[Layout | None] | None:
        """Layouts of the gradients of the results; ``None`` until a backward was seen."""
        unknown = self._spec is None or (any(self._grads) and all(layout is None for layout in self._layouts))
        return None if unknown else self._layouts

    def function(self, call: Call, native: Callable[..., Any]) -> Function:
        """Return the region as tensors in, tensors out."""

        def run(tensors: Sequence[Tensor]) -> list[Tensor]:
            args, kwargs = call.with_tensors(tensors)
            leaves, spec = tree_flatten(native(*args, **kwargs))
            if spec != self._spec:
                raise RuntimeError("it returned another structure than before")
            return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

        return run

    def rebuild(self, outputs: Sequence[Tensor]) -> Any:
        """Return the result that these tensors are the leaves of."""
        assert self._spec is not None
        tensors = iter(outputs)
        leaves = [next(tensors) if constant is None else constant[0] for constant in self._constants]
        return tree_unflatten(leaves, self._spec)


def _noting(layouts: list[Layout | None], index: int) -> Callable[[Tensor], None]:
    def note(gradient: Tensor) -> None:
        layouts[index] = Layout.of(gradient)

    return note

"""Whether a replay gives the bytes of the native run: shown on a real step, which keeps its native result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from lucid_accel.graphs.autograd import Gradients, aliases
from lucid_accel.graphs.border import Border
from lucid_accel.graphs.compare import same_bits
from lucid_accel.graphs.engine import Engine
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.recording import Function, OtherResult, Recording
from lucid_accel.reasons import Reason

__all__ = ["Proof", "Verdict"]

_Named = dict[str, Tensor | None]


class Verdict(Enum):
    """What a proof found."""

    EQUAL = "equal"
    UNLIKE = "unlike"  #: native runs agree with each other, the replay does not agree with them
    UNPROVABLE = "unprovable"  #: two native runs disagree

    def complaint(self, where: str) -> tuple[Reason, str]:
        """Say what is wrong, given the first tensor that differs."""
        if self is Verdict.UNLIKE:
            return Reason.UNLIKE, f"{where} of a replay has other bytes than that of the native run"
        return Reason.UNPROVABLE, (
            f"two native runs of one step differ ({where}), so equality cannot be shown; make the run deterministic "
            "(trainer.deterministic=true), or accept it unproven with proof=off"
        )


class Proof:
    """One native step, watched, to be compared with its replay.

    :meth:`begin`, then :meth:`run`, which is the native forward of the step. Hooks note what reaches the region in the
    backward and what leaves it, apart from what other users of the same tensors add. Once the backward is done,
    :meth:`verdict` replays the same step from the state it began with and compares outputs, gradients, what it wrote
    and the random generator. The native state stays.

    Args:
        engine: The recording's engine.
        recording: What is to be proven.
        parameters: Trainable tensors of the region, by name.
        written: Tensors that the region may write, by name.
    """

    def __init__(
        self, engine: Engine, recording: Recording, parameters: Mapping[str, Tensor], written: Mapping[str, Tensor]
    ) -> None:
        self._engine = engine
        self._recording = recording
        self._parameters = dict(parameters)
        self._written = dict(written)
        self._border: Border | None = None
        self._cotangents: dict[int, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        self._keys: list[Any] = []
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []
        self._before: dict[str, Tensor] = {}
        self._after: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Note the state that the step begins with."""
        self._before = self._state()

    def run(self, function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run the region natively and watch.

        Raises:
            OtherResult: It returned what it was not recorded with.
        """
        self._inputs = [Layout.of(x).copy(x.detach()) for x in inputs]
        wanted: dict[Any, Tensor] = {i: x for i, x in enumerate(inputs) if x.requires_grad}
        wanted |= self._parameters
        self._keys = list(wanted)
        outputs = aliases(list(function(inputs)))
        self._border = Border(outputs, wanted)
        # Later work may draw too, before the verdict.
        self._after = self._state()
        self._outputs = [Layout.of(x).copy(x.detach()) for x in outputs]
        for index, out in enumerate(outputs):
            if out.requires_grad:
                self._handles.append(out.register_hook(self._noting(index)))  # type: ignore[no-untyped-call]
        return outputs

    def verdict(self) -> tuple[Verdict, str] | None:
        """Replay and compare; ``None`` where no backward came. The second is the first tensor that differs, if any."""
        self.end()
        if self._border is None or (any(self._recording.differentiable) and not self._cotangents):
            return None
        if (key := self._border.mixed()) is not None:
            # Natively another user's part may come first, and a sum of three has other bits in another order.
            return Verdict.UNLIKE, f"{_gradient_of(key)}, to which others add between its several uses,"
        now = self._state()
        cotangents = [self._cotangents.get(index) for index in range(len(self._outputs))]
        gradients = self._recording.laid([self._border.gradient(key) for key in self._keys])
        native = self._named(self._outputs, gradients, self._after)
        try:
            self._restore(self._before)
            outputs = self._recording.run_forward(self._inputs)
            gradients = self._recording.run_backward(cotangents)
            different = _first_difference(native, self._named(outputs, gradients, self._state()))
            if different is None:
                return Verdict.EQUAL, ""
            self._restore(self._before)
            outputs, gradients = self._recording.natively(cotangents)
            again = _first_difference(native, self._named(outputs, gradients, self._state()))
            return (Verdict.UNLIKE, different) if again is None else (Verdict.UNPROVABLE, again)
        except OtherResult:
            return Verdict.UNPROVABLE, "what it returns"
        finally:
            self._restore(now)

    def end(self) -> None:
        """Stop watching. May be called twice."""
        while self._handles:
            self._handles.pop().remove()
        if self._border is not None:
            self._border.end()

    def _noting(self, index: int) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            self._cotangents[index] = gradient.detach()

        return note

    def _named(self, outputs: Sequence[Tensor], gradients: Gradients, state: Mapping[str, Tensor]) -> _Named:
        named: _Named = {f"output {index}": x for index, x in enumerate(outputs)}
        for key, gradient in zip(self._keys, gradients, strict=True):
            named[_gradient_of(key)] = gradient
        return {**named, **{name or "the random generator": x for name, x in state.items()}}

    def _state(self) -> dict[str, Tensor]:
        state = {name: x.detach().clone() for name, x in self._written.items()}
        return {**state, "": self._engine.generator_state()}

    def _restore(self, state: Mapping[str, Tensor]) -> None:
        for name, x in self._written.items():
            x.detach().copy_(state[name])
        self._engine.set_generator_state(state[""])


def _gradient_of(key: int | str) -> str:
    return f"the gradient of {f'input {key}' if isinstance(key, int) else key}"


def _first_difference(native: _Named, other: _Named) -> str | None:
    return next((name for name, x in native.items() if not same_bits(x, other[name])), None)

"""One region of the step as two graphs, its forward and its backward, behind one node of autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lucid_accel.graphs.attached import Attached
from lucid_accel.graphs.autograd import Gradients, differentiate
from lucid_accel.graphs.border import foreign_leaf
from lucid_accel.graphs.engine import CaptureError, Engine, Graph
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.packed import Packed

__all__ = ["Function", "OtherResult", "Recording"]

#: A region of the step: tensors in, tensors out. It may read and write parameters and buffers.
Function = Callable[[Sequence[Tensor]], Sequence[Tensor]]


class OtherResult(RuntimeError):
    """A function returned another structure, or other plain values, than when it was watched.

    Attributes:
        result: What it returned.
    """

    def __init__(self, result: Any) -> None:
        super().__init__("it returned another structure, or another plain value, than before")
        self.result = result


class Recording:
    """One signature of a region, recorded.

    Recording executes nothing: values appear with the first replay. The forward is captured from copies of the inputs,
    the backward in a call of its own, from gradients laid out as the native ones were seen to be. Parameters are inputs
    of the node, so that hooks, accumulation and freezing meet ordinary edges. An output or parameter that gets no
    gradient natively gets none here.

    Everything handed out is a copy, but for gradients that are attached. Two forwards may not be pending at once: the
    caller runs the second one natively.

    Args:
        engine: Records, and owns the memory.
        function: The region.
        inputs: Live inputs, for their layouts and whether they require gradients.
        parameters: Trainable tensors that ``function`` reads.
        buffers: Other tensors that ``function`` may write.
        cotangents: For each output the layout of the gradient that reaches it natively, ``None`` if none does.
        attached: Takes the gradients of the parameters, which autograd then never sees; without it they are inputs of
            the node.

    Attributes:
        surprise: What a backward met that it was not recorded for, if any did. That backward was computed natively.

    Raises:
        CaptureError: See :meth:`Engine.capture`. Or a gradient would reach a tensor that is neither an input nor a
            parameter, or, with ``attached``, an input; or an output overlaps itself.
    """

    def __init__(
        self,
        engine: Engine,
        function: Function,
        inputs: Sequence[Tensor],
        parameters: Sequence[Tensor],
        buffers: Sequence[Tensor],
        cotangents: Sequence[Layout | None],
        attached: Attached | None = None,
    ) -> None:
        self.surprise: str | None = None
        self._engine = engine
        self._function = function
        self._parameters = list(parameters)
        self._attached = attached
        # What the node of autograd stands on.
        anchor = torch.empty((), device=engine.device, requires_grad=True)
        self._ground = self._parameters if attached is None else [anchor]
        self._buffers = list(buffers)
        self._autocast = _autocast(engine.device.type)
        self._inputs = [Layout.of(x).room().requires_grad_(x.requires_grad) for x in inputs]
        self._planned = list(cotangents)
        self._cotangents = [None if layout is None else layout.room() for layout in cotangents]
        self._turn = 0
        self._pending = False
        self._draws: bool | None = None

        def forward() -> list[Tensor]:
            self._before = Packed(self._buffers)
            self._before.fill(self._buffers)
            with torch.enable_grad(), torch.autocast(*self._autocast):
                outputs = list(function(self._inputs))
            if any(Layout.of(x).overlaps() for x in outputs):
                raise ValueError("a result overlaps itself, so that no copy has its strides")
            with torch.no_grad():
                self._outputs = Packed(outputs)
                self._outputs.fill(outputs)
            return outputs

        if attached is not None and any(x.requires_grad for x in inputs):
            raise CaptureError("one of its inputs wants a gradient, which can be no parameter's")
        graph, outputs = engine.capture(forward)
        if (leaf := foreign_leaf(outputs, self._wanted)) is not None:
            raise CaptureError(f"it reads a trainable tensor of shape {tuple(leaf.shape)} that is no part of it")
        # What is handed out beside the result gets no gradient.
        aside = [None] * (len(outputs) - len(cotangents))
        self._planned, self._cotangents = [*self._planned, *aside], [*self._cotangents, *aside]
        self._forward: Graph | None = graph
        self._backward: Graph | None = None
        self._gradients = Packed([])
        self._reached: list[bool] = []
        if any(layout is not None for layout in cotangents):
            seeds = [
                None if room is None or layout is None else room.expand(layout.shape)
                for room, layout in zip(self._cotangents, self._planned, strict=True)
            ]

            def backward() -> None:
                gradients = differentiate(outputs, self._wanted, seeds)
                self._reached = [g is not None for g in gradients]
                if attached is not None:
                    self._gradients = attached.written
                    attached.write(gradients)
                    return
                present = [g for g in gradients if g is not None]
                self._gradients = Packed(present)
                self._gradients.fill(present)

            self._backward, _ = engine.capture(backward, graph)
        # The outputs go now, and autograd's nodes with them: they would keep gradient accumulators of that stream.
        self.differentiable = [x.requires_grad for x in outputs]

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay the forward for ``inputs`` and return owned outputs, whose backward replays too."""
        outputs: tuple[Tensor, ...] = _Node.apply(self, len(inputs), *inputs, *self._ground)  # type: ignore[no-untyped-call]
        return outputs

    @property
    def pending(self) -> bool:
        """Whether a forward was replayed whose backward is still to come."""
        return self._pending

    def forget(self) -> None:
        """Take it that the pending backward never comes."""
        self._pending = False

    def drop(self) -> None:
        """Let go of the graphs and of all memory. May be called twice; outside any capture."""
        self._forward = self._backward = None
        self._inputs, self._cotangents = [], []
        self._outputs = self._gradients = self._before = Packed([])
        self._turn += 1
        self._pending = False

    @torch.no_grad()
    def run_forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Copy in, launch, copy out. An input with fewer rows in dimension 1 leaves the rest zero."""
        if self._forward is None:
            raise RuntimeError("this recording was dropped")
        self._load(inputs)
        if self._draws is not False:
            self._generator = self._engine.generator_state()
        self._forward.replay()
        if self._draws is None:
            self._draws = not torch.equal(self._generator, self._engine.generator_state())
        self._turn += 1
        self._pending = self._backward is not None
        return self._outputs.apart()

    @torch.no_grad()
    def run_backward(self, cotangents: Sequence[Tensor | None]) -> Gradients:
        """Copy in, launch, copy out; or compute natively, where these cotangents are not what was recorded for."""
        if (natively := self._launch_backward(cotangents)) is not None:
            return natively
        owned = self._gradients.owned()
        if self._attached is not None:
            return [x if reached else None for x, reached in zip(owned, self._reached, strict=True)]
        present = iter(owned)
        return [next(present) if reached else None for reached in self._reached]

    @torch.no_grad()
    def deliver(self, cotangents: Sequence[Tensor | None]) -> Gradients:
        """Do the same, and return what is autograd's to accumulate."""
        if self._attached is None:
            return self.run_backward(cotangents)
        if (natively := self._launch_backward(cotangents)) is not None:
            self._attached.add(natively)
        else:
            self._attached.take(self._reached)
        return [None] * len(self._ground)

    def laid(self, gradients: Gradients) -> Gradients:
        """Return native gradients in the layout of those of a replay."""
        return gradients if self._attached is None else self._attached.laid(gradients)

    def _launch_backward(self, cotangents: Sequence[Tensor | None]) -> Gradients | None:
        """Copy in and launch; return gradients that had to be computed natively, ``None`` where the room has them."""
        surprise = self._surprised(cotangents)
        self._pending = False
        if surprise is not None:
            self.surprise = surprise
            # The forward is run once more, from where its replay began; what it moved stays as it is now.
            buffers, generator = [x.clone() for x in self._buffers], self._engine.generator_state()
            self._before.restore(self._buffers)
            self._engine.set_generator_state(self._generator)
            _, gradients = self.natively(cotangents)
            for buffer, moved in zip(self._buffers, buffers, strict=True):
                buffer.copy_(moved)
            self._engine.set_generator_state(generator)
            return gradients
        for room, x in zip(self._cotangents, cotangents, strict=True):
            if room is not None and x is not None:
                room.copy_(Layout.of(x).reduced(x))
        if self._backward is not None:
            self._backward.replay()
        return None

    @torch.no_grad()
    def natively(self, cotangents: Sequence[Tensor | None]) -> tuple[list[Tensor], Gradients]:
        """Run the region on the inputs of the last replay as it would run without a recording; it moves the buffers."""
        with torch.enable_grad(), torch.autocast(*self._autocast):
            outputs = list(self._function(self._inputs))
        return [x.detach() for x in outputs], self.laid(differentiate(outputs, self._wanted, cotangents))

    def _load(self, inputs: Sequence[Tensor]) -> None:
        """Copy ``inputs`` in, and clear the rows that they do not have."""
        alike: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        stale = []
        for own, x in zip(self._inputs, inputs, strict=True):
            target = own
            if own.shape != x.shape:
                target = own[:, : x.shape[1]]
                stale.append(own[:, x.shape[1] :])
            targets, sources = alike.setdefault(x.dtype, ([], []))
            targets.append(target)
            sources.append(x)
        for targets, sources in alike.values():
            torch._foreach_copy_(targets, sources)
        if stale:
            torch._foreach_zero_(stale)

    @property
    def _wanted(self) -> list[Tensor]:
        return [*(x for x in self._inputs if x.requires_grad), *self._parameters]

    def _surprised(self, cotangents: Sequence[Tensor | None]) -> str | None:
        if self._backward is not None and not self._pending:
            return "its result went backward a second time"
        for index, (x, layout) in enumerate(zip(cotangents, self._planned, strict=True)):
            if (x is None) != (layout is None):
                return f"output {index} got {'no' if x is None else 'a'} gradient, unlike when it was recorded"
            if x is not None and layout is not None and Layout.of(x) != layout:
                return f"the gradient of output {index} has another layout than when it was recorded"
        return None


class _Node(torch.autograd.Function):
    """The region in the autograd graph."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = recording.run_forward(tensors[:count])
        ctx.recording, ctx.turn = recording, recording._turn
        ctx.wants = [x.requires_grad for x in tensors]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for x, differentiable in zip(outputs, recording.differentiable, strict=True) if not differentiable)
        )
        return tuple(outputs)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        if ctx.turn != ctx.recording._turn:
            raise RuntimeError("a recorded step can go backward before the next forward: this result's came too late")
        gradients = iter(ctx.recording.deliver(cotangents))
        return None, None, *(next(gradients) if wanted else None for wanted in ctx.wants)


def _autocast(device: str) -> tuple[str, torch.dtype, bool, bool]:
    # The cache too: a weight that is used twice is cast once with it, and its gradients are added in lower precision.
    kind, enabled = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
    return device, kind, enabled, torch.is_autocast_cache_enabled()

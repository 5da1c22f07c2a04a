"""A routine as one graph: inputs are copied in, results are copied out."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from lucid_accel.graphs.engine import Engine, Graph
from lucid_accel.graphs.job import Job, span
from lucid_accel.graphs.layout import Layout
from lucid_accel.graphs.packed import Packed

__all__ = ["SingleRecording"]

#: Past every address.
_TOP = 2**63 - 1


class SingleRecording:
    """One signature of a routine, recorded.

    Recording executes nothing: values appear with the first replay. What the job works on where it lies is kept alive.

    Args:
        engine: Records, and owns the memory.
        job: The work, and the tensors it is for.
        lend: Results are the recording's own memory, good until the next replay, and not copies.

    Raises:
        CaptureError: See :meth:`Engine.capture`. Or a result is, or lies in, one of the job's own tensors.
    """

    def __init__(self, engine: Engine, job: Job, lend: bool = False) -> None:
        self._lend = lend
        self._addresses = job.addresses
        self._fixed = list(job.fixed)
        self._layouts = list(map(Layout.of, self._fixed))
        self._sizes = np.array([x.numel() * x.element_size() for x in job.inputs])
        spans = np.array([(0, 0), *sorted(span(x) for x in job.written if x.numel()), (_TOP, _TOP)])
        self._starts, self._stops = spans[1:, 0], spans[:, 1]
        self._inputs = Packed(job.inputs)
        # What is empty lies nowhere, at 0.
        self._outputs, self._lent = Packed([]), list[Tensor]()
        own = {x.untyped_storage().data_ptr() for x in (*self._inputs.slots, *self._fixed)} - {0}

        def body() -> None:
            outputs = list(job.run(self._inputs.slots))
            if any(type(x) is not Tensor or x.untyped_storage().data_ptr() in own for x in outputs):
                raise ValueError("a result is one of its own inputs, or no ordinary tensor")
            if lend:
                self._lent = outputs
            else:
                self._outputs = Packed(outputs)
                self._outputs.fill(outputs)

        self._graph: Graph | None = engine.capture(body)[0]

    def __call__(self, job: Job) -> list[Tensor]:
        """Copy the inputs of ``job`` in, launch, and return results that are the caller's own.

        Raises:
            RuntimeError: It was dropped.
        """
        if self._graph is None:
            raise RuntimeError("this recording was dropped")
        self._inputs.fill(job.inputs, job.pointers)
        self._graph.replay()
        return list(self._lent) if self._lend else self._outputs.owned()

    def moved(self, job: Job) -> bool:
        """Whether something that is worked on where it lies now lies elsewhere."""
        return job.addresses != self._addresses

    def overlaid(self, job: Job) -> bool:
        """Whether an input lies, in part, where the work writes: then it writes to what it still has to read."""
        if not (job.inputs and job.written):
            return False
        places = self._starts.searchsorted(job.pointers, "right")
        return bool(((job.pointers < self._stops[places]) | (job.pointers + self._sizes > self._starts[places])).any())

    def changed(self, job: Job) -> bool:
        """Whether something that is worked on where it lies has another layout there. Takes longer."""
        return list(map(Layout.of, job.fixed)) != self._layouts

    def drop(self) -> None:
        """Let go of the graph and of all memory. May be called twice; outside any capture."""
        self._graph = None
        self._inputs = self._outputs = Packed([])
        self._fixed, self._lent = [], []

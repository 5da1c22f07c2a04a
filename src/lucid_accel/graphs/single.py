"""A routine as one graph: inputs are copied in, results are copied out."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lucid_accel.graphs.engine import Engine, Graph
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.packed import Packed

__all__ = ["SingleRecording"]


class SingleRecording:
    """One signature of a routine, recorded.

    Recording executes nothing: values appear with the first replay. What the job works on where it lies is kept alive.

    Args:
        engine: Records, and owns the memory.
        job: The work, and the tensors it is for.

    Attributes:
        addresses: Where lies what the recorded work reads and writes in place.

    Raises:
        CaptureError: See :meth:`Engine.capture`. Or a result is, or lies in, one of the job's own tensors.
    """

    def __init__(self, engine: Engine, job: Job) -> None:
        self.addresses = job.addresses
        self._fixed = list(job.fixed)
        self._inputs = Packed(job.inputs)
        # What is empty lies nowhere, at 0.
        own = {x.untyped_storage().data_ptr() for x in (*self._inputs.slots, *self._fixed)} - {0}

        def body() -> None:
            outputs = list(job.run(self._inputs.slots))
            if any(type(x) is not Tensor or x.untyped_storage().data_ptr() in own for x in outputs):
                raise ValueError("a result is one of its own inputs, or no ordinary tensor")
            self._outputs = Packed(outputs)
            self._outputs.fill(outputs)

        self._graph: Graph | None = engine.capture(body)[0]

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Copy in, launch, and return results that are the caller's own.

        Raises:
            RuntimeError: It was dropped.
        """
        if self._graph is None:
            raise RuntimeError("this recording was dropped")
        self._inputs.fill(inputs)
        self._graph.replay()
        return self._outputs.owned()

    def drop(self) -> None:
        """Let go of the graph and of all memory. May be called twice; outside any capture."""
        self._graph = None
        self._inputs = self._outputs = Packed([])
        self._fixed = []

"""The Newton-Schulz iteration of the optimizer as one recording."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from lucid_accel.graphs.job import Job, bits
from lucid_accel.graphs.routine import Routine
from lucid_accel.replay.optimizer import OptimizerReplay, Orthogonalize, side_by_side
from lucid_core.optim.musgd import MuSGD

__all__ = ["OrthogonalizationReplay"]


class OrthogonalizationReplay(OptimizerReplay):
    """Replays the orthogonalisation of the optimizer MuSGD: the Newton-Schulz iteration of all stacks of matrices.

    Wraps: the seam ``update.prepare.orthogonalize``.

    Must hold: one NVIDIA GPU, automatic optimization, 32-true, bf16-mixed or 16-mixed; the optimizer MuSGD or a class
    made of it.

    Frozen: the number of iterations, watched at every step. Momentum, decay, the learning rate and every write to a
    parameter stay native.

    Ends: results with other bytes than natively. Another set of matrices, or another number of iterations, is native at
    first, and recorded too when it stays.

    Tasks: all with MuSGD. Combines with every acceleration but UpdateReplay, which contains it, and those that take the
    whole step.

    Elsewhere: the flag ``capture_orthogonalization``.

    Costs: three native steps, and one more after a hundred; the time to record, and memory for a copy of the matrices
    and of the intermediate products.

    Args:
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: What a failure to record does: ``retire`` warns once and goes on natively, ``raise`` stops the run.
        strict: A no, a retirement, or a fit in which nothing was replayed is an error.
        keep: ``auto`` retires it where it does not pay, by the times of native and replayed steps of this fit;
            ``always`` keeps the recording to the end of the fit.
    """

    claims = ("update.prepare.orthogonalize",)

    def call(  # type: ignore[override]
        self, routine: Routine, native: Orthogonalize, stacks: Sequence[Tensor], steps: int
    ) -> Sequence[Tensor]:
        """Replay for these stacks."""
        optimizer = self._taken
        assert isinstance(optimizer, MuSGD)

        def describe() -> Job:
            return Job(
                lambda own: side_by_side(routine, optimizer, native, own, steps),
                stacks,
                routine.device,
                settings=(bits(steps), self.attributes()),
            )

        return routine(partial(native, stacks, steps), describe)

"""What an acceleration holds during one fit: where it is in its life, what it counted, what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightning.pytorch import Trainer

from lucid_accel.clock import FitClock
from lucid_accel.finding import Finding
from lucid_accel.graphs.engine import engine_for
from lucid_accel.payoff import Payoff, Progress
from lucid_accel.reasons import Reason
from lucid_accel.state import State
from lucid_accel.tally import Tally
from lucid_core.seams import Claim

if TYPE_CHECKING:
    from lucid_accel.acceleration import Acceleration

__all__ = ["Fit"]


@dataclass(slots=True)
class Fit:
    """All that an acceleration holds during one fit, and nothing of it afterwards but counts.

    Attributes:
        state: Where it is in its life.
        said: What was said of it last.
        batch: Number of the training batch, from 0.
        called_now: The seam was called in this batch.
        replayed_now: A call of this batch was replayed.
        setup_now: Something was recorded or proven in this batch.
        interrupted: Something that is no part of a step has come since the last batch ended.
        afterwards: Why steps are native once it has retired.
        reported: The report was made.
        tally: What it did.
        finding: What was measured of it, once it was.
        clock: How long steps took, kept by the first acceleration of the run for all.
        payoff: What measures, kept likewise.
        claims: The seams it holds.
        undo: Gives back what it took.
    """

    state: State = State.OFF
    said: str = ""
    batch: int = -1
    called_now: bool = False
    replayed_now: bool = False
    setup_now: bool = False
    interrupted: bool = False
    afterwards: Reason = Reason.RETIRED
    reported: bool = False
    tally: Tally = field(default_factory=Tally)
    finding: Finding | None = None
    clock: FitClock = field(default_factory=FitClock)
    payoff: Payoff = field(default_factory=Payoff)
    claims: list[Claim] = field(default_factory=list)
    undo: ExitStack = field(default_factory=ExitStack)

    def begin_batch(self) -> None:
        """Count a training batch."""
        self.batch += 1
        self.called_now = self.replayed_now = self.setup_now = False

    def end_batch(self, trainer: Trainer, party: Mapping[Acceleration, Fit]) -> None:
        """Take the time of a batch, and measure, for all accelerations of the run."""
        fits = party.values()
        replayed, setup = any(fit.replayed_now for fit in fits), any(fit.setup_now for fit in fits)
        # With one of several suspended, a step is of no kind.
        mixed = replayed and self.payoff.suspended
        self.clock.step(replayed and not mixed, setup or mixed)
        interrupted = any(fit.interrupted for fit in fits)
        for fit in fits:
            fit.interrupted = False
        device = trainer.strategy.root_device
        self.payoff.step(list(party), _progress(trainer), lambda: engine_for(device), setup, interrupted)


def _progress(trainer: Trainer) -> Progress:
    total = trainer.estimated_stepping_batches
    batches = min(trainer.num_training_batches, trainer.val_check_batch or math.inf)
    # -1 says that there is no end.
    return Progress(trainer.global_step, math.inf if total < 0 else total, batches / trainer.accumulate_grad_batches)

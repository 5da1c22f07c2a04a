"""What an acceleration did in one fit, counted as it happens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from lucid_accel.reasons import Reason

__all__ = ["Tally"]


@dataclass(slots=True)
class Tally:
    """Counts of one fit.

    Attributes:
        replayed: Calls of the seam that were replayed.
        replayed_steps: Training batches with such a call: a step may have several.
        native: Calls that were native, by reason.
        first: Number of the first training batch of each reason, from 0.
        proofs: How often a replay was shown to have the bytes of the native run.
        rearmed: Why recordings were dropped and made again, in order.
        setup_seconds: Time spent on recording and proving.
        proof_seconds: What of it was spent on proving.
        reserved: Bytes by which recordings made the device's reserved memory grow, where that is counted.
        held: What of them recordings hold that were not dropped to be made again.
        beside: Calls of parts of the step beside the one that is counted, by name: replayed, or native by reason.
        without: What stays native in this fit though it might be replayed, and why.
    """

    replayed: int = 0
    replayed_steps: int = 0
    native: Counter[Reason] = field(default_factory=Counter)
    first: dict[Reason, int] = field(default_factory=dict)
    proofs: int = 0
    rearmed: list[str] = field(default_factory=list)
    setup_seconds: float = 0.0
    proof_seconds: float = 0.0
    reserved: int = 0
    held: int = 0
    beside: dict[str, Counter[str]] = field(default_factory=dict)
    without: str = ""
    _timed_proofs: int = 0

    def replay(self, first: bool) -> None:
        """Count a replayed call, the first one of its training batch or a further one."""
        self.replayed += 1
        self.replayed_steps += first

    def count(self, reason: Reason, batch: int) -> None:
        """Count a native call in the training batch number ``batch``."""
        self.native[reason] += 1
        self.first.setdefault(reason, batch)

    def spend(self, seconds: float) -> None:
        """Count time that recording took, or the proof that was counted just before."""
        self.setup_seconds += seconds
        if self.proofs > self._timed_proofs:
            self._timed_proofs = self.proofs
            self.proof_seconds += seconds

    def hold(self, reserved: int) -> None:
        """Count a recording and its bytes."""
        self.reserved += reserved
        self.held += reserved

    def rearm(self, why: str) -> None:
        """Count that recordings were dropped, to be made again."""
        self.rearmed.append(why)
        self.held = 0

    def native_steps(self) -> dict[Reason, int]:
        """Return the native calls of training steps, by reason; evaluation is none."""
        return {reason: n for reason, n in self.native.items() if reason is not Reason.EVAL}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a report."""
        return {
            "replayed": self.replayed,
            "replayed_steps": self.replayed_steps,
            "native": {str(reason): n for reason, n in sorted(self.native.items())},
            "first_batch": {str(reason): n for reason, n in sorted(self.first.items())},
            "beside": {name: dict(sorted(calls.items())) for name, calls in self.beside.items()},
            "without": self.without,
            "proofs": self.proofs,
            "rearmed": self.rearmed,
            "setup_seconds": round(self.setup_seconds, 3),
            "reserved_bytes": self.reserved,
        }

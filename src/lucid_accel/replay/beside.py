"""Who listens to the parts of a step that are recorded beside the step itself."""

from __future__ import annotations

from collections import Counter

from lucid_accel.acceleration import Acceleration
from lucid_accel.reasons import Reason

__all__ = ["Beside"]


class Beside:
    """Passes on what a further part does, but for its calls: a step is counted once, by its main part.

    Args:
        item: Is told.
        name: Of the part, for the report.
    """

    def __init__(self, item: Acceleration, name: str) -> None:
        self._item = item
        self._calls = item.tally.beside[name] = Counter(replayed=0)
        self.proven = item.proven
        self.spent = item.spent
        self.retired = item.retired

    def recorded(self, reserved: int) -> None:
        """A recording was made. The main part says whether the step is recorded."""
        self._item.tally.hold(reserved)

    def rearmed(self, why: str) -> None:
        """Its recordings were dropped, and only these."""
        self._item.tally.rearmed.append(why)

    def native(self, reason: Reason) -> None:
        """A call was native."""
        self._calls[reason] += 1

    def replayed(self) -> None:
        """A call was replayed."""
        self._calls["replayed"] += 1

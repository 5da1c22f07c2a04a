"""Who listens to the parts of a step that are recorded beside the step itself."""

from __future__ import annotations

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
        self._item, self._name = item, name
        self.recorded = item.recorded
        self.proven = item.proven
        self.spent = item.spent
        self.rearmed = item.rearmed
        self.retired = item.retired

    def native(self, reason: Reason) -> None:
        """A call was native."""

    def replayed(self) -> None:
        """A call was replayed."""
        self._item.tally.beside[self._name] += 1

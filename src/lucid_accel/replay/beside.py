"""Who listens to the parts of a step that are recorded beside the step itself."""

from __future__ import annotations

from lucid_accel.graphs.listener import Listener
from lucid_accel.reasons import Reason

__all__ = ["Beside"]


class Beside:
    """Passes on what a further part does, but for its calls: a step is counted once, by its main part.

    Args:
        listener: Is told.

    Attributes:
        replays: Calls that were replayed.
    """

    def __init__(self, listener: Listener) -> None:
        self.replays = 0
        self.recorded = listener.recorded
        self.proven = listener.proven
        self.spent = listener.spent
        self.rearmed = listener.rearmed
        self.retired = listener.retired

    def native(self, reason: Reason) -> None:
        """A call was native."""

    def replayed(self) -> None:
        """A call was replayed."""
        self.replays += 1

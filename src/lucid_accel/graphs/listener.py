"""Who is told what a region does."""

from __future__ import annotations

from typing import Protocol

from lucid_accel.reasons import Reason

__all__ = ["Listener"]


class Listener(Protocol):
    """Is told what a region does."""

    def native(self, reason: Reason) -> None:
        """A call was native."""

    def replayed(self) -> None:
        """A call was replayed."""

    def recorded(self, reserved: int) -> None:
        """A recording was made, for which the device's reserved memory grew by ``reserved`` bytes."""

    def proven(self) -> None:
        """A replay had the bytes of the native run."""

    def spent(self, seconds: float) -> None:
        """Recording or proving took ``seconds``."""

    def rearmed(self, why: str) -> None:
        """Recordings were dropped and will be made again."""

    def retired(self, reason: Reason, why: str, cause: Exception | None) -> None:
        """The region stays native from now on."""

"""Where an acceleration is in its life."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["State"]


class State(StrEnum):
    """Where an acceleration is in its life: off, armed, recorded, retired; or off, ineligible."""

    OFF = "off"
    INELIGIBLE = "ineligible"
    ARMED = "armed"
    RECORDED = "recorded"
    RETIRED = "retired"

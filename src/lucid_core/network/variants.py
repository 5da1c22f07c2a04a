"""Compound scaling: five sizes of one architecture."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["VARIANTS", "Scale", "Variant"]

Variant = Literal["n", "s", "m", "l", "x"]


class Scale(NamedTuple):
    """How a variant scales the base architecture (YOLO26, arXiv 2606.03748).

    Attributes:
        repeats: Repetitions of each stage's inner block.
        width: Factor on the channels.
        cap: Base channels are limited to this before the factor.
    """

    repeats: int
    width: float
    cap: int

    def channels(self, base: int) -> int:
        """Return the channels of a layer whose base width is ``base``."""
        return int(min(base, self.cap) * self.width)


VARIANTS: dict[Variant, Scale] = {
    "n": Scale(1, 0.25, 1024),
    "s": Scale(1, 0.50, 1024),
    "m": Scale(1, 1.00, 512),
    "l": Scale(2, 1.00, 512),
    "x": Scale(2, 1.50, 512),
}

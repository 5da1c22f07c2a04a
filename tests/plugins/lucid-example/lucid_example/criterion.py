"""The loss of a classifier as one recording."""

from __future__ import annotations

from lucid_accel import PartReplay

__all__ = ["CriterionReplay"]


class CriterionReplay(PartReplay):
    """Replays the loss function and its backward.

    Wraps: the seam ``step.objective``, which an adapter offers.

    Must hold: one NVIDIA GPU, automatic optimization, 32-true, bf16-mixed or 16-mixed; labels on the device.

    Frozen: every Python value that the loss function reads, such as its label smoothing.

    Ends: a hook, a changed attribute, an exchanged part, a second backward of one result. Smaller batches and
    evaluation are native for as long as they last.

    Costs: four native steps, and one more after a hundred; little memory.
    """

    claims = ("step.objective",)

"""The learning rate over a run: a linear warm-up, then a linear decay."""

from __future__ import annotations

import functools

from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["lr_factor", "schedule_of", "warmup_steps"]


def schedule_of(optimizer: Optimizer, total: int, epochs: int, warmup_epochs: float, final: float) -> LambdaLR:
    """Make the schedule of a run, and warn where its learning rate would only rise.

    Args:
        optimizer: Whose learning rate it moves.
        total: Optimizer steps of the run.
        epochs: Epochs of the run.
        warmup_epochs: Epochs of the warm-up.
        final: Factor of the last step; above 1 it is 1.
    """
    warmup = warmup_steps(total, epochs, warmup_epochs)
    if warmup < round(total * warmup_epochs / epochs):
        rank_zero_warn(
            f"warmup_epochs={warmup_epochs} covers the whole run of {epochs} epochs: the learning rate only rises. "
            "Train longer or lower model.warmup_epochs."
        )
    factor = functools.partial(lr_factor, total=total, warmup=warmup, final=min(final, 1.0))
    return LambdaLR(optimizer, factor)


def warmup_steps(total: int, epochs: int, warmup_epochs: float) -> int:
    """Return how many of ``total`` optimizer steps warm up, at most all but one."""
    return max(0, min(round(total * warmup_epochs / epochs), total - 1))


def lr_factor(step: int, total: int, warmup: int, final: float) -> float:
    """Return the factor on the learning rate at an optimizer step.

    Args:
        step: From 0.
        total: Steps of the whole run.
        warmup: Steps of the warm-up, under ``total``.
        final: Factor of the last step.
    """
    if step < warmup:
        return (step + 1) / warmup
    return 1.0 - (1.0 - final) * min(1.0, (step - warmup) / max(1, total - warmup - 1))

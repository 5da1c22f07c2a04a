"""The learning rate over a run: a linear warm-up, then a linear decay."""

from __future__ import annotations

__all__ = ["lr_factor", "warmup_steps"]


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

"""What lucid-accel offers to the ``lucid`` command line, through the door that every plugin uses."""

from __future__ import annotations

from lucid_core.plugins import hookimpl


@hookimpl
def lucid_components() -> list[type]:
    """Offer every acceleration, and what arms the best of them."""
    from lucid_accel.auto import AutoAccelerate
    from lucid_accel.replay.loss import LossReplay
    from lucid_accel.replay.network import NetworkReplay
    from lucid_accel.replay.norm import GradientNormReplay
    from lucid_accel.replay.orthogonalization import OrthogonalizationReplay
    from lucid_accel.replay.step import StepReplay
    from lucid_accel.replay.update import UpdateReplay

    parts = [GradientNormReplay, LossReplay, NetworkReplay, OrthogonalizationReplay, UpdateReplay]
    return [AutoAccelerate, *parts, StepReplay]

"""lucid-accel: accelerations of the training step that never change a byte of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lucid_accel.acceleration import Acceleration, AccelerationError, AccelerationWarning
    from lucid_accel.auto import AutoAccelerate
    from lucid_accel.replay.base import Replay
    from lucid_accel.replay.loss import LossReplay
    from lucid_accel.replay.network import NetworkReplay
    from lucid_accel.replay.norm import GradientNormReplay
    from lucid_accel.replay.optimizer import OptimizerReplay
    from lucid_accel.replay.orthogonalization import OrthogonalizationReplay
    from lucid_accel.replay.part import PartReplay
    from lucid_accel.replay.step import StepReplay
    from lucid_accel.replay.update import UpdateReplay

__all__ = [
    "Acceleration",
    "AccelerationError",
    "AccelerationWarning",
    "AutoAccelerate",
    "GradientNormReplay",
    "LossReplay",
    "NetworkReplay",
    "OptimizerReplay",
    "OrthogonalizationReplay",
    "PartReplay",
    "Replay",
    "StepReplay",
    "UpdateReplay",
]

_HOMES = {
    "Acceleration": "acceleration",
    "AccelerationError": "acceleration",
    "AccelerationWarning": "acceleration",
    "AutoAccelerate": "auto",
    "GradientNormReplay": "replay.norm",
    "LossReplay": "replay.loss",
    "NetworkReplay": "replay.network",
    "OptimizerReplay": "replay.optimizer",
    "OrthogonalizationReplay": "replay.orthogonalization",
    "PartReplay": "replay.part",
    "Replay": "replay.base",
    "StepReplay": "replay.step",
    "UpdateReplay": "replay.update",
}


def __getattr__(name: str) -> Any:
    # Importing the package alone must not import torch: the plugin's entry point leads in here.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)

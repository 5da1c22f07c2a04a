"""Where the seams of our classifier are."""

from __future__ import annotations

from lightning.pytorch import LightningModule
from torch import nn

from lucid_accel.hookspecs import hookimpl
from lucid_example.classifier import Classifier


@hookimpl
def lucid_seams(module: LightningModule) -> dict[str, nn.Module] | None:
    """Name the submodules whose ``forward`` is a seam."""
    if not isinstance(module, Classifier):
        return None
    return {"step.network": module.body, "step.objective": module.criterion}

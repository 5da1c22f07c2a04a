"""Modules that learn with MuSGD, and what is done to them in the middle of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from lucid_accel import Acceleration
from lucid_core import seams
from lucid_core.optim.musgd import MuSGD
from tests.accel.conftest import Act, Net

__all__ = ["Apart", "Muon", "at", "counted", "given_back", "of"]


def warm_up_and_decay(step: int) -> float:
    return min(1.0, (step + 1) / 5) * 0.9**step


class Muon(Net):
    """Learns with MuSGD, at a rate that warms up and decays."""

    kind: Callable[..., Optimizer] = MuSGD

    def configure_optimizers(self) -> Any:
        optimizer = type(self).kind(self.parameters(), lr=0.05, weight_decay=0.01)
        return [optimizer], [{"scheduler": LambdaLR(optimizer, warm_up_and_decay), "interval": "step"}]


class Apart(Muon):
    """The same, in two groups of their own rate and decay."""

    def configure_optimizers(self) -> Any:
        groups = [{"params": self.body.parameters()}, {"params": self.head.parameters(), "lr": 0.01, "weight_decay": 0}]
        optimizer = MuSGD(groups, lr=0.05)
        return [optimizer], [{"scheduler": LambdaLR(optimizer, warm_up_and_decay), "interval": "step"}]


def counted(replay: Acceleration) -> dict[str, int]:
    return {"replayed": replay.tally.replayed, **{str(reason): n for reason, n in replay.tally.native.items()}}


def of(module: LightningModule) -> MuSGD:
    """The run's optimizer."""
    (optimizer,) = module.trainer.optimizers
    assert isinstance(optimizer, MuSGD)
    return optimizer


def at(*steps: int, do: Callable[[Any], Any]) -> Callable[[], list[Callback]]:
    """Callbacks that do something before these batches."""
    return lambda: [Act("on_train_batch_start", step, lambda _, module: do(module)) for step in steps]


def given_back(module: LightningModule) -> bool:
    """Whether nobody holds a seam of this run."""
    optimizers = module.trainer.optimizers if module._trainer is not None else []
    return not seams._held.get(module) and not any(seams._bound.get(optimizer) for optimizer in optimizers)

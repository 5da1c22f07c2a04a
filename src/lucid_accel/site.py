"""What an acceleration may look at, and the answer it gives."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

from lucid_accel import adapters
from lucid_accel.graphs.engine import Engine, engine_for

__all__ = ["Answer", "Site", "no", "recordable", "yes"]

_PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether an acceleration may run here.

    Attributes:
        ok: It may.
        why: What it needs and does not have.
        seen: What there is instead.
        fix: What would make it a yes.
        without: What it leaves native in this run, and why, where it may run otherwise.
    """

    ok: bool
    why: str = ""
    seen: str = ""
    fix: str = ""
    without: str = ""

    def __str__(self) -> str:
        if self.ok:
            return f"yes, without {self.without}" if self.without else "yes"
        return f"{self.why}, but {self.seen}. To get a yes: {self.fix}"


def yes(without: str = "") -> Answer:
    """It may run, all of it or ``without`` a part that stays native: which one, and why."""
    return Answer(True, without=without)


def no(why: str, seen: str, fix: str) -> Answer:
    """It may not run: what it needs, what was seen, what would make it a yes. One sentence together, no full stops."""
    return Answer(False, why, seen, fix)


@dataclass(frozen=True, slots=True)
class Site:
    """A run, to be looked at.

    Attributes:
        trainer: The run's Trainer.
        module: The run's LightningModule.
        started: Optimizers, hooks and clipping are final: false at ``setup``, true from ``on_train_start`` on.
    """

    trainer: Trainer
    module: LightningModule
    started: bool

    @property
    def device(self) -> torch.device:
        """Where the run computes."""
        return self.trainer.strategy.root_device

    def engine(self) -> Engine | None:
        """Return a new engine for the run's device, ``None`` where work cannot be recorded."""
        return engine_for(self.device)

    def seam(self, path: str) -> nn.Module | None:
        """Return the submodule that is the seam ``path`` in this run, ``None`` if the module has none or several."""
        return adapters.find(self.module, path)


def recordable(site: Site, proof: bool = True) -> Answer:
    """Ask what every recording needs of a run: one GPU, automatic optimization, a precision that is known to be exact.

    Args:
        site: The run.
        proof: Recordings are proven.
    """
    trainer, module = site.trainer, site.module
    if site.engine() is None:
        return no("it needs an NVIDIA GPU", f"this run computes on {site.device}", "train on one")
    if trainer.world_size != 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        seen = f"this run has world_size={trainer.world_size} and {type(trainer.strategy).__name__}"
        return no("it needs a single device", seen, "set trainer.devices=1")
    if not module.automatic_optimization:
        return no("it needs automatic optimization", "the module optimizes by itself", "automatic_optimization = True")
    if (precision := trainer.precision_plugin.precision) not in _PRECISIONS:
        needed = f"it needs a precision of {', '.join(_PRECISIONS)}"
        return no(needed, f"this run has {precision}", "set trainer.precision to one of them")
    if _is_preview(torch.__version__) and not proof:
        return no("it needs proof where torch is no final release", f"proof is off on {torch.__version__}", "proof=on")
    if getattr(module, "_compiler_ctx", None) is not None:
        return no("it needs an eager module", "the module is compiled", "leave out torch.compile")
    if site.started and torch.is_anomaly_enabled():
        return no("it needs anomaly mode off", "detect_anomaly is on", "set trainer.detect_anomaly=false")
    return yes()


def _is_preview(version: str) -> bool:
    """Whether it is like ``2.9.0a0+x``, ``2.9.0rc1`` or ``2.9.0.dev2025``; not ``2.9.0+cu129``, ``2.9.0.post1``."""
    return re.fullmatch(r"[\d.]+(post\d+)?", version.partition("+")[0]) is None

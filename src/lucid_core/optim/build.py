"""Optimizers by name, and what each makes of the parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn, optim

from lucid_core.optim.musgd import MuSGD

__all__ = ["OptimizerName", "build_optimizer", "warn_of_kept"]

OptimizerName = Literal["musgd", "sgd", "adamw"]


def build_optimizer(
    name: OptimizerName, params: Iterable[nn.Parameter], lr: float, momentum: float, weight_decay: float
) -> optim.Optimizer:
    """Return the optimizer ``name`` over the trainable parameters.

    Matrices (two dimensions or more) are decayed, vectors never. MuSGD makes that split itself, in one group; the
    others get one group each.

    Args:
        name: ``musgd``, ``sgd`` (Nesterov) or ``adamw`` (``momentum`` is its first beta).
        params: Parameters; frozen ones are left out.
        lr: Learning rate.
        momentum: In ``[0, 1)``.
        weight_decay: Decay of matrices: decoupled for ``musgd`` and ``adamw``, added to the gradient for ``sgd``.
    """
    trainable = [p for p in params if p.requires_grad]
    if name == "musgd":
        return MuSGD(trainable, lr=lr, momentum=momentum, weight_decay=weight_decay)
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    if name == "sgd":
        return optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)
    return optim.AdamW(groups, lr=lr, betas=(momentum, 0.999))


def warn_of_kept(optimizer: optim.Optimizer, asked: Mapping[str, float]) -> None:
    """Warn of settings that a resumed optimizer brought along and that are not those asked for.

    Args:
        optimizer: One that :func:`build_optimizer` made.
        asked: ``lr``, ``momentum`` and ``weight_decay``, among others.
    """
    group = optimizer.param_groups[0]
    in_force = {
        "lr": group.get("initial_lr", group["lr"]),
        "momentum": group["betas"][0] if "betas" in group else group["momentum"],
        "weight_decay": group["weight_decay"],
    }
    kept = {name: value for name, value in in_force.items() if value != asked[name]}
    if kept:
        rank_zero_warn(
            f"{', '.join(f'{name} {value:g}' for name, value in kept.items())} of the checkpoint stay in force: "
            f"{', '.join(f'model.{name}={asked[name]:g}' for name in kept)} has no effect on a resumed run"
        )

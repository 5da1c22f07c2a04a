"""What follows the backward in a step, as routines: clipping, the optimizer's update, the average of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import chain
from typing import Any

import torch
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor
from torch.optim import Optimizer

from lucid_accel.adapters import Replacement, is_free
from lucid_accel.graphs.job import Job, bits
from lucid_accel.graphs.routine import Routine
from lucid_accel.reasons import Reason
from lucid_accel.replay.clipping import is_stock
from lucid_accel.replay.optimizer import LIVE, in_branches, settings_of
from lucid_core.optim.ema import AveragedNetwork
from lucid_core.optim.musgd import MuSGD, with_gradient

__all__ = ["averaging", "clipping", "unlike_musgd", "updating"]

#: The gradients of these parameters that there are, ``None`` unless all of them lie where replays leave them.
Gradients = Callable[[Collection[Tensor]], list[Tensor] | None]

#: Methods of MuSGD that the update does not go through.
_BESIDE = frozenset(("__init__", "step", "write_scalars", "add_param_group", "load_state_dict"))
#: Those that it does.
_METHODS = [name for name, method in vars(MuSGD).items() if callable(method) and name not in _BESIDE]


def clipping(routine: Routine, plugin: Precision, gradients: Gradients) -> Replacement:
    """Return what is called instead of ``clip_grad_by_norm`` of ``plugin``: norm and scaling, where gradients lie."""

    def clip(native: Callable[..., Any], optimizer: Optimizer, clip_val: float) -> None:
        if not is_stock():
            native(optimizer, clip_val)
            return
        # Without any there is nothing to record, and the call is native.
        found = gradients(list(plugin.main_params(optimizer))) or []

        run = _work(native, optimizer, clip_val)
        with torch.no_grad():
            routine(run, lambda: Job(run, (), routine.device, certified=found, written=found, settings=bits(clip_val)))

    return clip


def unlike_musgd(optimizer: Optimizer) -> str | None:
    """Say why the update of ``optimizer`` cannot be recorded: what it needs, and what there is."""
    kind = type(optimizer).__name__
    if not isinstance(optimizer, MuSGD):
        return f"the update, which needs MuSGD, whose learning rate is on the device, and this run has {kind}"
    for name in _METHODS:
        if getattr(type(optimizer), name) is not getattr(MuSGD, name) or not is_free(optimizer, name):
            return f"the update, which needs the {name} of MuSGD, and {kind} has its own"
    return None


def updating(routine: Routine, optimizer: MuSGD, gradients: Gradients) -> Replacement:
    """Return what is called instead of ``update`` of ``optimizer``: all groups, parameters moved where they lie."""

    def update(native: Callable[[], None]) -> None:
        if (why := unlike_musgd(optimizer)) is not None:
            routine.retire(Reason.STRUCTURE, f"nobody may change {why}")
            native()
            return
        groups = [with_gradient(group["params"]) for group in optimizer.param_groups]
        params = list(chain.from_iterable(groups))
        found = gradients(params)

        def run(_: Any = ()) -> list[Tensor]:
            with in_branches(routine, optimizer):
                native()
            return []

        def describe() -> Job:
            momenta = optimizer.momenta(params)
            return Job(
                run,
                (),
                routine.device,
                fixed=[*params, *momenta] if found else (),
                certified=found or (),
                written=[*params, *momenta],
                settings=tuple(
                    (len(members), settings_of(group, LIVE))
                    for members, group in zip(groups, optimizer.param_groups, strict=True)
                ),
                version=optimizer.version,
                dtype=torch.float32,
            )

        routine(_work(native), describe)

    return update


def averaging(routine: Routine, average: AveragedNetwork) -> Replacement:
    """Return what is called instead of ``update`` of ``average``."""

    def update(native: Callable[[], None]) -> None:
        run = _work(native)

        def describe() -> Job:
            fixed = [*average.live, *average.averaged]
            return Job(run, (), routine.device, fixed=fixed, written=average.averaged)

        routine(run, describe)

    return update


def _work(native: Callable[..., Any], *args: Any) -> Callable[..., list[Tensor]]:
    """Return ``native`` as work that is given no tensors and returns none."""

    def run(_: Any = ()) -> list[Tensor]:
        native(*args)
        return []

    return run

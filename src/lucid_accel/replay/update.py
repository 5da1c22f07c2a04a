"""The optimizer's update, before the learning rate, as one recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from lucid_accel.adapters import is_free
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.routine import Routine
from lucid_accel.replay.optimizer import LIVE, OptimizerReplay, in_branches, same_state, settings_of
from lucid_accel.site import Answer, Site, no
from lucid_core.optim.musgd import MuSGD

__all__ = ["UpdateReplay"]

#: What calls the seam, and what takes its results.
_AROUND = ("update", "apply")

# A loop in C: there are hundreds of parameters.
_grad = attrgetter("grad")


class UpdateReplay(OptimizerReplay):
    """Replays what the optimizer MuSGD computes for each group: momentum, Nesterov, orthogonalisation, gains and decay.

    Wraps: the seam ``update.prepare``.

    Must hold: one NVIDIA GPU, automatic optimization, 32-true, bf16-mixed or 16-mixed; the optimizer MuSGD, or a class
    made of it that leaves ``update`` and ``apply`` alone and has no state but momentum, which it writes to in place;
    parameters, gradients and momentum in float32.

    Frozen: momentum, ``w_muon``, ``w_sgd``, ``ns_steps`` and whatever else a group, or the optimizer in a public
    attribute, holds, watched at every step, to the bit. What a class made of MuSGD reads from elsewhere, private
    attributes and those of its class among it, is not watched. The learning rate, the decay and every write to a
    parameter stay live.

    Ends: parameters or momentum that were moved; results with other bytes than natively. Loaded state and added groups
    are recorded again, three times. A parameter without gradient, other settings, another memory format are native at
    first, and recorded too when they stay.

    Tasks: all with MuSGD. Combines with every acceleration but OrthogonalizationReplay, which it contains, and those
    that take the whole step.

    Elsewhere: the flag ``capture_updates``.

    Costs: three native steps, and one more after a hundred; the time to record, and memory for a copy of the
    gradients and for intermediate results.

    Args:
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: What a failure to record does: ``retire`` warns once and goes on natively, ``raise`` stops the run.
        strict: A no, a retirement, or a fit in which nothing was replayed is an error.
        keep: ``auto`` retires it where it does not pay, by the times of native and replayed steps of this fit;
            ``always`` keeps the recording to the end of the fit.
    """

    claims = ("update.prepare",)
    lend = True

    def eligible(self, site: Site) -> Answer:
        """Ask what every optimizer's recording needs, and whether the update around it is known."""
        if not (answer := super().eligible(site)).ok or not site.started:
            return answer
        optimizer = self.part(site)
        for name in _AROUND:
            if getattr(type(optimizer), name, None) is not getattr(MuSGD, name) or not is_free(optimizer, name):
                seen = f"{type(optimizer).__name__} has one of its own"
                return no(f"it needs the {name} of {MuSGD.__name__}", seen, f"leave {name} to MuSGD, or the replay out")
        return answer

    def call(  # type: ignore[override]
        self,
        routine: Routine,
        native: Callable[..., list[Tensor]],
        params: Sequence[Tensor],
        group: dict[str, Any],
        weight_decay: Tensor,
    ) -> Sequence[Tensor]:
        """Replay for the gradients that these parameters have now."""
        optimizer = self._taken
        assert isinstance(optimizer, MuSGD)

        def run(gradients: Sequence[Tensor]) -> list[Tensor]:
            held = [param.grad for param in params]
            try:
                for param, gradient in zip(params, gradients, strict=True):
                    param.grad = gradient
                with same_state(optimizer, params), in_branches(routine, optimizer):
                    return native(params, group, weight_decay)
            finally:
                for param, own in zip(params, held, strict=True):
                    param.grad = own

        def describe() -> Job:
            momenta = optimizer.momenta(params)
            return Job(
                run,
                [gradient for gradient in map(_grad, params) if gradient is not None],
                routine.device,
                fixed=[*params, *momenta, weight_decay] if params else [],
                written=momenta,
                settings=(settings_of(group, LIVE), self.attributes()),
                key=id(group),
                version=optimizer.version,
                dtype=torch.float32,
            )

        return routine(partial(native, params, group, weight_decay), describe)

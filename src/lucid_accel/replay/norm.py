"""The norm of all gradients, for clipping, as one recording."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import attrgetter, is_
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from lucid_accel.acceleration import Undo
from lucid_accel.adapters import take
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.routine import Routine
from lucid_accel.reasons import Reason
from lucid_accel.replay.base import Replay
from lucid_accel.replay.clipping import is_stock, off, own_method
from lucid_accel.site import Answer, Site, no, recordable, yes

__all__ = ["GradientNormReplay"]


class GradientNormReplay(Replay):
    """Replays the norm of all gradients that clipping by norm needs; the scaling stays native.

    Wraps: the seam ``update.norm``, which is ``clip_grad_by_norm`` of the precision plugin, of any LightningModule.

    Must hold: one NVIDIA GPU, automatic optimization, 32-true, bf16-mixed or 16-mixed; a positive
    ``gradient_clip_val``, by norm; clipping as Lightning does it, neither the module's nor the plugin's own. Optimizers
    that undo the scale of 16-mixed in their own step are not clipped, as without it.

    Frozen: nothing. The limit is read at every step.

    Ends: a limit of none or zero, clipping by value, a replaced ``torch.nn.utils.clip_grad_norm_``, a norm with other
    bytes than natively. Another set of gradients is native at first, and recorded too when it stays.

    Tasks: all, and every module and optimizer. Combines with every acceleration but one that takes the whole step.

    Elsewhere: the flag ``capture_gradient_norm``.

    Costs: three native steps, and one more after a hundred; the time to record, and memory for a copy of the gradients.

    Args:
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: What a failure to record does: ``retire`` warns once and goes on natively, ``raise`` stops the run.
        strict: A no, a retirement, or a fit in which nothing was replayed is an error.
        keep: ``auto`` retires it where it does not pay, by the times of native and replayed steps of this fit;
            ``always`` keeps the recording to the end of the fit.
    """

    claims = ("update.norm",)

    def part(self, site: Site) -> Precision:
        """Return the precision plugin."""
        return site.trainer.precision_plugin

    def eligible(self, site: Site) -> Answer:
        """Ask what every recording needs, and whether Lightning clips by norm, in its own way."""
        if not (answer := recordable(site, self.proof == "on")).ok:
            return answer
        if (why := off(site.trainer)) is not None:
            return no("it needs clipping by norm", why, "set trainer.gradient_clip_val to a positive number")
        if is_overridden("configure_gradient_clipping", site.module):
            seen = f"{type(site.module).__name__} has its own configure_gradient_clipping"
            return no("it needs Lightning's clipping", seen, "leave that to Lightning")
        plugin = self.part(site)
        if (own := own_method(plugin)) is not None:
            return no(
                "it needs Lightning's clipping", f"{type(plugin).__name__} has its own {own}", "leave it as it is"
            )
        if not is_stock():
            seen = "torch.nn.utils.clip_grad_norm_ was replaced"
            return no("it needs torch's clipping", seen, "leave it as it is")
        return yes()

    def install(self, site: Site) -> Undo:
        """Send the norm of every clipping to a routine."""
        plugin, engine = self.part(site), site.engine()
        assert engine is not None
        # The norm is read at once, by the scaling, and nobody keeps it.
        routine = Routine(engine, self, self.proof == "on", lend=True)

        def clip(native: Callable[..., Any], optimizer: Optimizer, clip_val: float) -> None:
            if not is_stock():
                routine.retire(Reason.STRUCTURE, "torch.nn.utils.clip_grad_norm_ was replaced")
                native(optimizer, clip_val)
                return
            params = list(plugin.main_params(optimizer))
            gradients = list(map(_grad, params))
            if any(map(is_, gradients, repeat(None))):
                gradients = [gradient for gradient in gradients if gradient is not None]
            if not gradients:
                self.native(Reason.MISSING_GRAD)
                native(optimizer, clip_val)
                return
            # As torch's own two halves of clip_grad_norm_ do it, gradients off.
            with torch.no_grad():
                (norm,) = routine(lambda: _norm(gradients), lambda: Job(_norm, gradients, routine.device))
            clip_grads_with_norm_(params, clip_val, norm)

        undo = take(site.module, self.claims[0], self.owner, plugin, clip, "clip_grad_by_norm")
        return self.drive(routine, plugin, undo)

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Retire where clipping was switched off, or to another kind: then the seam is not called."""
        super().on_train_batch_start(trainer, *args, **kwargs)
        if self._routers and (why := off(trainer)) is not None:
            self._routers[0].retire(Reason.DISABLED, why)


# A loop in C: there are hundreds of parameters.
_grad = attrgetter("grad")


def _norm(gradients: Any) -> list[Tensor]:
    return [get_total_norm(gradients)]

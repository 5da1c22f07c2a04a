"""The whole training step as recorded work."""

from __future__ import annotations

from contextlib import ExitStack
from inspect import signature
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import Strategy
from torch import nn
from torch.nn.parameter import is_lazy

from lucid_accel.acceleration import Undo
from lucid_accel.adapters import is_free, marked, replace, take
from lucid_accel.graphs.certificate import HOOKS
from lucid_accel.graphs.router import Router
from lucid_accel.graphs.routine import Routine
from lucid_accel.graphs.whole import WholeStep
from lucid_accel.replay.base import Replay
from lucid_accel.replay.beside import Beside
from lucid_accel.replay.clipping import own_method
from lucid_accel.replay.end_of_step import averaging, clipping, unlike_musgd, updating
from lucid_accel.replay.logs import StepLogs
from lucid_accel.site import Answer, Site, no, recordable, yes
from lucid_core.optim.ema import AveragedNetwork
from lucid_core.optim.musgd import MuSGD
from lucid_core.seams import claim
from lucid_core.types import Batch

__all__ = ["StepReplay"]

#: State of a run that changes as it goes on, and that a step can only read on the host.
_CHANGING = frozenset(
    ("current_epoch", "experiment", "global_step", "log_metrics", "lr_schedulers", "optimizers", "trainer")
)

#: Attributes of the module that are not its own, and ``log``, which is called at replays too.
_OF_LIGHTNING = frozenset(vars(LightningModule())) | {"log"}


class StepReplay(Replay):
    """Replays the whole training step: network, objective and backward, clipping, the update and the average.

    Wraps: the seams ``step``, which is ``training_step`` of the strategy, ``update``, ``update.norm`` and ``ema``. Each
    is recorded for itself, at the place where Lightning calls it, so hooks, counters, schedules, gradient scaling,
    accumulation and checkpoints are Lightning's as ever.

    Must hold: one NVIDIA GPU, automatic optimization, 32-true, bf16-mixed or 16-mixed; no part that is compiled, no
    hooks inside the module or on parameters; a batch of tensors in tuples, lists or dictionaries; a step without host
    reads, host randomness, changes of Python state, metrics objects, Python numbers that it logs, results that are
    tensors of the batch, or writes to tensors that are neither parameters nor buffers. The update is replayed for the
    optimizer MuSGD, whose learning rate is on the device; any other one stays native, and so do clipping that is not
    Lightning's and an average that is not the detector's.

    Frozen: every Python value that the step reads. Attributes of submodules are watched, and those of the module that
    the step mentions by name, with what is in them, objects in objects down to the third; a step that mentions
    ``current_epoch``, ``global_step``, ``trainer``, ``optimizers``, ``lr_schedulers``, ``experiment`` or
    ``log_metrics``, or reads ``batch_idx`` or what else in its batch is no tensor on the device, is not recorded. What
    lies outside the module is not watched, nor are the names in a backward of your own, which does twice what it writes
    to tensors there where it is proven. What a step prints, or writes to elsewhere than its log, it does natively
    only. The limit of clipping, the settings of the optimizer and its methods are watched at every step; learning rate,
    decay, progressive weight and weight of the average are read from the device and stay live. Gradients lie in memory
    that the next backward overwrites; who keeps one beyond the step should copy it.

    Ends: a hook inside the module, a parameter or buffer that is exchanged, an attribute that changes. Freezing,
    switching parts to evaluation, loaded optimizer state and added groups are recorded again, three times. A gradient
    that somebody exchanges makes the rest of its step native. Smaller batches and other shapes are native at first, and
    recorded too when they stay; hooks on parameters, evaluation and anomaly mode are native as long as they last, and
    while a profiler runs in Python nothing new is recorded. A second backward of one result is computed natively, and
    ends the replay.

    Tasks: detection, and every module whose step can be recorded. It contains NetworkReplay, LossReplay,
    GradientNormReplay, UpdateReplay and OrthogonalizationReplay, and combines with none of them.

    Elsewhere: none of the flags.

    Costs: four native steps, three more of the update, and one more of each after a hundred; the time to record, and
    memory for one more set of activations and two of gradients.

    Args:
        proof: ``on`` replays a step beside its native run, the first one after recording and one more after a hundred,
            and retires on the first byte that differs. ``off`` leaves that out.
        on_failure: What a failure to record does: ``retire`` warns once and goes on natively, ``raise`` stops the run.
        strict: A no, a retirement, or a fit in which nothing was replayed is an error.
        keep: ``auto`` retires it where it does not pay, by the times of native and replayed steps of this fit;
            ``always`` keeps the recording to the end of the fit.
    """

    claims = ("step", "update", "ema")

    def part(self, site: Site) -> Strategy:
        """Return the strategy."""
        return site.trainer.strategy

    def eligible(self, site: Site) -> Answer:
        """Ask what every recording needs, and whether anybody has to be called in the middle of the step."""
        if not (answer := recordable(site, self.proof == "on")).ok:
            return answer
        module = site.module
        if not is_free(self.part(site), "training_step"):
            return no("it needs a step that nobody else took", "training_step of the strategy is replaced", "drop one")
        if any(map(is_lazy, [*module.parameters(), *module.buffers()])):
            return no(
                "it needs parameters that exist", "some are made at the first call", "call the module once before"
            )
        if (seen := _compiled(module)) is not None:
            return no("it needs an eager module", f"{seen} is compiled", "leave out torch.compile")
        if (seen := _hooked(module)) is not None:
            return no("it needs a step that nobody looks into", seen, "remove the hook, or replay parts without one")
        return yes((unlike_musgd(site.trainer.optimizers[0]) or "") if site.started else "")

    def rearmed(self, why: str) -> None:
        """Let what follows the backward start anew too: gradients will lie elsewhere."""
        super().rearmed(why)
        for router in self._routers:
            if isinstance(router, Routine):
                router.renew()

    def install(self, site: Site) -> Undo:
        """Send each part of the step to its routing."""
        module, strategy = site.module, self.part(site)
        # What follows the step may be called while its activations are alive, by a callback before the backward.
        engine, apart = site.engine(), site.engine()
        assert engine is not None
        assert apart is not None
        proven, names = self.proof == "on", signature(module.training_step).parameters
        step = WholeStep(engine, module, self, _padded, proven, StepLogs(module), names, _OF_LIGHTNING, _CHANGING)
        with ExitStack() as ended:

            def add(router: Router, undo: Undo) -> None:
                ended.callback(self.drive(router, strategy, undo))

            add(step, take(module, "step", self.owner, strategy, step, "training_step"))

            def beside(name: str) -> Routine:
                return Routine(apart, Beside(self, name), proven)

            plugin, optimizer, average = site.trainer.precision_plugin, site.trainer.optimizers[0], _average(module)
            if own_method(plugin) is None:
                clip = beside("clipping")
                add(clip, replace(plugin, "clip_grad_by_norm", clipping(clip, plugin, step.gradients)))
            if isinstance(optimizer, MuSGD) and unlike_musgd(optimizer) is None:
                update = beside("update")
                replacement = updating(update, optimizer, step.gradients)
                add(update, take(module, "update", self.owner, optimizer, replacement))
            else:
                ended.callback(claim(module, "update", self.owner).release)
            if average is not None:
                follow = beside("average")
                add(follow, take(module, "ema", self.owner, average, averaging(follow, average)))
            else:
                ended.callback(claim(module, "ema", self.owner).release)
            return ended.pop_all().close


def _average(module: nn.Module) -> AveragedNetwork | None:
    average = getattr(module, "average", None)
    return average if isinstance(average, AveragedNetwork) and marked(average, "ema") else None


def _compiled(module: nn.Module) -> str | None:
    """Say which part is compiled, if one is: it runs otherwise where it is recorded."""
    parts = module.named_modules()
    names = (name for name, part in parts if part._compiled_call_impl is not None or hasattr(part, "dynamo_ctx"))
    return next(names, None)


def _hooked(module: nn.Module) -> str | None:
    """Say where there is a hook in the middle of the step, if there is one."""
    for name, part in module.named_modules():
        if any(getattr(part, table) for table in HOOKS):
            return f"{name or type(part).__name__} has a hook"
    for name, x in module.named_parameters():
        if x._backward_hooks or x._post_accumulate_grad_hooks:
            return f"the parameter {name} has a hook"
    return None


def _padded(args: tuple[Any, ...]) -> list[Any]:
    return [batch.targets for batch in args if isinstance(batch, Batch)]

"""The life of an acceleration within a fit: asked at set-up, installed when training starts, gone when it ends."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lucid_accel.adapters import Undo
from lucid_accel.choices import one_of
from lucid_accel.finding import Finding
from lucid_accel.fit import Fit
from lucid_accel.reasons import Reason
from lucid_accel.report import idleness, publish
from lucid_accel.site import Answer, Site
from lucid_accel.state import State
from lucid_accel.tally import Tally
from lucid_core.seams import claim

__all__ = ["Acceleration", "AccelerationError", "AccelerationWarning", "State", "Undo"]

_log = logging.getLogger(__name__)

#: What a Trainer sets on every callback: methods of the module, which a copy would copy too.
_OF_TRAINER = frozenset({"log", "log_dict"})


class AccelerationWarning(UserWarning):
    """An acceleration that was asked for does nothing, or stopped."""


class AccelerationError(RuntimeError):
    """An acceleration with ``strict`` or ``on_failure="raise"`` does nothing, or stopped."""


class Acceleration(Callback, ABC):
    """Base of every acceleration: a Lightning callback that takes over one part of a run, or says why it does not.

    A subclass names the seams it takes, answers :meth:`eligible`, and takes them in :meth:`install`. It is asked twice:
    at ``setup``, where device, strategy and precision are known, and at ``on_train_start``, where everything is. The
    seams are given back when training ends, however it ends; a second fit starts anew. It keeps no ``state_dict``, and
    copies and pickles of it hold its options only.

    Args:
        on_failure: What a failure to record does: ``retire`` warns once and goes on natively, ``raise`` stops the run.
        strict: A no, a retirement, or a fit in which nothing was replayed is an error. For tests and benchmarks.
        keep: ``auto`` times native and replayed steps in turn, once all is recorded and proven, and retires what does
            not pay for itself. That is information, and no error of ``strict``. A fit with fewer than 200 steps left is
            not measured. ``always`` keeps what was recorded to the end of the fit.

    Attributes:
        claims: Paths of the seams it takes; keys of :data:`lucid_core.seams.SEAMS`.
        numerics: ``bitwise`` promises the bytes of the native run, ``tolerance`` does not.
    """

    claims: ClassVar[tuple[str, ...]] = ()
    numerics: ClassVar[Literal["bitwise", "tolerance"]] = "bitwise"

    def __init__(
        self,
        on_failure: Literal["retire", "raise"] = "retire",
        strict: bool = False,
        keep: Literal["auto", "always"] = "auto",
    ) -> None:
        self.on_failure = one_of("on_failure", on_failure, ("retire", "raise"))
        self.strict = strict
        self.keep = one_of("keep", keep, ("auto", "always"))
        self._fit = Fit()

    # What a subclass says

    @abstractmethod
    def eligible(self, site: Site) -> Answer:
        """Say whether it may run. It may look; it may not allocate, touch the device, or raise for an ordinary no."""

    @abstractmethod
    def install(self, site: Site) -> Undo:
        """Take the seams; return what gives them back, and may be called at any time."""

    # What a subclass may use

    @property
    def name(self) -> str:
        """The name it goes by."""
        return type(self).__name__

    @property
    def owner(self) -> str:
        """How messages call it: its name, and what tells it from others of the name."""
        return self.name

    @property
    def state(self) -> State:
        """Where it is in its life, in this fit or at the end of the last one."""
        return self._fit.state

    @property
    def tally(self) -> Tally:
        """What it did in this fit or in the last one."""
        return self._fit.tally

    @property
    def batches(self) -> int:
        """Training batches of this fit or of the last one, so far."""
        return self._fit.batch + 1

    @property
    def verdict(self) -> str:
        """Why it is ineligible or retired; empty otherwise."""
        return self._fit.said

    @property
    def finding(self) -> Finding | None:
        """What was measured of it, once it was."""
        return self._fit.finding

    def native(self, reason: Reason) -> None:
        """Count a native call, under one of a closed list of reasons."""
        self._fit.tally.count(reason, self._fit.batch)
        self._fit.called_now = True

    def replayed(self) -> None:
        """Count a call that was not native."""
        self._fit.tally.replay(not self._fit.replayed_now)
        self._fit.called_now = self._fit.replayed_now = True

    def recorded(self, reserved: int = 0) -> None:
        """Note that something was recorded, for which the device reserved ``reserved`` bytes more."""
        self._fit.tally.hold(reserved)
        self._fit.state = State.RECORDED

    def proven(self) -> None:
        """Note that a replay had the bytes of the native run."""
        self._fit.tally.proofs += 1

    def spent(self, seconds: float) -> None:
        """Note time spent on recording or proving."""
        self._fit.tally.spend(seconds)
        self._fit.setup_now = True

    def rearmed(self, why: str) -> None:
        """Note that recordings were dropped and will be made again."""
        self._fit.tally.rearm(why)
        self._fit.state = State.ARMED

    def retired(self, reason: Reason, why: str, cause: Exception | None = None) -> None:
        """Retire: stay native for the rest of the fit, give the seams back, warn once.

        Raises:
            AccelerationError: With ``strict``, or with ``on_failure="raise"`` where recording failed.
        """
        if self._fit.state in (State.ARMED, State.RECORDED):
            self._fit.state = State.RETIRED
            self._release()
            failed = reason is Reason.CAPTURE_FAILED and self.on_failure == "raise"
            self._say(f"retired at batch {self._fit.batch} ({reason})", why, failed, cause, reason is Reason.NOT_PAYING)

    def weighed(self, finding: Finding) -> None:
        """Keep what was recorded, or retire, by what was measured."""
        self._fit.finding = finding
        if not finding.kept:
            self._fit.afterwards = Reason.NOT_PAYING
            self.retired(Reason.NOT_PAYING, finding.why)

    # Lightning's hooks

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Ask for the first time, and claim the seams."""
        if stage != "fit":
            return
        self._release()
        self._fit = Fit()
        if self._is_second(trainer):
            rank_zero_info(f"{self.name} is named twice with the same options; the second one is ignored")
        elif self._ask(Site(trainer, pl_module, started=False)):
            for path in self.claims:
                self._fit.claims.append(claim(pl_module, path, self.owner))
            self._fit.state = State.ARMED

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Ask again, and install."""
        site = Site(trainer, pl_module, started=True)
        if self._fit.state is not State.ARMED or not self._ask(site):
            return
        # Taken again by install, together with the object that each seam is on.
        self._release()
        try:
            self._fit.undo.callback(self.install(site))
        except Exception as error:
            self.retired(Reason.CAPTURE_FAILED, f"it could not be installed: {type(error).__name__}: {error}", error)

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Count."""
        self._fit.begin_batch()

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Count a step after retirement; the first acceleration of the run takes the time for all."""
        if self._fit.state is State.RETIRED and not self._fit.called_now:
            # The seam was given back, so nobody tells of its calls.
            self.native(self._fit.afterwards)
        if (party := _party(trainer))[0] is self:
            self._fit.end_batch(trainer, {item: item._fit for item in party})

    def on_train_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        """Note that the next batch is not all that takes time."""
        self._fit.interrupted = True

    on_validation_start = on_train_epoch_end

    def on_save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Likewise. Nothing is added to the checkpoint."""
        self._fit.interrupted = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Give everything back, before Lightning moves the model; the last acceleration reports for all."""
        self._release()
        try:
            self._mind_idleness()
        finally:
            self._report(trainer)

    def on_exception(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Give everything back: neither of the other end hooks runs then. Never raises."""
        self._release()
        self._report(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Give everything back, where training never started."""
        if stage == "fit":
            self._release()

    def __getstate__(self) -> dict[str, Any]:
        return {**{name: x for name, x in vars(self).items() if name not in _OF_TRAINER}, "_fit": Fit()}

    def _ask(self, site: Site) -> bool:
        cause: Exception | None = None
        try:
            if (answer := self.eligible(site)).ok:
                self._fit.tally.without = answer.without
                return True
            why = str(answer)
        except Exception as error:
            why, cause = f"its question failed with {type(error).__name__}: {error}", error
        self._release()
        self._fit.state = State.INELIGIBLE
        failed = cause is not None and self.on_failure == "raise"
        self._say("off", why, failed, cause)
        return False

    def _say(self, what: str, why: str, fatal: bool, cause: Exception | None, expected: bool = False) -> None:
        """Warn, or raise, or only tell what was expected; whatever has to be put in order was before."""
        self._fit.said = f"{what}: {why}"
        sequel = "" if what == "idle" else ", training goes on without it"
        text = f"{self.owner} is {what}{sequel}: {why}"
        if expected:
            rank_zero_info(text)
        elif self.strict or fatal:
            raise AccelerationError(f"{self.owner} is {what}: {why}") from cause
        else:
            rank_zero_warn(text, category=AccelerationWarning)

    def _mind_idleness(self) -> None:
        if self.state in (State.ARMED, State.RECORDED) and self.batches and not self.tally.replayed:
            self._say("idle", idleness(self), False, None)

    def _report(self, trainer: pl.Trainer) -> None:
        """Report once for all accelerations of the run, if this is the last one and training began."""
        party = _party(trainer)
        if party[-1:] == [self] and self.batches and not self._fit.reported:
            self._fit.reported = True
            publish(trainer, [item for item in party if item.state is not State.OFF], party[0]._fit.clock)

    def _release(self) -> None:
        """Undo and let go, in any order, at any time; never raises."""
        while self._fit.claims:
            self._fit.claims.pop().release()
        try:
            self._fit.undo.close()
        except Exception:
            # Not a warning: these can be turned into errors.
            _log.warning("%s could not be removed cleanly", self.name, exc_info=True)

    def _is_second(self, trainer: pl.Trainer) -> bool:
        party = _party(trainer)
        earlier = party[: party.index(self)] if self in party else []
        return any(type(other) is type(self) and other._options() == self._options() for other in earlier)

    def _options(self) -> dict[str, Any]:
        return {name: x for name, x in vars(self).items() if name not in _OF_TRAINER and not name.startswith("_")}


def _party(trainer: pl.Trainer) -> list[Acceleration]:
    """The accelerations of a run, in order."""
    return [callback for callback in trainer.callbacks if isinstance(callback, Acceleration)]  # type: ignore[attr-defined]

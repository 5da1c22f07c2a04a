"""The best accelerations that a run allows, armed by one name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_info

from lucid_accel.acceleration import Acceleration
from lucid_accel.catalogue import offers
from lucid_accel.site import Answer, Site, no
from lucid_accel.state import State
from lucid_core.seams import SEAMS, SeamConflict

__all__ = ["AutoAccelerate", "ask", "best"]


class AutoAccelerate(Callback):
    """Arms the best accelerations that this run allows, and lets each be kept only where it pays.

    Takes: every installed acceleration that gives the bytes of the native run, those of other packages among them, with
    its default options. One that has a larger part of the step goes before those that it contains: StepReplay before
    NetworkReplay, LossReplay and the rest. One that says no gives way to the next ones.

    Must hold: nothing. Where no acceleration can run, such as on a CPU, one line says so and why, and training is
    native.

    Beside others: an acceleration that the run names itself stays as it is named, and what conflicts with it is left
    out.

    Ends: each acceleration as its own card says. One that does not pay, by the times of native and replayed steps of
    this fit, retires; fits with fewer than 200 steps left keep all.

    Tasks: all, and every module.

    Costs: what those cost that it arms, and, of each, some sixty steps of which half are native, to measure it.
    """

    numerics: ClassVar[Literal["bitwise", "tolerance"]] = "bitwise"

    def __init__(self) -> None:
        self._members: list[Acceleration] = []
        self._before: list[Callback] | None = None

    @property
    def name(self) -> str:
        """The name it goes by."""
        return type(self).__name__

    @property
    def members(self) -> Sequence[Acceleration]:
        """The accelerations that it armed, in this fit or in the last one."""
        return tuple(self._members)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Arm the best, and say which in one line. They are callbacks of the run until it ends.

        Not earlier: only now all is known that they are asked for, and one that says no can give way.
        """
        self._leave(trainer)
        callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
        named = [item for item in callbacks if isinstance(item, Acceleration)]
        held = [path for item in named for path in item.claims]
        site, answers = Site(trainer, pl_module, started=True), dict[Acceleration, Answer]()
        self._members = []

        def arm(item: Acceleration) -> bool:
            answers[item] = ask(item, site)
            if answers[item].ok:
                self._members.append(item)
                try:
                    item.setup(trainer, pl_module, "fit")
                    item.on_train_start(trainer, pl_module)
                except SeamConflict as conflict:
                    item.teardown(trainer, pl_module, "fit")
                    self._members.remove(item)
                    answers[item] = no("it needs its part of the step", str(conflict).rstrip("."), "drop one")
            return item.state is State.ARMED

        try:
            best(_made(named), held, arm)
        except BaseException:
            # The run knows nothing of them yet.
            for item in self._members:
                item.teardown(trainer, pl_module, "fit")
            raise
        if self._members:
            self._before = callbacks
            others = [item for item in callbacks if item is not self]
            # Another list, as Lightning goes through this one. Itself last: it takes them out when all were called.
            trainer.callbacks = [*others, *self._members, self]  # type: ignore[attr-defined]
        rank_zero_info(f"{self.name} {_told(self._members, answers, named)}")

    def on_exception(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        """Take them out of the run."""
        self._leave(trainer)

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Take them out of the run."""
        self._leave(trainer)

    def __getstate__(self) -> dict[str, Any]:
        return {"_members": [], "_before": None}

    def _leave(self, trainer: pl.Trainer) -> None:
        """Leave the callbacks as they were, but for what others did to them."""
        if (before := self._before) is not None:
            now: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
            new = [item for item in now if item not in before and item not in self._members]
            trainer.callbacks = [*(item for item in before if item in now), *new]  # type: ignore[attr-defined]
            self._before = None


def best(
    items: Iterable[Acceleration], held: Collection[str], can: Callable[[Acceleration], bool]
) -> list[Acceleration]:
    """Choose accelerations that get along, those with the largest part of the step first.

    Args:
        items: What there is to choose from.
        held: Paths of seams that are taken.
        can: Whether one can run; not asked of one whose part is taken.
    """
    taken, chosen = list(held), []
    for item in sorted(items, key=lambda item: (-_reach(item), item.name)):
        if not _overlap(item.claims, taken) and can(item):
            taken += item.claims
            chosen.append(item)
    return chosen


def ask(item: Acceleration, site: Site) -> Answer:
    """Ask whether ``item`` may run; a question that fails is a no."""
    try:
        return item.eligible(site)
    except Exception as error:
        seen = f"its question failed with {type(error).__name__}: {error}"
        return no("it needs to answer", seen, "tell its author")


def _made(named: Sequence[Acceleration]) -> list[Acceleration]:
    """Make what is offered, of other kinds than ``named``, with default options; what cannot be made so is left out."""
    made = []
    for offer in offers():
        if offer.kind.numerics == "bitwise" and not any(type(item) is offer.kind for item in named):
            with suppress(Exception):
                made.append(offer.kind())
    return made


def _overlap(paths: Collection[str], others: Collection[str]) -> bool:
    return any(_within(one, other) or _within(other, one) for one in paths for other in others)


def _within(path: str, other: str) -> bool:
    return f"{path}.".startswith(f"{other}.")


def _reach(item: Acceleration) -> int:
    """How many seams it takes, with those inside them."""
    return sum(any(_within(path, taken) for taken in item.claims) for path in SEAMS)


def _told(
    members: Sequence[Acceleration], answers: Mapping[Acceleration, Answer], named: Sequence[Acceleration]
) -> str:
    """Say what was armed, and why others were not that have no part in common with it."""
    armed = "arms " + (", ".join(item.name for item in members if item.state is State.ARMED) or "nothing")
    if not answers:
        beside = ", ".join(item.name for item in named)
        return f"{armed} beside {beside}" if named else f"{armed}: no installed plugin offers an acceleration"
    noes: dict[str, list[str]] = {}
    for item, answer in answers.items():
        if not answer.ok:
            noes.setdefault(str(answer), []).append(item.name)
    if len(noes) == 1 and not members:
        return f"{armed}: {next(iter(noes))}"
    return "; ".join([armed, *(f"not {', '.join(names)}: {why}" for why, names in noes.items())])

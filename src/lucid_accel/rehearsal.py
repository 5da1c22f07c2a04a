"""``lucid-accel doctor CONFIG``: which accelerations one run could use, without training it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import takewhile
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ProgressBar
from lightning.pytorch.loggers.logger import DummyLogger

from lucid_accel.acceleration import Acceleration
from lucid_accel.auto import AutoAccelerate, ask, best
from lucid_accel.catalogue import offers
from lucid_accel.doctor import quiet
from lucid_accel.site import Answer, Site, no
from lucid_core import cli
from lucid_core.seams import SeamConflict, claim

__all__ = ["Inquiry", "Rehearsal", "main"]

#: Options, put after the user's own, that keep a run from writing and from taking longer than it must.
_SILENT = (
    "--trainer.logger=false",
    "--trainer.enable_checkpointing=false",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.num_sanity_val_steps=0",
    "--trainer.profiler=null",
)


def main(argv: Sequence[str]) -> int:
    """Ask for the run that ``lucid fit`` would do, and print the answers.

    Args:
        argv: Names or files of configurations, then options of ``lucid fit``.

    Returns:
        0 when every acceleration has answered, 1 when the run itself is broken.

    Raises:
        SystemExit: With 2 where the options were not understood, with 0 after ``--print_config`` and its like.
    """
    names = list(takewhile(lambda item: not item.startswith("-"), argv))
    configs = [part for name in names for part in ("--config", name)]
    with tempfile.TemporaryDirectory() as folder:
        # What a callback or the data would write beside the logs goes there.
        aside = f"--trainer.default_root_dir={folder}"
        return cli.main(["fit", *configs, *argv[len(names) :], *_SILENT, aside], Rehearsal)


class Rehearsal(cli.LucidCLI):
    """A ``lucid fit`` up to where the first step would be: everything is built and set up, nothing is trained."""

    inquiry: Inquiry

    def before_instantiate_classes(self) -> None:
        """Save no configuration."""
        self.save_config_callback = None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Take the accelerations out of the run, as well as what writes, and put questions in."""
        asked = self.config_init[self.command].trainer
        given = asked.callbacks or []
        given = list(given) if isinstance(given, list) else [given]
        auto = any(isinstance(item, AutoAccelerate) for item in given)
        self.inquiry = Inquiry([item for item in given if isinstance(item, Acceleration)], auto)
        kept = [
            item for item in given if not isinstance(item, Acceleration | AutoAccelerate | Checkpoint | ProgressBar)
        ]
        # Last, since callbacks before it may add hooks when training starts.
        asked.callbacks = [*kept, self.inquiry]
        if not asked.barebones:
            # Callbacks such as LearningRateMonitor refuse a run without a logger.
            asked.logger = DummyLogger()
        return super().instantiate_trainer(**kwargs)

    def fit(self, model: LightningModule, **run: Any) -> None:
        """Ask, and print the answers."""
        trainer, inquiry = self.trainer, self.inquiry
        with quiet():
            if trainer.world_size > 1:
                inquiry.setup(trainer, model, "fit")
            else:
                with suppress(Asked):
                    trainer.fit(model, **run)
        site = Site(trainer, model, inquiry.started)
        optimizers = ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers)
        devices = f"{trainer.world_size} process{'es' if trainer.world_size > 1 else ''}"
        strategy = f"{type(trainer.strategy).__name__} in {devices}"
        print(
            f"{type(model).__name__} on {site.device}, precision {trainer.precision}, {strategy}"
            + (f", {optimizers}" if optimizers else "")
        )
        if not inquiry.started:
            why = "it would start several processes" if trainer.world_size > 1 else "it has nothing to train"
            print(f"asked at set-up only, not when training starts: {why}")
        print(inquiry.render())


class Asked(Exception):
    """Ends a run whose accelerations were all asked."""


class Inquiry(Callback):
    """Asks accelerations twice, as they are asked in a run, and ends it before the first step.

    Args:
        named: Accelerations of the run; every other one that is offered is asked with its default options.
        auto: The run names AutoAccelerate, which arms others.

    Attributes:
        named: The accelerations of the run.
        answers: What each one said last.
        started: They were asked for the second time.
    """

    def __init__(self, named: Sequence[Acceleration], auto: bool = False) -> None:
        self.named = list(named)
        self.auto = auto
        self.answers: dict[Acceleration, Answer] = {}
        self.unasked: dict[str, str] = {}
        self.started = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for the first time, and see whether those of the run get along, and each other one with them."""
        site = Site(trainer, pl_module, started=False)
        self.answers = {item: ask(item, site) for item in [*self.named, *self._others()]}
        with ExitStack() as held:
            for item, answer in self.answers.items():
                with ExitStack() as own:
                    try:
                        for path in item.claims if answer.ok else ():
                            own.callback(claim(pl_module, path, item.name).release)
                    except SeamConflict as conflict:
                        self.answers[item] = no("it needs its part of the step", str(conflict).rstrip("."), "drop one")
                    if item in self.named:
                        held.push(own.pop_all())

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ask those that said yes once more.

        Raises:
            Asked: Always.
        """
        self.started = True
        site = Site(trainer, pl_module, started=True)
        self.answers |= {item: ask(item, site) for item, answer in self.answers.items() if answer.ok}
        raise Asked

    def render(self) -> str:
        """Return the answers, one a line."""
        lines, armed = [], self._armed()
        for item, answer in self.answers.items():
            known = f"add --trainer.callbacks+={item.name}"
            if self.auto:
                known = f"{AutoAccelerate.__name__} {'arms it' if item in armed else 'leaves it out'}"
            if item in self.named:
                known = "in this run"
            without = f", without {answer.without}" if answer.without else ""
            lines.append(f"yes  {item.name}: {known}{without}" if answer.ok else f"no   {item.name}: {answer}")
        lines += [f"?    {name}: {why}" for name, why in self.unasked.items()]
        return "\n".join(lines) or "no acceleration is named or offered; `lucid-accel list` lists them"

    def _armed(self) -> list[Acceleration]:
        """Return what AutoAccelerate would arm."""
        others = [item for item in self.answers if item not in self.named and item.numerics == "bitwise"]
        held = [path for item in self.named for path in item.claims]
        return best(others, held, lambda item: self.answers[item].ok)

    def _others(self) -> list[Acceleration]:
        others = []
        for offer in offers():
            if any(type(item) is offer.kind for item in self.named):
                continue
            try:
                others.append(offer.kind())
            except Exception as error:
                self.unasked[offer.name] = f"it cannot be made with default options, so name it in the run: {error}"
        return others

"""One fit of a comparison, in a process of its own: a ``lucid fit`` with the accelerations of one arm, measured.

python -m lucid_accel.bench.fit '{"arm": ["LossReplay"], "others": [], "folder": "..."}' --config detect ...
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lucid_accel.acceleration import Acceleration
from lucid_accel.auto import AutoAccelerate
from lucid_accel.bench.probe import Enough, Probe
from lucid_accel.catalogue import offers
from lucid_core import cli

__all__ = ["RESULT", "MeasuredFit", "Order", "main"]

#: Name of the file that a measured fit leaves in its folder.
RESULT = "result.json"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done.

    Attributes:
        arm: Names of the accelerations; none of them for a native fit.
        others: Names of accelerations that later fits will have: those that cannot be made are refused now.
        folder: Where all that the run writes goes.
        profile: Profile a few steps and end there.
    """

    arm: list[str]
    others: list[str]
    folder: str
    profile: bool = False

    def command(self, options: Sequence[str]) -> list[str]:
        """Return the command line that does it."""
        return [sys.executable, "-m", __name__, json.dumps(asdict(self)), *options]


def main(argv: Sequence[str]) -> int:
    """Do what is ordered, for a run with the options that follow; return the exit status of ``lucid fit``."""

    class Ordered(MeasuredFit):
        order = Order(**json.loads(argv[0]))

    # Behind the user's own options, so that these win.
    last = ["--trainer.profiler=null", f"--trainer.default_root_dir={Ordered.order.folder}"]
    return cli.main(["fit", *argv[1:], *last], Ordered)


class MeasuredFit(cli.LucidCLI):
    """A ``lucid fit`` with the accelerations of one arm instead of those of the run, which writes to one folder only.

    An acceleration of the arm that the run names has the options that it has there, others have their defaults. Loggers
    are those of a run that names none: a fit of a comparison does not belong in the user's own.
    """

    order: Order
    probe: Probe
    named: list[str]

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Exchange the accelerations, and turn to the folder what writes."""
        asked = self.config_init[self.command].trainer
        given = asked.callbacks or []
        given = list(given) if isinstance(given, list) else [given]
        offered = [item for item in given if isinstance(item, Acceleration | AutoAccelerate)]
        kept = [item for item in given if item not in offered]
        self.named = list(dict.fromkeys(item.name for item in offered))
        made = {name: self._members(name, offered) for name in dict.fromkeys([*self.order.arm, *self.order.others])}
        arm = [item for name in self.order.arm for item in made[name]]
        for number, item in enumerate(kept):
            if isinstance(item, ModelCheckpoint) and item.dirpath:
                item.dirpath = str(Path(self.order.folder, f"checkpoints-{number}"))
        self.probe = Probe(self.order.profile)
        asked.callbacks = [*kept, *arm, self.probe]
        if not asked.barebones:
            asked.logger = True
        return super().instantiate_trainer(**kwargs)

    def fit(self, model: LightningModule, **run: Any) -> None:
        """Train, and write what was measured."""
        trainer, folder = self.trainer, Path(self.order.folder)
        with suppress(Enough):
            trainer.fit(model, **run)
        if not trainer.is_global_zero:
            return
        if not self.order.profile and not any(folder.rglob("*.ckpt")):
            # A run without checkpoints is compared too.
            trainer.save_checkpoint(folder / "end.ckpt")
        on_gpu = trainer.strategy.root_device.type == "cuda"
        found = {
            "named": self.named,
            "device": str(trainer.strategy.root_device),
            "card": torch.cuda.get_device_name() if on_gpu else None,
            "allocated_mib": torch.cuda.max_memory_allocated() >> 20 if on_gpu else None,
            "reserved_mib": torch.cuda.max_memory_reserved() >> 20 if on_gpu else None,
            "configuration": json.loads(self.parser.dump(self.config, format="json"))[self.command],
            **self.probe.figures(),
        }
        (folder / RESULT).write_text(json.dumps(found))

    def _members(self, name: str, offered: Sequence[Acceleration | AutoAccelerate]) -> list[Callback]:
        """The accelerations of the run that are called so, else a new one; refused where there is none."""
        found: list[Callback] = [item for item in offered if item.name == name]
        if found:
            return found
        kinds = {offer.name: offer.kind for offer in offers((AutoAccelerate,))}
        if name not in kinds:
            near = get_close_matches(name, kinds, n=1)
            hint = f"did you mean {near[0]}?" if near else "`lucid-accel list` lists them"
            self.parser.error(f"no acceleration is called {name!r}; {hint}")
        try:
            return [kinds[name]()]
        except Exception as error:
            self.parser.error(f"{name} cannot be made with default options, so name it in the run: {error}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

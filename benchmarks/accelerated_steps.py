"""Compare accelerated with native training steps: parity first, then time. A red parity stops the measurement.

    python benchmarks/accelerated_steps.py FOLDER --batch 4 64 --record steps.json
    python benchmarks/accelerated_steps.py FOLDER --arms GradientNormReplay UpdateReplay GradientNormReplay+UpdateReplay

Trains each arm through a real Trainer from the same seed, over real batches that are kept in memory, and demands equal
checkpoints. Then it alternates windows of native and of replayed steps within one fit. An arm is one acceleration, or
several joined by ``+``; all that are named have to get along in one fit.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import timeit
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from record import Red, add_windows, begin, busy, interval, outcome_of, parser_of, quieten, summary, write
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

import lucid_accel
from lucid_accel import Replay
from lucid_accel.graphs.call import Call
from lucid_accel.graphs.certificate import Certificate
from lucid_accel.testing import Outcome, first_difference
from lucid_core.data.module import DataModule
from lucid_core.module import Detector
from lucid_core.types import Batch

NATIVE = "native"
ARMS = ("NetworkReplay", "LossReplay", "NetworkReplay+LossReplay")


def replays_of(arms: Sequence[str]) -> list[Replay]:
    """Return the accelerations that these arms name, each once."""
    names = dict.fromkeys(name for arm in arms if arm != NATIVE for name in arm.split("+"))
    return [getattr(lucid_accel, name)(strict=True) for name in names]


class Meter(Callback):
    """Notes the memory after ``last`` steps, then profiles three more."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.busy_ms, self.kernels, self.reserved, self.peak = 0.0, 0, 0, 0
        self._profile = profile(activities=[ProfilerActivity.CUDA])

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            torch.cuda.reset_peak_memory_stats()
        if batch_idx == self.last:
            torch.cuda.synchronize()
            self.reserved, self.peak = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
            self._profile.__enter__()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.last + 2:
            torch.cuda.synchronize()
            self._profile.__exit__(None, None, None)
            self.busy_ms, self.kernels = busy(self._profile, 3)


class Windows(Callback):
    """Lets the recordings of a fit be replayed in some windows and not in others, and times the windows.

    Each round has one window of every arm, in an order that turns from round to round. The first two steps of a window
    are not timed; a synchronisation opens and closes the time.
    """

    def __init__(self, arms: Sequence[str], replays: Sequence[Replay], warmup: int, window: int) -> None:
        self.arms, self.replays, self.warmup, self.window = arms, replays, warmup, window
        self.ms: dict[str, list[float]] = {arm: [] for arm in arms}
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        number, step = divmod(batch_idx - self.warmup, self.window)
        if batch_idx >= self.warmup and step == 0:
            switch(self.replays, self._arm(number))
        if batch_idx >= self.warmup and step == 2:
            torch.cuda.synchronize()
            self._start = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        number, step = divmod(batch_idx - self.warmup, self.window)
        if batch_idx >= self.warmup and step == self.window - 1:
            torch.cuda.synchronize()
            self.ms[self._arm(number)].append((time.perf_counter() - self._start) * 1e3 / (self.window - 2))

    def _arm(self, number: int) -> str:
        turn, place = divmod(number, len(self.arms))
        return self.arms[(place + turn) % len(self.arms)]


def switch(replays: Sequence[Replay], arm: str) -> None:
    """Let the accelerations of ``arm`` replay, and the others be native."""
    for replay in replays:
        replay.resume() if replay.name in arm.split("+") else replay.suspend()


class Cycle:
    """A few batches, over and over."""

    def __init__(self, batches: Sequence[Batch], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        return self.batches[index % len(self.batches)]


def train(
    batches: Sequence[Batch], length: int, classes: Sequence[str], args: argparse.Namespace, callbacks: list[Callback]
) -> Outcome:
    """Train ``length`` steps through a Trainer; return the digest of the checkpoint."""
    seed_everything(0, verbose=False)
    torch.cuda.empty_cache()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = Trainer(
        accelerator="gpu",
        devices=1,
        precision=args.precision,
        deterministic=True,
        gradient_clip_val=10.0,
        max_epochs=1,
        callbacks=callbacks,
        **quiet,
    )
    loader: DataLoader[Any] = DataLoader(Cycle(batches, length), batch_size=None, pin_memory=True)  # type: ignore[arg-type]
    trainer.fit(Detector(list(classes), warmup_epochs=0.5), loader)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "end.ckpt")
        trainer.save_checkpoint(path)
        return outcome_of(path)


def collect(args: argparse.Namespace, batch: int, steps: int) -> tuple[list[Batch], list[str]]:
    """Return real batches of the training recipe, in memory."""
    data = datamodule(args, batch)
    data.setup("fit")
    seed_everything(0, verbose=False)
    found: list[Batch] = []
    while len(found) < steps:
        found += [item for item in data.train_dataloader() if len(item.images) == batch]
    return found[:steps], list(data.class_names)


def datamodule(args: argparse.Namespace, batch: int) -> DataModule:
    """Return the data of the benchmark."""
    part = {"train_images": "images", "train_annotations": args.annotations}
    return DataModule(root=args.folder, image_size=args.size, batch_size=batch, workers=args.workers, **part)


def steps(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Show parity of every arm, then alternate windows of every arm within one fit."""
    batches, classes = collect(args, batch, 20)
    arms = [NATIVE, *args.arms]
    figures: dict[str, Any] = {}
    reference: Outcome | None = None
    for arm in arms:
        meter, replays = Meter(args.parity), replays_of([arm])
        outcome = train(batches, args.parity + 3, classes, args, [*replays, meter])
        reference = reference or outcome
        if (place := first_difference(reference, outcome)) is not None:
            raise Red(f"parity is red: {arm}, batch {batch}: {place} differs. Nothing is timed, nothing is recorded.")
        figures[arm] = {
            "busy_ms": round(meter.busy_ms, 2),
            "kernels": meter.kernels,
            "reserved_mib": meter.reserved >> 20,
            "peak_mib": meter.peak >> 20,
            "setup_seconds": round(sum(replay.tally.setup_seconds for replay in replays), 3),
            "replayed": {replay.name: replay.tally.replayed for replay in replays},
        }
    parity = f"green: after {args.parity + 3} steps each arm has {len(reference or {})} equal places"
    replays = replays_of(arms)
    windows = Windows(arms, replays, args.warmup, args.window)
    train(batches, args.warmup + args.rounds * len(arms) * args.window, classes, args, [*replays, windows])
    for arm, times in windows.ms.items():
        ratios = [native / taken for native, taken in zip(windows.ms[NATIVE], times, strict=True)]
        found = figures[arm]
        found |= {"step_ms": summary(times), "times_faster": {**summary(ratios), "interval_95": interval(ratios)}}
        print(
            f"batch {batch} {arm:14} step {found['step_ms']['median']:6.1f} ms, busy {found['busy_ms']:5.1f}, "
            f"{found['times_faster']['median']:.2f}x {found['times_faster']['interval_95']}, "
            f"reserved {found['reserved_mib']} MiB, peak {found['peak_mib']}, set-up {found['setup_seconds']} s",
            flush=True,
        )
    return {"batch": batch, "parity": parity, "arms": figures}


def routing(args: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of host time that deciding costs in each call, of a recording's launch and copies nothing."""
    device = torch.device("cuda")
    module = Detector([str(i) for i in range(80)]).to(device).train()
    images = torch.zeros(4, 3, 320, 320, device=device)
    predictions = module.network(images)
    batch = collect(args, 4, 1)[0][0]
    targets = type(batch.targets)(*(x.to(device) for x in batch.targets))
    costs = {}
    for name, part, call in (
        ("NetworkReplay", module.network, (images,)),
        ("LossReplay", module.objective, (predictions, targets)),
    ):
        certificate, growable = Certificate(part), (1,) if len(call) > 1 else ()

        def decide(certificate: Any = certificate, call: Any = call, growable: Any = growable) -> None:
            certificate.change()
            Call(call, {}, growable)

        costs[name] = round(min(timeit.repeat(decide, number=100, repeat=5)) * 10, 4)
    return costs


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), help="accelerations, those of one arm joined by +")
    add_windows(parser)
    args = parser.parse_args()
    quieten()
    record = begin(args, "steps", "arms", "parity", "warmup", "window", "rounds")
    record["routing_ms"] = routing(args)
    print("routing", record["routing_ms"], "ms")
    for batch in args.batch:
        record["rows"].append(steps(args, batch))
        write(args, record)


if __name__ == "__main__":
    main()

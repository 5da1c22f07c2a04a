"""Compare accelerated with native training steps: parity first, then time. A red parity stops the measurement.

    python benchmarks/accelerated_steps.py FOLDER --batch 4 8 16 32 64 128 --host --record steps.json --plot s.png
    python benchmarks/accelerated_steps.py FOLDER --arms GradientNormReplay UpdateReplay GradientNormReplay+UpdateReplay

Trains each arm through a real Trainer from the same seed, with progress bar, log and workers, over real batches that
are kept in memory, and demands equal checkpoints. Then it alternates windows of native and of replayed steps within one
fit. An arm is one acceleration, or several joined by ``+``; arms that exclude each other get a fit each. ``--host``
times and profiles what the host does in a step that replays. Without a GPU it only shows that it works.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from meters import NATIVE, Host, Meter, Routing, Windows
from record import Red, add_windows, begin, parser_of, quieten, write
from torch.utils.data import DataLoader

import lucid_accel
from lucid_accel import Replay
from lucid_accel.bench.figures import interval, summary
from lucid_accel.bench.plot import draw_steps
from lucid_accel.bench.process import outcome_of
from lucid_accel.bench.rounds import members
from lucid_accel.testing import Outcome, cpu_engine, first_difference
from lucid_core.data.module import DataModule
from lucid_core.module import Detector
from lucid_core.progress import ProgressBar
from lucid_core.types import Batch


def replays_of(arms: Sequence[str]) -> list[Replay]:
    """Return the accelerations that these arms name, each once."""
    names = dict.fromkeys(name for arm in arms for name in members(arm))
    return [getattr(lucid_accel, name)(strict=True, keep="always") for name in names]


def fits_of(arms: Sequence[str]) -> list[list[str]]:
    """Put arms together whose accelerations get along in one fit."""
    fits: list[list[str]] = []
    for arm in arms:
        home = next((fit for fit in fits if _get_along(replays_of([*fit, arm]))), None)
        if home is None:
            fits.append([arm])
        else:
            home.append(arm)
    return fits


def _get_along(replays: Sequence[Replay]) -> bool:
    claims = [f"{path}." for replay in replays for path in replay.claims]
    return not any(one.startswith(other) for i, one in enumerate(claims) for j, other in enumerate(claims) if i != j)


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
    on_gpu = torch.cuda.is_available()
    seed_everything(0, verbose=False)
    torch.cuda.empty_cache()
    loader: DataLoader[Any] = DataLoader(
        Cycle(batches, length),  # type: ignore[arg-type]
        batch_size=None,
        pin_memory=on_gpu,
        num_workers=args.workers,
    )
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        # The bar is drawn as in any run, but not on the screen.
        with redirect_stdout(nowhere), redirect_stderr(nowhere), nullcontext() if on_gpu else cpu_engine():
            trainer = Trainer(
                accelerator="gpu" if on_gpu else "cpu",
                devices=1,
                precision=args.precision,
                deterministic=True,
                gradient_clip_val=10.0,
                max_epochs=1,
                callbacks=[ProgressBar(), *callbacks],
                logger=CSVLogger(folder),
                enable_checkpointing=False,
                enable_model_summary=False,
            )
            trainer.fit(Detector(list(classes), warmup_epochs=0.5), loader)
        trainer.save_checkpoint(Path(folder, "end.ckpt"))
        return outcome_of(Path(folder))


def collect(args: argparse.Namespace, batch: int, steps: int) -> tuple[list[Batch], list[str]]:
    """Return real batches of the training recipe, in memory."""
    part = {"train_images": "images", "train_annotations": args.annotations}
    data = DataModule(root=args.folder, image_size=args.size, batch_size=batch, workers=args.workers, **part)
    data.setup("fit")
    seed_everything(0, verbose=False)
    found: list[Batch] = []
    while len(found) < steps:
        found += [item for item in data.train_dataloader() if len(item.images) == batch]
    return found[:steps], list(data.class_names)


def steps(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Show parity of every arm, then alternate windows of the arms that get along, each time with native ones."""
    batches, classes = collect(args, batch, 20)
    figures: dict[str, Any] = {}
    reference: Outcome | None = None
    for arm in (NATIVE, *args.arms):
        meter, routing, replays = Meter(args.parity), Routing(), replays_of([arm])
        outcome = train(batches, args.parity + 3, classes, args, [*replays, meter, routing])
        reference = reference or outcome
        if (place := first_difference(reference, outcome)) is not None:
            raise Red(f"parity is red: {arm}, batch {batch}: {place} differs. Nothing is timed, nothing is recorded.")
        figures[arm] = {
            "busy_ms": round(meter.busy_ms, 2),
            "kernels": meter.kernels,
            "reserved_mib": meter.reserved >> 20,
            "reserved_ratio": _ratio(meter.reserved >> 20, figures.get(NATIVE, {}).get("reserved_mib")),
            "peak_mib": meter.peak >> 20,
            "setup_seconds": round(sum(replay.tally.setup_seconds for replay in replays), 3),
            "replayed": {replay.name: replay.tally.replayed for replay in replays},
            "routing_ms": summary(routing.ms[args.parity // 2 :]),
        }
    parity = f"green: after {args.parity + 3} steps each arm has {len(reference or {})} equal places"
    for fit in fits_of(args.arms):
        arms, replays = [NATIVE, *fit], replays_of(fit)
        windows = Windows(arms, replays, args.warmup, args.window)
        train(batches, args.warmup + args.rounds * len(arms) * args.window, classes, args, [*replays, windows])
        for arm in arms:
            times = windows.ms[arm]
            ratios = [native / taken for native, taken in zip(windows.ms[NATIVE], times, strict=True)]
            # Native steps are those of the first fit; times faster are over the native ones of the same fit.
            figures[arm] = {
                "step_ms": summary(times),
                "over_busy": _ratio(summary(times)["median"], figures[arm]["busy_ms"]),
                "times_faster": {**summary(ratios), "interval_95": interval(ratios)},
                **figures[arm],
            }
    for arm, found in figures.items():
        if args.host and arm != NATIVE:
            host = Host(args.warmup)
            train(batches, host.length, classes, args, [*replays_of([arm]), host])
            found |= host.figures()
        say(batch, arm, found)
    return {"batch": batch, "parity": parity, "arms": figures}


def _ratio(value: float, base: float | None) -> float | None:
    return round(value / base, 3) if base else None


def say(batch: int, arm: str, found: dict[str, Any]) -> None:
    """Print the figures of one arm."""
    host = (
        f", host {found['host_ms']['median']:.2f} ms, dry {found['dry_ms']['median']:.2f}" if "host_ms" in found else ""
    )
    print(
        f"batch {batch} {arm:14} step {found['step_ms']['median']:6.1f} ms, busy {found['busy_ms']:5.1f} "
        f"(step {found['over_busy']} times it), "
        f"{found['times_faster']['median']:.2f}x {found['times_faster']['interval_95']}, "
        f"reserved {found['reserved_mib']} MiB ({found['reserved_ratio']} times native), peak {found['peak_mib']}, "
        f"set-up {found['setup_seconds']} s, routing {found['routing_ms']['median']:.2f} ms{host}",
        flush=True,
    )
    for entry in found.get("host_functions", ()):
        print(f"    {entry['own_ms']:8.3f} ms {entry['calls']:8.1f}x {entry['function']}", flush=True)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--arms", nargs="+", default=["StepReplay"], help="accelerations, those of one arm joined by +")
    parser.add_argument("--plot", type=Path, help="draw steps over batch sizes, as PNG")
    parser.add_argument(
        "--host", action="store_true", help="time and profile what the host does in a step that replays"
    )
    add_windows(parser)
    args = parser.parse_args()
    quieten()
    record = begin(args, "steps", "arms", "parity", "warmup", "window", "rounds")
    for batch in args.batch:
        record["rows"].append(steps(args, batch))
        write(args, record)
    if args.plot:
        draw_steps(record["rows"], f"one training step on {record['card']}, {args.size} px", args.plot)


if __name__ == "__main__":
    main()

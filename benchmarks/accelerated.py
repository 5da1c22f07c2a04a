"""Compare accelerated training with native training: parity first, then time. A red parity stops the measurement.

    python benchmarks/accelerated.py steps FOLDER --batch 4 64 --record steps.json
    python benchmarks/accelerated.py fits FOLDER --batch 4 16 --record fits.json

``steps`` trains each arm through a real Trainer from the same seed, over real batches that are kept in memory, and
demands equal checkpoints. Then it alternates windows of native and of replayed steps within one fit. ``fits``
alternates whole ``lucid fit`` commands in fresh processes: set-up, recording, loading, validation and checkpoints
included.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from lucid_accel import LossReplay, NetworkReplay, Replay
from lucid_accel.testing import digest, first_difference
from lucid_core.data.module import DataModule
from lucid_core.module import Detector
from lucid_core.types import Batch

REPLAYS: dict[str, type[Replay]] = {"LossReplay": LossReplay, "NetworkReplay": NetworkReplay}
ARMS = {"native": (), "NetworkReplay": ("NetworkReplay",), "LossReplay": ("LossReplay",), "both": tuple(REPLAYS)}
#: What of a checkpoint has to agree: everything but file names and versions.
PARTS = ("state_dict", "ema", "optimizer_states", "lr_schedulers", "loops", "global_step", "epoch", "MixedPrecision")


class Red(SystemExit):
    """Parity does not hold: nothing is timed."""


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

    def __init__(self, replays: Sequence[Replay], warmup: int, window: int) -> None:
        self.replays, self.warmup, self.window = replays, warmup, window
        self.ms: dict[str, list[float]] = {arm: [] for arm in ARMS}
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        number, step = divmod(batch_idx - self.warmup, self.window)
        if batch_idx >= self.warmup and step == 0:
            for replay in self.replays:
                replay.resume() if replay.name in ARMS[self._arm(number)] else replay.suspend()
        if batch_idx >= self.warmup and step == 2:
            torch.cuda.synchronize()
            self._start = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        number, step = divmod(batch_idx - self.warmup, self.window)
        if batch_idx >= self.warmup and step == self.window - 1:
            torch.cuda.synchronize()
            self.ms[self._arm(number)].append((time.perf_counter() - self._start) * 1e3 / (self.window - 2))

    @staticmethod
    def _arm(number: int) -> str:
        turn, place = divmod(number, len(ARMS))
        return list(ARMS)[(place + turn) % len(ARMS)]


class Cycle:
    """A few batches, over and over."""

    def __init__(self, batches: Sequence[Batch], length: int) -> None:
        self.batches, self.length = batches, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        return self.batches[index % len(self.batches)]


def busy(profiler: profile, steps: int) -> tuple[float, int]:
    """Return per step the milliseconds in which the device computes, and the number of its kernels."""
    spans = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    total, end = 0.0, float("-inf")
    for start, stop, _ in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    kernels = sum(not name.startswith("Mem") for _, _, name in spans)
    return total / 1e3 / steps, kernels // steps


def train(
    batches: Sequence[Batch], length: int, classes: Sequence[str], args: argparse.Namespace, callbacks: list[Callback]
) -> dict[str, str]:
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
        checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    return digest({part: checkpoint[part] for part in PARTS if part in checkpoint})


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
    result: dict[str, Any] = {"batch": batch}
    reference: dict[str, str] | None = None
    for arm, names in ARMS.items():
        meter, replays = Meter(args.parity), [REPLAYS[name](strict=True) for name in names]
        outcome = train(batches, args.parity + 3, classes, args, [*replays, meter])
        reference = reference or outcome
        if (place := first_difference(reference, outcome)) is not None:
            raise Red(f"parity is red: {arm}, batch {batch}: {place} differs. Nothing is timed, nothing is recorded.")
        result[arm] = {
            "busy_ms": round(meter.busy_ms, 2),
            "kernels": meter.kernels,
            "reserved_mib": meter.reserved >> 20,
            "peak_mib": meter.peak >> 20,
            "setup_seconds": round(sum(replay.tally.setup_seconds for replay in replays), 3),
            "replayed": {replay.name: replay.tally.replayed for replay in replays},
        }
    result["parity"] = f"green: after {args.parity + 3} steps each arm has {len(reference or {})} equal places"
    replays = [kind(strict=True) for kind in REPLAYS.values()]
    windows = Windows(replays, args.warmup, args.window)
    train(batches, args.warmup + args.rounds * len(ARMS) * args.window, classes, args, [*replays, windows])
    for arm, times in windows.ms.items():
        ratios = [native / taken for native, taken in zip(windows.ms["native"], times, strict=True)]
        result[arm] |= {"step_ms": summary(times), "times_faster": {**summary(ratios), "interval_95": interval(ratios)}}
        figures = result[arm]
        print(
            f"batch {batch} {arm:14} step {figures['step_ms']['median']:6.1f} ms, busy {figures['busy_ms']:5.1f}, "
            f"{figures['times_faster']['median']:.2f}x {figures['times_faster']['interval_95']}, "
            f"reserved {figures['reserved_mib']} MiB, peak {figures['peak_mib']}, set-up {figures['setup_seconds']} s",
            flush=True,
        )
    return result


def routing(args: argparse.Namespace) -> dict[str, float]:
    """Return milliseconds of host time that deciding costs in each call, of a recording's launch and copies nothing."""
    from lucid_accel.graphs.call import Call
    from lucid_accel.graphs.certificate import Certificate

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


def fits(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Alternate whole commands."""
    seconds: dict[str, list[float]] = {"native": [], "accelerated": []}
    reports, reference = [], None
    for pair in range(args.pairs):
        for arm in ("native", "accelerated") if pair % 2 == 0 else ("accelerated", "native"):
            with tempfile.TemporaryDirectory() as root:
                taken, outcome, report = command(args, batch, arm, Path(root))
            reference = reference or outcome
            if (place := first_difference(reference, outcome)) is not None:
                raise Red(f"parity is red: {arm} fit of pair {pair}, batch {batch}: {place} differs")
            seconds[arm].append(taken)
            reports += [report] if report else []
            print(f"batch {batch} pair {pair} {arm:12} {taken:6.1f} s", flush=True)
    saved = [n - a for n, a in zip(seconds["native"], seconds["accelerated"], strict=True)]
    return {
        "batch": batch,
        "parity": f"green: {2 * args.pairs} fits, each with {len(reference or {})} equal places",
        "seconds": {arm: summary(taken) for arm, taken in seconds.items()},
        "seconds_saved": {**summary(saved), "interval_95": interval(saved)},
        "percent_saved": round(100 * statistics.median(saved) / statistics.median(seconds["native"]), 2),
        "report_of_the_last_fit": reports[-1],
    }


def command(args: argparse.Namespace, batch: int, arm: str, root: Path) -> tuple[float, dict[str, str], Any]:
    """Run one ``lucid fit``; return its seconds, what came of it, and the accelerations' report."""
    line = [sys.executable, "-m", "lucid_core", "fit", "--config", "detect", "--data.root", args.folder]
    for split, named in (("train", args.annotations), ("val", args.val_annotations)):
        line += [f"--data.{split}_images", "images", f"--data.{split}_annotations", named]
    line += ["--data.batch_size", str(batch), "--data.image_size", str(args.size), "--data.workers", str(args.workers)]
    line += ["--trainer.max_epochs", str(args.epochs), "--trainer.precision", args.precision]
    line += ["--trainer.default_root_dir", str(root), "--trainer.log_every_n_steps", "1"]
    if arm == "accelerated":
        for name in args.accelerations:
            line += [f"--trainer.callbacks+={name}", "--trainer.callbacks.strict=true"]
    start = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}\n{done.stderr[-3000:]}")
    run = root / "runs" / "version_0"
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=False)
    outcome = digest({part: checkpoint[part] for part in PARTS if part in checkpoint})
    with (run / "metrics.csv").open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            values = {name: value for name, value in row.items() if value and not name.startswith("accel/")}
            if set(values) - {"step", "epoch"}:
                outcome |= digest(values, f"row {number} of the log")
    report = run / "accelerations.json"
    return taken, outcome, json.loads(report.read_text()) if report.exists() else None


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median and range."""
    return {name: round(f(values), 3) for name, f in (("median", statistics.median), ("min", min), ("max", max))}


#: Student's t for 95 % in the middle, by degrees of freedom.
T95 = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


def interval(values: Sequence[float]) -> list[float]:
    """Return the 95 % confidence interval of the mean."""
    mean, n = statistics.fmean(values), len(values)
    half = T95[min(n - 1, len(T95) - 1)] * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return [round(mean - half, 3), round(mean + half, 3)]


def environment(args: argparse.Namespace) -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return {
        "commit": args.commit or subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
        "card": torch.cuda.get_device_name(),
        "driver": subprocess.check_output(query, text=True).strip(),
        "versions": {
            "torch": torch.__version__,
            "lightning": lightning.__version__,
            "python": platform.python_version(),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("steps", "fits"))
    parser.add_argument("folder", help="a COCO folder, its pictures below images/")
    parser.add_argument("--annotations", default="annotations/instances_train2017.json", help="below FOLDER")
    parser.add_argument("--val-annotations", default="annotations/instances_val2017.json", help="below FOLDER")
    parser.add_argument("--batch", type=int, nargs="+", default=[4])
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--parity", type=int, default=40, help="steps after which checkpoints are compared")
    parser.add_argument("--warmup", type=int, default=130, help="steps before windows begin, the second proof included")
    parser.add_argument("--window", type=int, default=10, help="steps of a window, the first two not timed")
    parser.add_argument("--rounds", type=int, default=8, help="windows of each arm")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--accelerations", nargs="+", default=["LossReplay", "NetworkReplay"])
    parser.add_argument("--record", type=Path)
    parser.add_argument("--commit", help="where the working tree is no checkout")
    args = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning)
    measure = {"steps": steps, "fits": fits}[args.what]
    rows = [measure(args, batch) for batch in args.batch]
    settings = {name: getattr(args, name) for name in ("size", "precision", "workers", "annotations")}
    record = {"what": args.what, **environment(args), "settings": settings, "rows": rows}
    if args.what == "steps":
        record["settings"] |= {name: getattr(args, name) for name in ("parity", "warmup", "window", "rounds")}
        record["routing_ms"] = routing(args)
        print("routing", record["routing_ms"])
    else:
        record["settings"] |= {"pairs": args.pairs, "epochs": args.epochs, "accelerations": args.accelerations}
    if args.record:
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

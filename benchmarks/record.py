"""What benchmarks of accelerations share: which bytes must agree, how figures are summed up, what a record says."""

from __future__ import annotations

import argparse
import json
import logging
import math
import platform
import statistics
import subprocess
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.profiler import profile

from lucid_accel.testing import Outcome, digest

#: What of a checkpoint has to agree: everything but file names and versions.
PARTS = ("state_dict", "ema", "optimizer_states", "lr_schedulers", "loops", "global_step", "epoch", "MixedPrecision")


class Red(SystemExit):
    """Parity does not hold: nothing is timed."""


def device_events(profiler: profile) -> list[Any]:
    """Return what ran on the device while ``profiler`` was on: kernels, copies and fills."""
    cuda = torch.autograd.DeviceType.CUDA
    return [x for x in profiler.events() or [] if x.device_type == cuda and not x.is_user_annotation]


def busy(profiler: profile, steps: int) -> tuple[float, int]:
    """Return per step the milliseconds in which the device computes, and the number of its kernels."""
    events = device_events(profiler)
    total, end = 0.0, float("-inf")
    for start, stop in sorted((x.time_range.start, x.time_range.end) for x in events):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total / 1e3 / steps, sum(not x.name.startswith("Mem") for x in events) // steps


def outcome_of(path: Path) -> Outcome:
    """Return the digest of what has to agree of a checkpoint."""
    checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    return digest({part: checkpoint[part] for part in PARTS if part in checkpoint})


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
    """Return where a record was made."""
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


def begin(args: argparse.Namespace, what: str, *named: str) -> dict[str, Any]:
    """Return a record without rows: what it is of, where it was made, and the options that are named."""
    settings = {name: getattr(args, name) for name in ("size", "precision", "workers", "annotations", *named)}
    return {"what": what, **environment(args), "settings": settings, "rows": []}


def quieten() -> None:
    """Keep Lightning's remarks and advice from the screen."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=UserWarning)


def add_windows(parser: argparse.ArgumentParser) -> None:
    """Add the options of benchmarks that alternate windows within one fit."""
    parser.add_argument("--parity", type=int, default=40, help="steps after which checkpoints are compared")
    parser.add_argument("--warmup", type=int, default=130, help="steps before windows begin, the second proof included")
    parser.add_argument("--window", type=int, default=10, help="steps of a window, the first two not timed")
    parser.add_argument("--rounds", type=int, default=8, help="windows of each arm")


def write(args: argparse.Namespace, record: dict[str, Any]) -> None:
    """Write what there is of a record so far."""
    if args.record:
        args.record.write_text(json.dumps(record, indent=1) + "\n")


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0] if text else None)
    parser.add_argument("folder", help="a COCO folder, its pictures below images/")
    parser.add_argument("--annotations", default="annotations/instances_train2017.json", help="below FOLDER")
    parser.add_argument("--batch", type=int, nargs="+", default=[4])
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--precision", default="bf16-mixed")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--commit", help="where the working tree is no checkout")
    return parser

"""Compare accelerated with native ``lucid fit`` commands, whole and in fresh processes. Bytes that differ stop it.

    python benchmarks/accelerated_fits.py FOLDER --batch 4 16 --record fits.json

Each round has one native fit and one of every arm, in an order that turns from round to round. An arm is one
acceleration, or several joined by ``+``. Start-up, recording, loading, validation and checkpoints are part of the time.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from record import Red, begin, interval, outcome_of, parser_of, summary, write

from lucid_accel.testing import Outcome, digest, first_difference

NATIVE = "native"


def fits(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Let whole commands take turns."""
    arms = [NATIVE, *args.arms]
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    reports: dict[str, Any] = {}
    reference = None
    for turn in range(args.pairs):
        for place in range(len(arms)):
            arm = arms[(place + turn) % len(arms)]
            with tempfile.TemporaryDirectory() as root:
                taken, outcome, report = command(args, batch, arm, Path(root))
            reference = reference or outcome
            if (differs := first_difference(reference, outcome)) is not None:
                raise Red(f"parity is red: {arm} fit of round {turn}, batch {batch}: {differs} differs")
            seconds[arm].append(taken)
            reports[arm] = report
            print(f"batch {batch} round {turn} {arm:24} {taken:6.1f} s", flush=True)
    figures: dict[str, Any] = {}
    for arm, taken in seconds.items():
        saved = [n - a for n, a in zip(seconds[NATIVE], taken, strict=True)]
        figures[arm] = {"seconds": summary(taken)}
        if arm != NATIVE:
            figures[arm] |= {
                "seconds_saved": {**summary(saved), "interval_95": interval(saved)},
                "percent_saved": round(100 * statistics.median(saved) / statistics.median(seconds[NATIVE]), 2),
                "report_of_the_last_fit": reports[arm],
            }
    return {
        "batch": batch,
        "parity": f"green: {args.pairs * len(arms)} fits, each with {len(reference or {})} equal places",
        "arms": figures,
    }


def command(args: argparse.Namespace, batch: int, arm: str, root: Path) -> tuple[float, Outcome, Any]:
    """Run one ``lucid fit``; return its seconds, what came of it, and the accelerations' report."""
    line = [sys.executable, "-m", "lucid_core", "fit", "--config", "detect", "--data.root", args.folder]
    for split, named in (("train", args.annotations), ("val", args.val_annotations)):
        line += [f"--data.{split}_images", "images", f"--data.{split}_annotations", named]
    line += ["--data.batch_size", str(batch), "--data.image_size", str(args.size), "--data.workers", str(args.workers)]
    line += ["--trainer.max_epochs", str(args.epochs), "--trainer.precision", args.precision]
    line += ["--trainer.default_root_dir", str(root), "--trainer.log_every_n_steps", "1"]
    for name in arm.split("+") if arm != NATIVE else ():
        line += [f"--trainer.callbacks+={name}", "--trainer.callbacks.strict=true"]
    start = time.perf_counter()
    done = subprocess.run(line, capture_output=True, text=True)
    taken = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(line)}\n{done.stderr[-3000:]}")
    run = root / "runs" / "version_0"
    outcome = outcome_of(run / "checkpoints" / "last.ckpt")
    with (run / "metrics.csv").open() as file:
        for number, row in enumerate(csv.DictReader(file)):
            values = {name: value for name, value in row.items() if value and not name.startswith("accel/")}
            if set(values) - {"step", "epoch"}:
                outcome |= digest(values, f"row {number} of the log")
    report = run / "accelerations.json"
    return taken, outcome, json.loads(report.read_text()) if report.exists() else None


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--val-annotations", default="annotations/instances_val2017.json", help="below FOLDER")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--arms", nargs="+", default=["NetworkReplay+LossReplay"])
    args = parser.parse_args()
    record = begin(args, "fits", "val_annotations", "pairs", "epochs", "arms")
    for batch in args.batch:
        record["rows"].append(fits(args, batch))
        write(args, record)


if __name__ == "__main__":
    main()

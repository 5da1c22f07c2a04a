"""Compare accelerated with native fits at several batch sizes, as ``lucid-accel bench`` compares one run.

    python benchmarks/accelerated_fits.py FOLDER --batch 4 16 --record fits.json

Bytes that differ stop it, and so does an acceleration that replayed nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

from record import Red, begin, parser_of, write

from lucid_accel.bench.rounds import Comparison, Unequal
from lucid_accel.bench.words import idle, table


def fits(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Let whole fits take turns."""
    comparison = Comparison(options(args, batch), args.arms)
    try:
        for turn in range(args.pairs):
            for arm in comparison.order():
                print(f"batch {batch} round {turn} {arm:24} {comparison.fit(arm).seconds:6.1f} s", flush=True)
    except Unequal as difference:
        raise Red(f"parity is {difference}. Nothing is recorded of batch {batch}.") from None
    for arm in comparison.fits if comparison.on_gpu else ():
        comparison.profile(arm)
    row = comparison.row()
    print(table(row))
    if nothing := idle(row):
        raise Red(f"these replayed nothing, so nothing is recorded of batch {batch}: {nothing}")
    return {"batch": batch, **row}


def options(args: argparse.Namespace, batch: int) -> list[str]:
    """Return the options of ``lucid fit``."""
    line = ["--config", "detect", "--data.root", args.folder]
    for split, named in (("train", args.annotations), ("val", args.val_annotations)):
        line += [f"--data.{split}_images", "images", f"--data.{split}_annotations", named]
    line += ["--data.batch_size", str(batch), "--data.image_size", str(args.size), "--data.workers", str(args.workers)]
    line += ["--trainer.max_epochs", str(args.epochs), "--trainer.precision", args.precision]
    return [*line, "--trainer.log_every_n_steps", "1"]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--val-annotations", default="annotations/instances_val2017.json", help="below FOLDER")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--arms", nargs="+", default=["AutoAccelerate"])
    args = parser.parse_args()
    record = begin(args, "fits", "val_annotations", "pairs", "epochs", "arms")
    for batch in args.batch:
        record["rows"].append(fits(args, batch))
        write(args, record)


if __name__ == "__main__":
    main()

"""Compare accelerated with native fits at several batch sizes, as ``lucid-accel bench`` compares one run.

    python benchmarks/accelerated_fits.py FOLDER --batch 4 16 --record fits.json

Bytes that differ stop it, and so does an acceleration that replayed nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from record import Red, begin, parser_of, write

from lucid_accel.bench.rounds import Comparison, Unequal
from lucid_accel.bench.words import idle, table


def fits(args: argparse.Namespace, batch: int) -> Iterator[dict[str, Any]]:
    """Let whole fits take turns; yield what is known after every round."""
    comparison = Comparison(options(args, batch), args.arms)
    try:
        for turn in range(args.pairs):
            for arm in comparison.order():
                print(f"batch {batch} round {turn} {arm:24} {comparison.fit(arm).seconds:6.1f} s", flush=True)
            row = comparison.row()
            if nothing := idle(row):
                raise Red(f"these replayed nothing, so nothing is recorded of batch {batch}: {nothing}")
            yield {"batch": batch, **row}
    except Unequal as difference:
        raise Red(f"parity is {difference}. Nothing is recorded of batch {batch}.") from None
    for arm in comparison.fits if comparison.on_gpu and not args.unprofiled else ():
        comparison.profile(arm)
    row = comparison.row()
    print(table(row))
    yield {"batch": batch, **row}


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
    parser.add_argument("--unprofiled", action="store_true", help="leave out the fit that profiles an arm")
    parser.add_argument("--at-once", type=int, default=1, help="such comparisons on this machine, for the record")
    args = parser.parse_args()
    record = begin(args, "fits", "val_annotations", "pairs", "epochs", "arms", "at_once")
    for batch in args.batch:
        before = record["rows"]
        try:
            for row in fits(args, batch):
                record["rows"] = [*before, row]
                write(args, record)
        except Red:
            record["rows"] = before
            write(args, record)
            raise


if __name__ == "__main__":
    main()

"""Compare accelerated with native fits at several batch sizes, as ``lucid-accel bench`` compares one run.

    python benchmarks/accelerated_fits.py FOLDER --batch 4 16 --at-once 5 --record fits.json

A round is one fit of each arm, one after the other, in an order that turns from round to round; ``--at-once`` of them
run side by side. Bytes that differ stop it, and so does an acceleration that replayed nothing.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from record import Red, begin, parser_of, write

from lucid_accel.bench.process import Failure, Fit
from lucid_accel.bench.rounds import Comparison, Unequal
from lucid_accel.bench.words import idle, table


def one_round(comparison: Comparison, batch: int, turn: int) -> dict[str, Fit]:
    """Run one fit of each arm."""
    arms = list(comparison.fits)
    found = {}
    for place in range(len(arms)):
        arm = arms[(place + turn) % len(arms)]
        try:
            found[arm] = comparison.launch(arm)
        except Failure as failure:
            raise Red(f"batch {batch} {arm}: a fit {failure}\n{failure.said}") from None
        print(f"batch {batch} round {turn} {arm:24} {found[arm].seconds:6.1f} s", flush=True)
    return found


def row_of(comparison: Comparison, found: dict[str, Fit], batch: int) -> dict[str, Any]:
    """Return the figures so far, after one round more, if its bytes are those of the first native fit."""
    try:
        # The native one first, wherever it was in its round.
        for arm in comparison.fits:
            comparison.add(arm, found[arm])
    except Unequal as difference:
        raise Red(f"parity is {difference}. Nothing is recorded of batch {batch}.") from None
    row = comparison.row()
    if nothing := idle(row):
        raise Red(f"these replayed nothing, so nothing is recorded of batch {batch}: {nothing}")
    return row


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
    parser.add_argument("--at-once", type=int, default=1, help="rounds that run side by side")
    args = parser.parse_args()
    record = begin(args, "fits", "val_annotations", "pairs", "epochs", "arms", "at_once")
    comparisons = {batch: Comparison(options(args, batch), args.arms) for batch in args.batch}
    rows: dict[int, dict[str, Any]] = {}

    def note(batch: int, row: dict[str, Any] | None) -> None:
        rows[batch] = {"batch": batch, **row} if row else {}
        record["rows"] = [rows[size] for size in args.batch if rows.get(size)]
        write(args, record)

    with ThreadPoolExecutor(args.at_once) as pool:
        turns = [(batch, turn) for turn in range(args.pairs) for batch in args.batch]
        rounds = {pool.submit(one_round, comparisons[batch], batch, turn): batch for batch, turn in turns}
        try:
            for done in as_completed(rounds):
                batch = rounds[done]
                note(batch, row_of(comparisons[batch], done.result(), batch))
        except Red:
            note(batch, None)
            raise
        finally:
            pool.shutdown(cancel_futures=True)
    for batch, comparison in comparisons.items():
        for arm in comparison.fits if comparison.on_gpu and not args.unprofiled else ():
            comparison.profile(arm)
        note(batch, comparison.row())
        print(table(comparison.row()))


if __name__ == "__main__":
    main()

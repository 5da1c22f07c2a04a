"""What ``lucid data tiles`` does and says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from typing import Any, get_args

from tqdm import tqdm

from lucid_core.data.check import Verdict
from lucid_core.data.layout import Split, open_split
from lucid_core.data.problems import Problem, summarise
from lucid_core.data.records import DataSet, match_classes
from lucid_core.data.scan import PictureScan, show_progress
from lucid_core.data.tiles import Cutter, write_tiles
from lucid_core.data.types import DataError, NoSplit

__all__ = ["tiles"]


def tiles(options: argparse.Namespace) -> int:
    """Cut a data set, say what became of it, and return the exit status.

    Args:
        options: ``root``, ``out``, ``layout``, ``split``, ``patch``, ``overlap``, ``suffix``, ``workers``, ``limit``.
    """
    try:
        cutter = Cutter(options.patch, options.overlap, options.suffix, options.workers, _progress)
    except ValueError as error:
        print(f"lucid: error: {error}", file=sys.stderr)
        return 2
    try:
        splits = _read(options)
        counts, lost = write_tiles(splits, options.out, cutter)
    except DataError as error:
        print(f"lucid: error: {error}", file=sys.stderr)
        return Verdict.UNUSABLE
    problems: list[Problem] = [*lost, *(one for data in splits.values() for one in data.problems)]
    for split, count in counts.items():
        print(
            f"{split}: {count.images} images, {count.tiles} tiles, {count.empty} of them empty, {count.objects} "
            f"objects, {count.difficult} of them difficult"
        )
        if count.unseen:
            print(
                f"  {count.unseen} objects of the images are shown to 70 % by no tile, and so count in no AP: enlarge "
                f"--overlap, or --patch, until few are"
            )
    for line in summarise(problems, options.limit):
        print(f"  {line}")
    print(f"{options.out}: train with --data.root {options.out}")
    return Verdict.FAULTS if any(one.kind.effect.is_fault for one in problems) else Verdict.CLEAN


def _read(options: argparse.Namespace) -> dict[str, DataSet]:
    """Read the splits that are asked for, or those that are there, with the classes of the first."""
    splits: dict[str, DataSet] = {}
    scan = PictureScan(options.workers, progress=show_progress)
    missing = None
    for split in get_args(Split):
        if options.split and split not in options.split:
            continue
        try:
            data = open_split(options.root, split, options.layout, scan=scan, task="obb")
        except NoSplit as error:
            if options.split:
                raise
            missing = error
            continue
        splits[split] = match_classes(next(iter(splits.values()), data), data)
    if not splits:
        raise missing or DataError(f"{options.root}: no split to cut")
    return splits


def _progress(cutting: Iterable[Any], count: int) -> Iterable[Any]:
    """Show a bar on a terminal, once it has lasted for some seconds."""
    bar: Iterable[Any] = tqdm(cutting, "cutting", count, unit=" pictures", delay=2, leave=False, disable=None)
    return bar

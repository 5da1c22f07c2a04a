"""The command ``lucid data check``: it needs no torch."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from lucid_core.arguments import Parser
from lucid_core.data.check import check
from lucid_core.data.layout import Layout, Split
from lucid_core.data.scan import PictureScan, show_progress
from lucid_core.data.types import Task

__all__ = ["main"]

EPILOG = """exit status:
  0  clean; remarks at most
  1  the check itself failed
  2  the command line was not understood
  3  usable, but training would leave something out or change it
  4  unusable: a split cannot be read; without train or val, training would not start
"""


def main(argv: Sequence[str]) -> int:
    """Run ``lucid data`` and return its exit status.

    Args:
        argv: What follows ``data`` on the command line.
    """
    options = _parser().parse_args(argv)
    try:
        return _check(options)
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if os.environ.get("LUCID_DEBUG"):
            raise
        print(f"lucid: error: {' '.join(str(error).split())} (LUCID_DEBUG=1 shows where)", file=sys.stderr)
        return 1


def _check(options: argparse.Namespace) -> int:
    places = {split: (getattr(options, f"{split}_images"), getattr(options, f"{split}_annotations")) for split in _OWN}
    scan = PictureScan(options.workers, options.decode, show_progress)
    result = check(options.root, options.split, options.layout, places, scan, options.task)
    text = json.dumps(result.as_json(), indent=2) if options.json else result.text(options.limit)
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Whoever reads, such as `head`, has seen enough. Python would complain once more as it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return result.verdict


#: Splits whose places can be given, as for training.
_OWN = ("train", "val")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lucid data", description="Look after a data set.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="check", parser_class=Parser)
    one = commands.add_parser(
        "check",
        help="say what a data set holds and what is wrong with it",
        description="Say what a COCO, YOLO or DOTA data set holds and what is wrong with it. The verdicts are those of "
        "training: it reads data with the same code.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    one.add_argument("root", type=Path, metavar="ROOT", help="the data set's folder, or its data.yaml")
    one.add_argument("--layout", choices=get_args(Layout), default="auto", help="default: the one that is there")
    one.add_argument(
        "--split",
        action="append",
        choices=get_args(Split),
        default=[],
        help="check this split only; may be repeated (default: train, val, and test where there is one)",
    )
    one.add_argument(
        "--task", choices=get_args(Task), default="detect", help="judge labels by what it needs (default: detect)"
    )
    for split in _OWN:
        one.add_argument(f"--{split}_images", metavar="DIR", help=f"as --data.{split}_images of lucid fit")
        one.add_argument(f"--{split}_annotations", metavar="JSON", help=f"as --data.{split}_annotations of lucid fit")
    one.add_argument("--decode", action="store_true", help="decode every picture in full, which takes longer")
    one.add_argument("--workers", type=_count, default=4, metavar="N", help="threads that read pictures (default: 4)")
    one.add_argument(
        "--limit", type=_count, default=10, metavar="N", help="problems of each kind to print (default: 10)"
    )
    one.add_argument("--json", action="store_true", help="print everything found as JSON instead")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value

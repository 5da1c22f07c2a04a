"""The commands ``lucid data check`` and ``lucid data tiles``: they need no torch."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

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

TILES_EPILOG = """exit status:
  0  all pictures are cut
  1  cutting itself failed, such as on a full disk; nothing is left behind
  2  the command line was not understood
  3  cut, but pictures or objects of the source are left out or changed
  4  unusable: a split cannot be read, or the folder to make is not empty
"""


def main(argv: Sequence[str]) -> int:
    """Run ``lucid data`` and return its exit status.

    Args:
        argv: What follows ``data`` on the command line.
    """
    options = _parser().parse_args(argv)
    try:
        status = int(options.run(options))
        # A disk that is full is told here, and not by Python as it ends.
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if os.environ.get("LUCID_DEBUG"):
            raise
        print(f"lucid: error: {' '.join(str(error).split())} (LUCID_DEBUG=1 shows where)", file=sys.stderr)
        return 1


def _tiles(options: argparse.Namespace) -> int:
    # OpenCV, which the check does without.
    from lucid_core.data.tiles_command import tiles

    return tiles(options)


def _check(options: argparse.Namespace) -> int:
    places = {split: (getattr(options, f"{split}_images"), getattr(options, f"{split}_annotations")) for split in _OWN}
    scan = PictureScan(options.workers, options.decode, show_progress)
    result = check(options.root, options.split, options.layout, places, scan, options.task)
    text = json.dumps(result.as_json(), indent=2) if options.json else result.text(options.limit)
    print(text)
    return result.verdict


#: Splits whose places can be given, as for training.
_OWN = ("train", "val")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="lucid data", description="Look after a data set.", allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="check|tiles", parser_class=Parser)
    one = commands.add_parser(
        "check",
        help="say what a data set holds and what is wrong with it",
        description="Say what a COCO, YOLO or DOTA data set holds and what is wrong with it. The verdicts are those of "
        "training: it reads data with the same code.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    one.set_defaults(run=_check)
    _add_source(one, "check this split only; may be repeated (default: train, val, and test where there is one)")
    one.add_argument(
        "--task", choices=get_args(Task), default="detect", help="judge labels by what it needs (default: detect)"
    )
    for split in _OWN:
        one.add_argument(f"--{split}_images", metavar="DIR", help=f"as --data.{split}_images of lucid fit")
        one.add_argument(f"--{split}_annotations", metavar="JSON", help=f"as --data.{split}_annotations of lucid fit")
    one.add_argument("--decode", action="store_true", help="decode every picture in full, which takes longer")
    one.add_argument("--workers", type=_count, default=4, metavar="N", help="threads that read pictures (default: 4)")
    one.add_argument("--json", action="store_true", help="print everything found as JSON instead")
    _add_tiles(commands)
    return parser


def _add_tiles(commands: Any) -> None:
    one = commands.add_parser(
        "tiles",
        help="cut large pictures with oriented boxes into overlapping tiles",
        description="Cut large pictures with oriented boxes (DOTA text, YOLO or COCO) into a COCO data set of tiles. "
        "An object of which less than 70 % is in a tile is marked difficult there. Every tile notes its "
        "source_image and window.",
        epilog=TILES_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    one.set_defaults(run=_tiles)
    _add_source(one, "cut this split only; may be repeated (default: those that are there)")
    one.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    one.add_argument("--patch", type=_count, default=1024, metavar="PIXELS", help="side of a tile (default: 1024)")
    one.add_argument("--overlap", type=int, default=200, metavar="PIXELS", help="of neighbouring tiles (default: 200)")
    one.add_argument(
        "--suffix", choices=(".png", ".jpg"), default=".png", help="of the tiles; .jpg is smaller and loses a little"
    )
    one.add_argument("--workers", type=_count, default=4, metavar="N", help="threads that cut (default: 4)")


def _add_source(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument("root", type=Path, metavar="ROOT", help="the data set's folder, or its data.yaml")
    parser.add_argument("--layout", choices=get_args(Layout), default="auto", help="default: the one that is there")
    parser.add_argument("--split", action="append", choices=get_args(Split), default=[], help=split)
    parser.add_argument(
        "--limit", type=_count, default=10, metavar="N", help="problems of each kind to print (default: 10)"
    )


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value

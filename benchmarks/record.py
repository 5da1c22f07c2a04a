"""What benchmarks of accelerations share: their options, and what a record says before its rows."""

from __future__ import annotations

import argparse
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from lucid_accel.bench.environment import environment


class Red(SystemExit):
    """Parity does not hold: nothing is timed."""


def begin(args: argparse.Namespace, what: str, *named: str) -> dict[str, Any]:
    """Return a record without rows: what it is of, where it was made, and the options that are named."""
    settings = {name: getattr(args, name) for name in ("size", "precision", "workers", "annotations", *named)}
    return {"what": what, **made(args.commit), "settings": settings, "rows": []}


def made(commit: str | None) -> dict[str, Any]:
    """Return where a record is made; ``commit`` is for a working tree that is no checkout."""
    found = environment(torch.cuda.get_device_name() if torch.cuda.is_available() else None)
    return {**found, "commit": commit or found["commit"]}


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

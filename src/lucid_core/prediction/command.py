"""The command ``lucid predict``. What it is called with is checked before torch is imported."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from lucid_core.arguments import Parser
from lucid_core.prediction.sources import PictureFile, SourceError, find_pictures

__all__ = ["main"]

#: The exit status of a prediction that had to leave pictures out.
SOME_SKIPPED = 3
#: Pictures left out that are named on the screen; all of them are in images.json.
NAMED = 20

DESCRIPTION = """\
Find objects in pictures with a trained detector, of any task.

CHECKPOINT is a file that `lucid fit` saved. Its averaged weights are used, as `lucid validate` uses them.
A SOURCE is a picture, a folder or a pattern. Of a folder, every picture in it and in the folders below is
taken, but for names that begin with a dot; a pattern in quotes may have * ? [] and ** for any depth."""

EPILOG = """\
results, in the output folder:
  pictures/         each picture with its objects drawn, small ones enlarged
  predictions.json  the objects in COCO's result format: image_id, category_id, bbox (x, y, width, height in
                    pixels of the upright original), score, and file_name; by what the detector finds, also
                    segmentation (masks in run lengths, or polygons of oriented boxes) and rbox, or keypoints
  images.json       the pictures and categories that these ids mean, and what was skipped; pycocotools loads
                    both with COCO("images.json").loadRes("predictions.json")

exit status: 0 done, 1 failed, 2 not understood or not there, 3 done but for pictures that cannot be read

examples:
  lucid predict RUN/checkpoints/best.ckpt photo.jpg
  lucid predict RUN/checkpoints/best.ckpt folder "more/**/*.png" --score 0.5 --output found
  lucid predict RUN/checkpoints/best.ckpt folder --device cuda:1 --batch_size 64 --no_pictures
"""


def main(argv: Sequence[str]) -> int:
    """Run ``lucid predict`` and return its exit status.

    Args:
        argv: What stands after the command.

    Raises:
        SystemExit: With 2 where the command line was not understood, with 0 after ``--help``.
    """
    parser = _parser()
    # After a bare -- all are names of files.
    options = list(argv).index("--") if "--" in argv else len(argv)
    asked = parser.parse_args([*map(_underscored, argv[:options]), *argv[options:]])
    if not Path(asked.checkpoint).exists():
        parser.error(_no_checkpoint(asked.checkpoint))
    output = None if asked.output is None else Path(asked.output)
    try:
        files = find_pictures(asked.sources, output)
    except SourceError as error:
        parser.error(str(error))
    try:
        return _run(parser, asked, files)
    except (ValueError, OSError, RuntimeError) as error:
        import torch

        out_of_memory = isinstance(error, torch.OutOfMemoryError)
        if os.environ.get("LUCID_DEBUG") or (type(error) is RuntimeError and not out_of_memory):
            raise
        text = " ".join(str(error).split())
        if out_of_memory:
            text = f"the device has too little memory for {asked.batch_size} pictures at once: lower --batch_size"
        print(f"lucid: error: {text}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lucid: interrupted; predictions.json was not written", file=sys.stderr)
        return 130


def _run(parser: argparse.ArgumentParser, asked: argparse.Namespace, files: Sequence[PictureFile]) -> int:
    from tqdm.auto import tqdm

    from lucid_core.data.types import DataError
    from lucid_core.module import Detector
    from lucid_core.prediction.load import pick_device
    from lucid_core.prediction.output import Output, new_folder
    from lucid_core.prediction.predict import stream

    try:
        device = pick_device(asked.device)
    except ValueError as error:
        parser.error(str(error))
    detector = Detector.from_checkpoint(asked.checkpoint, device)
    names = tuple(detector.hparams["class_names"])
    ids = detector.trained_on.category_ids or tuple(range(len(names)))
    found = stream(
        detector,
        [file.path for file in files],
        score=asked.score,
        limit=asked.limit,
        decoder=asked.decoder,
        batch_size=asked.batch_size,
        image_size=asked.image_size,
        precision=asked.precision,
    )
    folder = None
    if not asked.json:
        folder = new_folder(Path("runs")) if asked.output is None else Path(asked.output)
        folder.mkdir(parents=True, exist_ok=True)
    output = Output(folder, asked.pictures, files)
    # None: no bar where no terminal shows it.
    with tqdm(total=len(files), desc="predict", unit="picture", disable=None) as bar:
        for file, result in zip(files, found, strict=True):
            if isinstance(result, DataError):
                output.skip(file, str(result))
                if len(output.skipped) <= NAMED:
                    bar.write(f"lucid: skipped: {' '.join(str(result).split())}", file=sys.stderr)
            else:
                output.add(file, result)
            bar.update()
    info = {
        "checkpoint": asked.checkpoint,
        "weights": "averaged",
        "decoder": asked.decoder or detector.hparams["decoders"][0],
        "image_size": asked.image_size or detector.trained_on.image_size,
        "precision": asked.precision,
        "score": asked.score,
        "limit": asked.limit,
    }
    output.write(dict(zip(ids, names, strict=True)), info, detector.trained_on.points)
    if asked.json:
        print(json.dumps(output.results))
    counts = ", ".join(f"{name} {number}" for name, number in output.objects.most_common(10))
    skipped = len(output.skipped)
    summary = f"pictures: {len(files) - skipped}, objects: {len(output.results)}{f' ({counts})' if counts else ''}"
    if skipped:
        summary += f"; could not be read and were skipped: {skipped}"
    print(summary, file=sys.stderr if asked.json else sys.stdout)
    if folder is not None:
        print(f"The results are in {folder}")
    if skipped == len(files):
        return 1
    return SOME_SKIPPED if skipped else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="lucid predict",
        usage="lucid predict CHECKPOINT SOURCE [SOURCE ...] [options]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="such as RUN/checkpoints/best.ckpt")
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="a picture, a folder, or a pattern")
    add = parser.add_argument
    add("--output", metavar="FOLDER", help="where results go; the next free runs/predict_N unless given")
    add("--score", type=float, default=0.25, metavar="S", help="leave out objects below this score (0.25)")
    add("--limit", type=int, default=300, metavar="N", help="objects of a picture at most, up to 300 (300)")
    add(
        "--decoder",
        choices=("end_to_end", "nms"),
        help="end_to_end: the one-to-one branch, no suppression; nms: the one-to-many branch, overlaps suppressed "
        "(the first one that the detector was trained with)",
    )
    add(
        "--device", default="auto", metavar="D", help="auto, cpu, cuda, cuda:1, mps ... (auto: the first GPU, else cpu)"
    )
    add("--batch_size", type=int, default=16, metavar="N", help="pictures that go through the network at once (16)")
    add("--image_size", type=int, metavar="N", help="side of the network's input, a multiple of 32 (as in training)")
    add(
        "--precision",
        choices=("32-true", "bf16-mixed", "16-mixed"),
        default="32-true",
        help="of the network, by the names of the Trainer (32-true)",
    )
    add("--no_pictures", dest="pictures", action="store_false", help="write the JSON files alone")
    add("--json", action="store_true", help="print predictions.json and write nothing")
    return parser


def _underscored(argument: str) -> str:
    """The option as it is spelled here and in the other commands, also where it was typed with dashes."""
    name, equals, value = argument.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{value}" if name.startswith("--") else argument


def _no_checkpoint(given: str) -> str:
    names = [str(path) for path in Path(given).parent.glob("*.ckpt")]
    nearest = get_close_matches(given, names, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else "; a run keeps its own in RUN/checkpoints"
    return f"no checkpoint is called {given!r}{hint}"

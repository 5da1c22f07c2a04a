"""Learn a small data set by heart, through the command line, and write a record of it.

    python benchmarks/overfit.py FOLDER --annotations annotations/instances_train2017.json --record record.json
    python benchmarks/overfit.py FOLDER --task obb --record record.json

Trains `lucid fit --config overfit --config bf16` from scratch and measures AP: end-to-end decoding, averaged weights,
original coordinates. With ``--annotations`` the images of that file are trained on and measured; without, the folder's
training part is trained on, and both of its parts are measured. Options that it does not know go to `lucid fit`.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import get_args

import yaml
from record import made

from lucid_core.evaluation.evaluator import HEADLINES
from lucid_core.types import Task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--images", default="images", help="folder of the images, below FOLDER")
    parser.add_argument("--annotations", help="annotation file of the images, below FOLDER")
    parser.add_argument("--task", choices=get_args(Task), default="detect")
    parser.add_argument("--source", default="COCO 2017", help="name of the data set, for the record")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--commit", help="where the working tree is no checkout")
    args, options = parser.parse_known_args()

    command = [sys.executable, "-m", "lucid_core"]
    data = ["--data.root", args.folder]
    for split in ("train", "val") if args.annotations else ():
        data += [f"--data.{split}_images", args.images, f"--data.{split}_annotations", args.annotations]
    task = [] if args.task == "detect" else ["--config", f"task-{args.task}"]
    headline = HEADLINES[args.task]
    with tempfile.TemporaryDirectory() as root:
        line = ["fit", "--config", "overfit", *task, "--config", "bf16", *data, "--trainer.default_root_dir", root]
        start = time.perf_counter()
        subprocess.run([*command, *line, *options], check=True)
        seconds = time.perf_counter() - start
        run = Path(root, "runs/version_0")
        config = yaml.safe_load((run / "config.yaml").read_text())
        rows = rows_of(run)
        result = {"val" if not args.annotations else "train": figures_of(rows[-1])}
        if not args.annotations:
            result["train"] = measured_on_train(command, args, run / "checkpoints/last.ckpt", Path(root))

    curve = [[int(row["epoch"]) + 1, round(float(row[f"val/{headline}"]), 4)] for row in rows]
    # Paths of the machine that ran it.
    del config["trainer"]["default_root_dir"], config["data"]["root"]
    images = json.loads(Path(args.folder, args.annotations).read_text())["images"] if args.annotations else []
    ids = {"image ids": " ".join(str(image["id"]) for image in images)} if images else {}
    record = {
        "what": f"nano network for {args.task} from scratch, AP with end-to-end decoding and averaged weights",
        **made(args.commit),
        "seconds": {"whole command, set-up and evaluations included": round(seconds, 1)},
        "result": result,
        f"{headline} by epoch": curve,
        "data": {"source": args.source, "annotations": args.annotations, **ids},
        "configuration": config,
    }
    args.record.write_text(json.dumps(record, indent=1) + "\n")
    print(
        *(f"{part}: {headline} {found[headline]:.4f}, map_50 {found['map_50']:.4f};" for part, found in result.items())
    )
    print(f"{seconds:.0f} s")


def measured_on_train(command: list[str], args: argparse.Namespace, checkpoint: Path, root: Path) -> dict[str, float]:
    """Measure the end of a run on the training part of a folder whose parts are lists of pictures."""
    folder, run = root / "train-as-val", root / "measured"
    folder.mkdir()
    for entry in Path(args.folder).resolve().iterdir():
        if entry.name != "val.txt":
            (folder / entry.name).symlink_to(entry)
    (folder / "val.txt").symlink_to(Path(args.folder, "train.txt").resolve())
    line = ["validate", "--ckpt_path", str(checkpoint), "--data.root", str(folder)]
    subprocess.run([*command, *line, "--trainer.default_root_dir", str(run)], check=True)
    return figures_of(rows_of(run / "runs/version_0")[-1])


def rows_of(run: Path) -> list[dict[str, str]]:
    """Return the rows of a run's log that hold an evaluation."""
    with (run / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row.get("val/map")]


def figures_of(row: dict[str, str]) -> dict[str, float]:
    """Return the figures of one evaluation."""
    return {k.removeprefix("val/"): round(float(v), 4) for k, v in row.items() if v and k.startswith("val/")}


if __name__ == "__main__":
    main()

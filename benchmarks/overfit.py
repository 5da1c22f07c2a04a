"""Learn a small COCO folder by heart, through the command line, and write a record of it.

    python benchmarks/overfit.py FOLDER --annotations annotations/instances_train2017.json --record record.json

Trains `lucid fit --config overfit --config bf16` from scratch on the images of one annotation file, and measures AP on
these images: end-to-end decoding, averaged weights, original coordinates. Options that it does not know go to
`lucid fit`.
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

import yaml
from record import made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--images", default="images", help="folder of the images, below FOLDER")
    parser.add_argument("--annotations", required=True, help="annotation file, below FOLDER")
    parser.add_argument("--source", default="COCO 2017", help="name of the data set, for the record")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--commit", help="where the working tree is no checkout")
    args, options = parser.parse_known_args()

    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "lucid_core", "fit", "--config", "overfit", "--config", "bf16"]
        command += ["--data.root", args.folder, "--trainer.default_root_dir", root]
        for split in ("train", "val"):
            command += [f"--data.{split}_images", args.images, f"--data.{split}_annotations", args.annotations]
        start = time.perf_counter()
        subprocess.run([*command, *options], check=True)
        seconds = time.perf_counter() - start
        run = Path(root, "runs/version_0")
        config = yaml.safe_load((run / "config.yaml").read_text())
        with (run / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))

    numbers = [{k: float(v) for k, v in row.items() if v and k.startswith("val/")} for row in rows]
    last = next(row for row in reversed(numbers) if "val/map" in row)
    curve = [
        [int(row["epoch"]) + 1, round(values["val/map"], 4)]
        for row, values in zip(rows, numbers, strict=True)
        if "val/map" in values
    ]
    content = json.loads(Path(args.folder, args.annotations).read_text())
    # Paths of the machine that ran it.
    del config["trainer"]["default_root_dir"], config["data"]["root"]
    record = {
        "what": "nano network from scratch, AP on its own training images (end-to-end decoding, averaged weights)",
        **made(args.commit),
        "seconds": {"whole command, set-up and evaluations included": round(seconds, 1)},
        "result": {name.removeprefix("val/"): round(value, 4) for name, value in last.items()},
        "map by epoch": curve,
        "data": {
            "source": args.source,
            "annotations": args.annotations,
            "image ids": " ".join(str(image["id"]) for image in content["images"]),
        },
        "configuration": config,
    }
    args.record.write_text(json.dumps(record, indent=1) + "\n")
    print(f"mAP50-95 {last['val/map']:.4f} in {seconds:.0f} s")


if __name__ == "__main__":
    main()

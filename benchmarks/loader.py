"""Training images per second of one process on one processor: decode, augment, collate.

    python benchmarks/loader.py FOLDER [--batch-size 16] [--size 640] [--images 800] [--task detect] [--profile]

FOLDER is a COCO or YOLO folder. The process pins itself to the last processor that it may use.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import statistics
import subprocess
import time
from pathlib import Path
from typing import get_args

import cv2
import numpy as np
import PIL
import torch

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.layout import open_split
from lucid_core.data.loader import TrainLoader
from lucid_core.data.plan import BatchPlan, EpochPlan
from lucid_core.data.source import SourceReader
from lucid_core.data.types import Task, Wanted


def main() -> None:
    """Measure five times and print each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--close-mosaic", action="store_true", help="measure an epoch without mosaic")
    parser.add_argument("--task", choices=get_args(Task), default="detect")
    parser.add_argument("--train-images", help="folder of the pictures, where it is not found by itself")
    parser.add_argument("--train-annotations", help="COCO json, where it is not found by itself")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--source", default="COCO 2017", help="name of the data set, for the record")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()

    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    cv2.setNumThreads(0)

    places = options.train_images, options.train_annotations
    data = open_split(options.folder, "train", "auto", *places, task=options.task)
    wanted = Wanted(options.task, 0 if data.points is None else data.points.count)
    plan = EpochPlan(len(data), 0, 1 if options.close_mosaic else None, 1)
    source = SourceReader(data.records, options.size)
    augmenter = Augmenter(source, data.records, plan, options.size, Recipe(), 0)
    loader = TrainLoader(augmenter, BatchPlan(plan, options.batch_size), len(data.class_names), wanted=wanted)

    def take(images: int, epoch: int) -> None:
        while images > 0:
            loader.batch_sampler.set_epoch(epoch)
            for batch in loader:
                images -= len(batch.images)
                if images <= 0:
                    break
            epoch += 1

    take(32, 0)
    rates = []
    for repeat in range(5):
        start = time.perf_counter()
        take(options.images, 100 * repeat)
        rates.append(options.images / (time.perf_counter() - start))
        print(f"batch {options.batch_size}: {rates[-1]:.1f} images/s")
    if options.record:
        record = {
            "what": "training samples of the default recipe, decoded, augmented and collated, on one pinned processor",
            "commit": subprocess.check_output(["git", "rev-parse", "HEAD"], text=True).strip(),
            "processor": _processor(),
            "versions": {"opencv": cv2.__version__, "pillow": PIL.__version__, "numpy": np.__version__},
            "data": f"{options.source}, {len(data)} images",
            "settings": {
                "task": options.task,
                "batch_size": options.batch_size,
                "size": options.size,
                "mosaic": not options.close_mosaic,
            },
            "images per second": {
                "median": round(statistics.median(rates), 1),
                "range": [round(min(rates), 1), round(max(rates), 1)],
            },
        }
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(take, options.images, 0)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def _processor() -> str | None:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


if __name__ == "__main__":
    main()

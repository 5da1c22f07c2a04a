"""Time AP of oriented boxes at the size of a large tiled data set.

    python benchmarks/rotated_ap.py --record rotated-ap.json

Random boxes: ten objects in each tile, and as many detections as a decoder gives, each one of the objects, moved.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np
from record import made

from lucid_core.data.geometry import corners
from lucid_core.evaluation.voc import Unit, measure

SIZE = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tiles", type=int, default=10_000)
    parser.add_argument("--objects", type=int, default=10)
    parser.add_argument("--detections", type=int, default=300)
    parser.add_argument("--classes", type=int, default=15)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--commit", help="where the working tree is no checkout")
    args = parser.parse_args()

    units = [tile(np.random.default_rng(index), args) for index in range(args.tiles)]
    start = time.perf_counter()
    metrics = measure(units, [str(label) for label in range(args.classes)])
    seconds = time.perf_counter() - start
    print(f"{seconds:.1f} s, map {metrics.map:.3f}, map_50 {metrics.map_50:.3f}")
    if args.record:
        record = {
            "what": "AP of oriented boxes over random tiles, exact overlap of polygons",
            **made(args.commit),
            "settings": {name: getattr(args, name) for name in ("tiles", "objects", "detections", "classes")},
            "seconds": round(seconds, 1),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
            "result": {"map": round(metrics.map, 4), "map_50": round(metrics.map_50, 4)},
        }
        args.record.write_text(json.dumps(record, indent=1) + "\n")


def tile(random: np.random.Generator, args: argparse.Namespace) -> Unit:
    """Return the objects and the detections of one tile."""
    centres = random.random((args.objects, 2)) * SIZE
    sides = np.sort(random.random((args.objects, 2)) * 80 + 10)[:, ::-1]
    objects = np.concatenate((centres, sides, random.random((args.objects, 1)) * np.pi - np.pi / 4), 1)
    labels = random.integers(0, args.classes, args.objects)
    found = np.arange(args.detections) % args.objects
    detections = objects[found] + random.normal(0, 1, (args.detections, 5)) * [4, 4, 3, 3, 0.1]
    scores = np.sort(random.random(args.detections))[::-1]
    return Unit(corners(objects), labels, np.zeros(len(objects), bool), detections, scores, labels[found])


if __name__ == "__main__":
    main()

"""One of two processes that share an evaluation: ``python gather_worker.py RANK FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist
from scenes import as_batch, noisy, random_scene

from lucid_core.evaluation.coco import CocoEvaluation


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    data = random_scene(8)
    evaluation = CocoEvaluation(data)
    found = noisy(data, 8)
    if rank == 1:
        found[0] = found[0][:0]  # the padding image, seen otherwise here: rank 0's view must win on both sides
    evaluation.update(*as_batch(data, found, [*range(rank, len(data.records), 2), 0]))
    evaluation.gather()
    (folder / f"{rank}.json").write_text(json.dumps(evaluation.compute().scalars()))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

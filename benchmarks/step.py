"""Measure what one training step costs the GPU: busy time, kernels and wall time, by phase.

    python benchmarks/step.py --task detect --batch 4 16 64 --record step.json

Synthetic batches, no loader. Busy time is the union of the device's kernel, copy and memset intervals; wall time is of
whole steps closed by a synchronisation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import torch
from record import made
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lucid_accel.bench.device import busy, device_events
from lucid_core.module import Detector
from lucid_core.optim.build import build_optimizer
from lucid_core.optim.ema import AveragedNetwork
from lucid_core.types import Batch, Targets, Task

PHASES = ("network", "objective", "backward", "update", "ema")
#: Key points of an object, as COCO has them.
POINTS = 17


def targets_of(args: argparse.Namespace, batch: int) -> Targets:
    """Return objects at random places, as many in each image; a mask is an ellipse in its box."""
    rows = 1 << max(0, args.objects - 1).bit_length()
    valid = torch.arange(rows).expand(batch, -1) < args.objects
    sides = 10 + torch.rand(batch, rows, 2) * args.size * 0.25
    corner = torch.rand(batch, rows, 2) * args.size * 0.7
    boxes, labels = torch.cat((corner, corner + sides), 2), torch.randint(0, 80, valid.shape)
    extra: dict[str, Tensor] = {}
    if args.task == "segment":
        cells = torch.arange(args.size // 4) * 4 + 2.0
        grid = torch.stack(torch.meshgrid(cells, cells, indexing="xy"), 2)
        away = (grid - (corner + sides / 2)[:, :, None, None]) / (sides / 2)[:, :, None, None]
        extra["masks"] = away.square().sum(-1) < 1
    elif args.task == "obb":
        turn = torch.rand(batch, rows, 1) * torch.pi - torch.pi / 4
        extra["rboxes"] = torch.cat((corner + sides / 2, sides.sort(2, descending=True).values, turn), 2)
    elif args.task == "keypoints":
        extra["points"] = corner.unsqueeze(2) + torch.rand(batch, rows, POINTS, 2) * sides.unsqueeze(2)
        extra["visibility"] = torch.randint(0, 3, (batch, rows, POINTS))
    inert = {name: _kept(tensor, valid) for name, tensor in extra.items()}
    return Targets(_kept(boxes, valid), _kept(labels, valid), valid, **inert)


def _kept(tensor: Tensor, valid: Tensor) -> Tensor:
    """The rows of objects, and zeros elsewhere."""
    return tensor * valid.reshape(*valid.shape, *[1] * (tensor.ndim - 2))


class Step:
    """One training step over device tensors, in phases that can be timed apart."""

    def __init__(self, batch: int, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        device = torch.device("cuda")
        names = [str(i) for i in range(80)]
        self.module = Detector(names, args.task, POINTS, args.variant, args.optimizer)
        self.module.to(device).train()
        self.module.network.to(memory_format=torch.channels_last)
        self.optimizer = build_optimizer(args.optimizer, self.module.parameters(), 0.01, 0.95, 5e-4)
        self.average = AveragedNetwork(self.module.network)
        images = torch.randint(0, 256, (batch, 3, args.size, args.size), dtype=torch.uint8, device=device)
        targets = Targets(*(None if t is None else t.to(device) for t in targets_of(args, batch)))
        self.batch = Batch(images, targets, torch.arange(batch), torch.zeros(batch, 3))

    def network(self) -> None:
        self.unpacked = self.module.unpack(self.batch)
        with torch.autocast("cuda", torch.bfloat16):
            self.predictions = self.module.network(self.unpacked.images)

    def objective(self) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            self.losses = self.module.objective(self.predictions, self.unpacked.targets)

    def backward(self) -> None:
        self.losses.total.backward()

    def update(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), 10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def ema(self) -> None:
        self.average.write_scalars()
        self.average.update()

    def __call__(self) -> None:
        for phase in PHASES:
            getattr(self, phase)()


def profiled(run: Callable[[], None], repeats: int) -> tuple[float, int, Counter[str], Counter[str]]:
    """Return busy milliseconds and kernels of one run, and per kernel name milliseconds and launches."""
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            run()
        torch.cuda.synchronize()
    time_of, count_of = Counter[str](), Counter[str]()
    for event in device_events(profiler):
        time_of[event.name] += event.time_range.elapsed_us() / 1e3 / repeats
        count_of[event.name] += 1
    return *busy(profiler, repeats), time_of, count_of


def measure(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    step = Step(batch, args)
    for _ in range(8):
        step()
    torch.cuda.synchronize()
    walls = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - start) * 1e3)
    total, kernels, names, counts = profiled(step, 5)
    row: dict[str, Any] = {"batch": batch, "busy_ms": total, "kernels": kernels, "wall_ms": statistics.median(walls)}
    row["wall_range_ms"] = [min(walls), max(walls)]
    row["memory_mib"] = [torch.cuda.max_memory_allocated() >> 20, torch.cuda.max_memory_reserved() >> 20]
    parts: dict[str, list[float]] = {phase: [0.0, 0.0] for phase in PHASES}
    for _ in range(3):
        for phase in PHASES:
            time_ms, launched, _, _ = profiled(getattr(step, phase), 1)
            parts[phase][0] += time_ms / 3
            parts[phase][1] += launched / 3
    row["phases"] = parts
    print(f"{args.task}, batch {batch}: busy {total:.2f} ms, {kernels} kernels, wall {row['wall_ms']:.1f} ms")
    for phase, (time_ms, launched) in parts.items():
        print(f"  {phase:10} {time_ms:7.2f} ms {launched:6.0f} kernels")
    for name, time_ms in names.most_common(args.top):
        print(f"  {time_ms:7.3f} ms {counts[name] // 5:5d}x {name[:150]}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--task", choices=get_args(Task), default="detect")
    parser.add_argument("--batch", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--size", type=int, default=640)
    parser.add_argument("--objects", type=int, default=7)
    parser.add_argument("--variant", default="n")
    parser.add_argument("--optimizer", default="musgd")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--top", type=int, default=0)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--commit", help="where the working tree is no checkout")
    args = parser.parse_args()
    torch.use_deterministic_algorithms(args.deterministic)
    torch.backends.cudnn.deterministic = args.deterministic
    torch.utils.deterministic.fill_uninitialized_memory = False
    rows = [measure(args, batch) for batch in args.batch]
    if args.record:
        settings = {
            name: getattr(args, name) for name in ("task", "size", "objects", "variant", "optimizer", "deterministic")
        }
        record = {
            "what": "one training step of a network from scratch, synthetic batches, bf16, channels_last, no loader",
            **made(args.commit),
            "settings": settings,
            "rows": rows,
        }
        args.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()

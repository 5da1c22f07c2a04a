"""Compare accelerated with native optimizer phases: the update of MuSGD, and clipping by the norm of the gradients.

    python benchmarks/accelerated_updates.py FOLDER --record updates.json

Trains through a real Trainer, parity of the checkpoints first, and alternates windows of native and of replayed steps
within one fit. Each phase is timed from one synchronisation to the next, then its calls are profiled for the time in
which the GPU computes. Network and objective are replayed throughout, so that the gradients are those of such a run.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from accelerated_steps import collect, replays_of, train
from lightning.pytorch import Callback, Trainer
from meters import NATIVE, switch
from record import Red, add_windows, begin, parser_of, quieten, write
from torch.profiler import ProfilerActivity, profile

from lucid_accel import Replay, UpdateReplay
from lucid_accel.bench.device import busy, device_events
from lucid_accel.bench.figures import interval, summary
from lucid_accel.graphs.engine import engine_for
from lucid_accel.graphs.job import Job
from lucid_accel.graphs.routine import Routine
from lucid_accel.testing import first_difference
from lucid_core.module import Detector
from lucid_core.optim.musgd import MuSGD

#: Accelerations of one fit, and the phase that each one is in.
FITS = ({"GradientNormReplay": "clip", "UpdateReplay": "update"}, {"OrthogonalizationReplay": "update"})
AROUND = ("NetworkReplay", "LossReplay")


class Phases(Callback):
    """Times the calls of both phases, window by window; in the last two windows it profiles them instead.

    Comes after the accelerations, so that what they put in place is what it times.
    """

    def __init__(self, replays: Sequence[Replay], warmup: int, window: int, rounds: int) -> None:
        self.replays, self.warmup, self.window, self.rounds = replays, warmup, window, rounds
        arms = (NATIVE, "+".join(replay.name for replay in replays))
        self.ms: dict[str, dict[str, list[list[float]]]] = {arm: {"clip": [], "update": []} for arm in arms}
        self.busy: dict[str, dict[str, list[float]]] = {arm: {"clip": [], "update": []} for arm in arms}
        self.span: dict[str, dict[str, list[float]]] = {arm: {"clip": [], "update": []} for arm in arms}
        self.kernels: dict[str, dict[str, int]] = {arm: {} for arm in arms}
        self._arms = arms
        self._batch = -1
        self._patches = ExitStack()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        plugin = trainer.precision_plugin
        vars(plugin)["clip_grad_by_norm"] = self._timed("clip", plugin.clip_grad_by_norm)
        # Of the class: what an optimizer has as an attribute counts as one of its settings, and timers change.
        self._patches.enter_context(patch.object(MuSGD, "update", self._timed("update", MuSGD.update)))

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        del vars(trainer.precision_plugin)["clip_grad_by_norm"]
        self._patches.close()

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        self._patches.close()

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._batch = batch_idx - self.warmup
        if self._batch >= 0 and self._batch % self.window == 0:
            arm = self._arm()
            switch(self.replays, arm)
            if not self._profiling():
                for times in self.ms[arm].values():
                    times.append([])

    def _arm(self) -> str:
        turn, place = divmod(self._batch // self.window, len(self._arms))
        return self._arms[(place + turn) % len(self._arms)]

    def _profiling(self) -> bool:
        return self._batch // self.window >= self.rounds * len(self._arms)

    def _timed(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any) -> Any:
            if self._batch < 0 or self._batch % self.window < 2:
                return call(*args)
            arm = self._arm()
            torch.cuda.synchronize()
            if self._profiling():
                with profile(activities=[ProfilerActivity.CUDA]) as seen:
                    result = call(*args)
                    torch.cuda.synchronize()
                taken, self.kernels[arm][phase] = busy(seen, 1)
                self.busy[arm][phase].append(taken)
                self.span[arm][phase].append(span(seen))
                return result
            start = perf_counter()
            result = call(*args)
            torch.cuda.synchronize()
            self.ms[arm][phase][-1].append((perf_counter() - start) * 1e3)
            return result

        return timed


def phases(args: argparse.Namespace, batch: int) -> dict[str, Any]:
    """Show parity of each fit with a native one, then time the phases of it."""
    batches, classes = collect(args, batch, 20)
    reference = train(batches, args.parity, classes, args, [])
    found: dict[str, dict[str, Any]] = {}
    for phase_of in FITS:
        for name in phase_of:
            outcome = train(batches, args.parity, classes, args, [*replays_of([name])])
            if (place := first_difference(reference, outcome)) is not None:
                raise Red(f"parity is red: {name}: {place} differs. Nothing is timed, nothing is recorded.")
        replays = replays_of(list(phase_of))
        meter = Phases(replays, args.warmup, args.window, args.rounds)
        length = args.warmup + (args.rounds + 1) * 2 * args.window
        train(batches, length, classes, args, [*replays_of(AROUND), *replays, meter])
        replayed = "+".join(phase_of)
        for name, phase in phase_of.items():
            native, taken = ([median(window) for window in meter.ms[arm][phase]] for arm in (NATIVE, replayed))
            ratios = [n / t for n, t in zip(native, taken, strict=True)]
            compute = median(meter.busy[replayed][phase])
            found[name] = {
                "phase": phase,
                "native_ms": summary(native),
                "replayed_ms": summary(taken),
                "times_faster": {**summary(ratios), "interval_95": interval(ratios)},
                "native_busy_ms": round(median(meter.busy[NATIVE][phase]), 3),
                "busy_ms": round(compute, 3),
                "over_busy": round(median(taken) / compute, 3),
                # What is more than busy in it is gaps between kernels; what is more in the whole is the host before it.
                "span_ms": round(median(meter.span[replayed][phase]), 3),
                "kernels": meter.kernels[replayed][phase],
                "native_kernels": meter.kernels[NATIVE][phase],
            }
            print(name, found[name], flush=True)
    return {"batch": batch, "parity": f"green: {args.parity} steps, {len(reference)} equal places", "arms": found}


def span(profiler: profile) -> float:
    """Return milliseconds from the first thing that the device does to the end of the last one."""
    ranges = [x.time_range for x in device_events(profiler)]
    return float(max(x.end for x in ranges) - min(x.start for x in ranges)) / 1e3


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return summary(values)["median"]


def routing() -> dict[str, float]:
    """Return milliseconds of host time in which an update is described and compared, without launching anything."""
    module = Detector([str(i) for i in range(80)]).to("cuda")
    params = [param for param in module.network.parameters() if param.requires_grad]
    optimizer = MuSGD(params, lr=0.01)
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.write_scalars()
    replay = UpdateReplay()
    replay._taken = optimizer
    engine = engine_for(torch.device("cuda", torch.cuda.current_device()))
    assert engine is not None
    asked = Describing(engine, replay)

    def decide() -> None:
        replay.call(asked, optimizer.prepare, params, optimizer.param_groups[0], optimizer._scalars[0].weight_decay)

    return {"UpdateReplay": round(min(timeit.repeat(decide, number=100, repeat=5)) * 10, 4)}


class Describing(Routine):
    """Asks what a call is, compares it with the one before, and does nothing."""

    last: Any = None

    def __call__(self, native: Any, describe: Callable[[], Job]) -> list[torch.Tensor]:
        job = describe()
        now = job.signature, job.addresses
        assert self.last is None or self.last == now
        self.last = now
        return []


def main() -> None:
    parser = parser_of(__doc__)
    add_windows(parser)
    args = parser.parse_args()
    quieten()
    record = begin(args, "updates", "parity", "warmup", "window", "rounds")
    record["routing_ms"] = routing()
    print("routing", record["routing_ms"], "ms")
    for batch in args.batch:
        record["rows"].append(phases(args, batch))
        write(args, record)


if __name__ == "__main__":
    main()

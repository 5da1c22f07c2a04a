"""Callbacks that measure steps of one fit: the device's work, windows of arms in turn, and the host's work."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from lightning.pytorch import Callback, Trainer
from torch.profiler import ProfilerActivity, profile

from lucid_accel import Replay
from lucid_accel.bench.device import busy
from lucid_accel.bench.figures import summary
from lucid_accel.graphs.recording import Recording
from lucid_accel.graphs.region import Region
from lucid_accel.graphs.routine import Routine
from lucid_accel.graphs.single import SingleRecording

NATIVE = "native"
#: Functions that a profile of the host names.
MOST = 20


def wait() -> None:
    """Wait for the device, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


class Meter(Callback):
    """Notes the memory after ``last`` steps, then profiles three more; of a GPU, which alone has something to note."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.busy_ms, self.kernels, self.reserved, self.peak = 0.0, 0, 0, 0
        self._profile = profile(activities=[ProfilerActivity.CUDA])

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        if not torch.cuda.is_available():
            return
        if batch_idx == 0:
            torch.cuda.reset_peak_memory_stats()
        if batch_idx == self.last:
            wait()
            self.reserved, self.peak = torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()
            self._profile.start()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.last + 2 and torch.cuda.is_available():
            wait()
            self._profile.stop()
            self.busy_ms, self.kernels = busy(self._profile, 3)


class Windows(Callback):
    """Lets the recordings of a fit be replayed in some windows and not in others, and times the windows.

    Each round has one window of every arm, in an order that turns from round to round. The first two steps of a window
    are not timed; a synchronisation opens and closes the time.
    """

    def __init__(self, arms: Sequence[str], replays: Sequence[Replay], warmup: int, window: int) -> None:
        self.arms, self.replays, self.warmup, self.window = arms, replays, warmup, window
        self.ms: dict[str, list[float]] = {arm: [] for arm in arms}
        self._start = 0.0

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        number, step = divmod(batch_idx - self.warmup, self.window)
        if batch_idx >= self.warmup and step == 0:
            switch(self.replays, self._arm(number))
        if batch_idx >= self.warmup and step == 2:
            wait()
            self._start = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        number, step = divmod(batch_idx - self.warmup, self.window)
        if batch_idx >= self.warmup and step == self.window - 1:
            wait()
            self.ms[self._arm(number)].append((time.perf_counter() - self._start) * 1e3 / (self.window - 2))

    def _arm(self, number: int) -> str:
        turn, place = divmod(number, len(self.arms))
        return self.arms[(place + turn) % len(self.arms)]


class Routing(Callback):
    """Times what replays do before and after they copy and launch: to describe a call, and to decide.

    Attributes:
        ms: Of each step, by all that replays in it, in milliseconds.
    """

    def __init__(self) -> None:
        self.ms: list[float] = []
        self._now = 0.0
        self._patches = ExitStack()

    def on_train_start(self, trainer: Trainer, module: Any) -> None:
        for kind, sign in ((Region, 1), (Routine, 1), (Recording, -1), (SingleRecording, -1)):
            self._patches.enter_context(patch.object(kind, "__call__", self._timed(kind.__call__, sign)))

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        self._now = 0.0

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.ms.append(self._now * 1e3)

    def on_train_end(self, trainer: Trainer, module: Any) -> None:
        self._patches.close()

    def on_exception(self, trainer: Trainer, module: Any, exception: BaseException) -> None:
        self._patches.close()

    def _timed(self, call: Callable[..., Any], sign: int) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._now += sign * (time.perf_counter() - start)

        return timed


def switch(replays: Sequence[Replay], arm: str) -> None:
    """Let the accelerations of ``arm`` replay, and the others be native."""
    for replay in replays:
        replay.resume() if replay.name in arm.split("+") else replay.suspend()


class Host(Callback):
    """Times what the host does in a step, as it is, dry, and profiled; and how long it then waits for the next batch.

    The device is waited for before each step, never within one: its queue is empty when the host begins, so the host
    launches without ever being held up, unless something in the step reads from the device. Dry steps do all the same,
    but for the launch of graphs; the values that they leave mean nothing. Comes after all other callbacks.

    Args:
        warmup: Steps before.
        steps: Steps of each kind.
    """

    def __init__(self, warmup: int, steps: int = 50) -> None:
        self.warmup, self.steps = warmup, steps
        self.ms: dict[str, list[float]] = {"host": [], "dry": [], "profiled": []}
        self.fetch_ms: list[float] = []
        self._start = self._end = 0.0
        self._profile = cProfile.Profile()
        self._dry = ExitStack()

    @property
    def length(self) -> int:
        """Steps of a fit that this needs."""
        return self.warmup + len(self.ms) * self.steps

    def on_train_batch_start(self, trainer: Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        step = batch_idx - self.warmup
        if 0 < step <= self.steps:
            self.fetch_ms.append((time.perf_counter() - self._end) * 1e3)
        if step == self.steps:
            self._dry.enter_context(patch.object(torch.cuda.CUDAGraph, "replay", lambda graph: None))
        if step == 2 * self.steps:
            self._dry.close()
        if step >= 0:
            wait()
            if step >= 2 * self.steps:
                self._profile.enable()
            self._start = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._end = time.perf_counter()
        self._profile.disable()
        if (step := batch_idx - self.warmup) >= 0:
            list(self.ms.values())[step // self.steps].append((self._end - self._start) * 1e3)

    def figures(self) -> dict[str, Any]:
        """Return milliseconds of a step, and the functions that a profiled one spends most of its time in."""
        functions = [
            {
                "function": f"{_short(file)}:{line} {name}" if line else name,
                "own_ms": round(own * 1e3 / self.steps, 4),
                "calls": round(calls / self.steps, 2),
            }
            for (file, line, name), (_, calls, own, _, _) in pstats.Stats(self._profile).stats.items()  # type: ignore[attr-defined]
        ]
        times = {f"{kind}_ms": summary(taken) for kind, taken in {**self.ms, "fetch": self.fetch_ms}.items()}
        return {**times, "host_functions": sorted(functions, key=lambda entry: -entry["own_ms"])[:MOST]}


def _short(file: str) -> str:
    """The path of a source file below the folder of all packages."""
    parts = Path(file).parts
    roots = [place for place, part in enumerate(parts) if part in ("site-packages", "src") or part[:7] == "python3"]
    return "/".join(parts[max(roots, default=-1) + 1 :])

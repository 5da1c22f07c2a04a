"""``lucid-accel doctor``: what this machine has, and whether a recording on it has the bytes of a native run."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import lightning
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

import lucid_accel
import lucid_core
from lucid_accel.driver import driver_version
from lucid_accel.replay.network import NetworkReplay
from lucid_accel.testing import assert_parity, cpu_engine

__all__ = ["main", "parity", "quiet"]


def main() -> int:
    """Print what there is, check, and return the exit status: 1 where the recording does not have the same bytes."""
    print(f"python {platform.python_version()} on {platform.platform(terse=True)}")
    print(f"lucid-core {lucid_core.__version__}, lucid-accel {lucid_accel.__version__}")
    print(f"torch {torch.__version__}, lightning {lightning.__version__}")
    for line in (_gpus(), _compiler(), _triton()):
        print(line)
    equal, told = parity()
    print(f"recorded parity: {told}")
    return 0 if equal else 1


def parity() -> tuple[bool, str]:
    """Train a small network natively and recorded, by the machine's own engine, and compare every byte.

    Returns:
        Whether all are equal, and a line that says so, or what went wrong.
    """
    on_gpu = torch.cuda.is_available()
    replay = NetworkReplay(module="network", strict=True)
    try:
        with quiet(), nullcontext() if on_gpu else cpu_engine():
            assert_parity(_Probe, _batches, [replay], max_epochs=1, accelerator="gpu" if on_gpu else "cpu", devices=1)
    except Exception as error:
        return False, f"FAILED: {type(error).__name__}: {' '.join(str(error).split())}"
    means = (
        "CUDA graphs" if on_gpu else "a tape of operator calls, as there is no GPU: it shows the rules, not the speed"
    )
    return True, f"equal, {replay.tally.replayed} of {replay.batches} steps replayed by {means}"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Lightning's remarks and advice from the screen; its errors remain."""
    log = logging.getLogger("lightning.pytorch")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _gpus() -> str:
    if not torch.cuda.is_available():
        built = "has no CUDA" if torch.version.cuda is None else f"has CUDA {torch.version.cuda}"
        return f"GPU: none that torch can use (this torch {built})"
    cards = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        cards.append(f"{card.name}, {card.total_memory / 2**30:.0f} GiB, capability {card.major}.{card.minor}")
    driver = driver_version() or "of unknown version (nvidia-smi does not answer)"
    return f"GPU: {'; '.join(cards)}; driver {driver}, CUDA {torch.version.cuda}"


def _compiler() -> str:
    """What Triton and torch.compile would take: the compiler that CC names, else the first of the usual ones."""
    named = os.environ.get("CC")
    found = next(filter(None, map(shutil.which, [named] if named else ["gcc", "clang", "cc"])), None)
    return f"C compiler: {found or (f'none called {named!r}, which CC names' if named else 'none')}"


def _triton() -> str:
    if find_spec("triton") is None:
        return 'Triton: not installed; pip install "lucid-accel[triton]" brings it'
    try:
        return f"Triton: {version('triton')}"
    except PackageNotFoundError:
        return "Triton: installed under another name"


class _Probe(LightningModule):
    """A few layers with what recordings must get right: convolutions, statistics, momentum."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 4, 3, stride=2)
        )

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = self.network(batch).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def _batches() -> list[Any]:
    random = torch.Generator().manual_seed(0)
    return [torch.rand(2, 3, 16, 16, generator=random) for _ in range(12)]

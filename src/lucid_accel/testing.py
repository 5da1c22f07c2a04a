"""For tests of accelerations, ours and yours: a CPU engine, parity of whole checkpoints, a tiny detector.

::

    with cpu_engine():
        assert_parity(tiny_detector, tiny_batches, [MyReplay()], max_epochs=3)
"""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch.backends import cudnn
from torch.utils import deterministic
from torch.utils.data import DataLoader

from lucid_accel.acceleration import Acceleration
from lucid_accel.graphs.engine import use_engine
from lucid_accel.graphs.tape import TapeEngine
from lucid_core.module import Detector
from lucid_core.types import Batch, Targets

__all__ = [
    "Outcome",
    "assert_parity",
    "cpu_engine",
    "digest",
    "first_difference",
    "isolated",
    "run",
    "tiny_batches",
    "tiny_detector",
]

#: A fit by place: type, shape and hash of every tensor of its checkpoint, of its losses and of its metrics.
Outcome = dict[str, str]

#: What seeding and deterministic mode write to the environment.
_VARIABLES = ("CUBLAS_WORKSPACE_CONFIG", "PL_GLOBAL_SEED", "PL_SEED_WORKERS")


def cpu_engine() -> AbstractContextManager[None]:
    """Let accelerations record on the CPU, by a tape of operator calls, while the context is open."""
    return use_engine(TapeEngine)


def assert_parity(
    module: Callable[[], LightningModule],
    batches: Callable[[], Iterable[Any]],
    accelerations: Sequence[Acceleration],
    *,
    callbacks: Callable[[], list[Callback]] = list,
    must_replay: bool = True,
    **trainer: Any,
) -> Outcome:
    """Fit twice natively and once accelerated, and compare whole checkpoints, every loss and all metrics, bit by bit.

    Args:
        module: Makes the module; called after seeding, once for each fit.
        batches: Makes the training batches.
        accelerations: What is to be shown.
        callbacks: Makes further callbacks, for every fit.
        must_replay: Each acceleration has to replay at least once.
        trainer: Settings of the Trainer.

    Returns:
        The outcome all fits share.

    Raises:
        AssertionError: The two native fits differ, so that nothing can be shown; or the accelerated one does, with the
            first place where; or an acceleration replayed nothing.
    """
    native = run(module, batches, callbacks(), **trainer)
    if (place := first_difference(native, run(module, batches, callbacks(), **trainer))) is not None:
        raise AssertionError(f"two native fits differ at {place}: make the run deterministic")
    accelerated = run(module, batches, [*callbacks(), *accelerations], **trainer)
    if (place := first_difference(native, accelerated)) is not None:
        raise AssertionError(
            f"{', '.join(item.name for item in accelerations)}: differs from the native fit at {place}"
        )
    for item in accelerations:
        if must_replay and not item.tally.replayed:
            raise AssertionError(f"{item.name} replayed nothing: {item.verdict or dict(item.tally.native)}")
    return native


def run(
    module: Callable[[], LightningModule],
    batches: Callable[[], Iterable[Any]],
    callbacks: Sequence[Callback] = (),
    ckpt_path: Path | None = None,
    keep: Path | None = None,
    **trainer: Any,
) -> Outcome:
    """Fit once, seeded, and return what came of it.

    Global settings, the environment and random generators are afterwards as they were.

    Args:
        module: Makes the module.
        batches: Makes the training batches.
        callbacks: Callbacks of the fit.
        ckpt_path: A checkpoint to go on from.
        keep: Where to keep the last checkpoint.
        trainer: Settings of the Trainer.
    """
    losses = _Losses()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    settings = {"accelerator": "cpu", "max_epochs": 2, "deterministic": True, **quiet, **trainer}
    with isolated(), tempfile.TemporaryDirectory() as folder:
        seed_everything(0, verbose=False)
        fitted = Trainer(callbacks=[*callbacks, losses], **settings)
        loader: DataLoader[Any] = DataLoader(list(batches()), batch_size=None)  # type: ignore[arg-type]
        fitted.fit(module(), train_dataloaders=loader, ckpt_path=ckpt_path)
        metrics = digest(dict(fitted.callback_metrics), "metric")
        path = keep or Path(folder, "last.ckpt")
        fitted.save_checkpoint(path)
        outcome = digest(torch.load(path, map_location="cpu", weights_only=False))
    return {**outcome, **losses.seen, **metrics}


@contextmanager
def isolated() -> Iterator[None]:
    """Put back what seeding and a Trainer change in the process, however the block ends.

    These are deterministic mode, cuDNN's switches, the filling of fresh memory, variables of the environment, and the
    random generators of Python, NumPy and torch, on GPUs too where they are in use.
    """
    variables = {name: os.environ.get(name) for name in _VARIABLES}
    mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    convolutions = cudnn.deterministic, cudnn.benchmark
    filled = deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    drawn = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        cudnn.deterministic, cudnn.benchmark = convolutions
        deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
        random.setstate(drawn[0])
        np.random.set_state(drawn[1])
        torch.set_rng_state(drawn[2])
        torch.cuda.set_rng_state_all(on_gpu)


def digest(checkpoint: Any, place: str = "") -> Outcome:
    """Note type, shape and hash of every tensor of a checkpoint, and every other value, by place."""
    if isinstance(checkpoint, dict):
        parts = checkpoint.items()
    elif isinstance(checkpoint, list | tuple):
        parts = dict(enumerate(checkpoint)).items()
    elif isinstance(checkpoint, torch.Tensor):
        octets = checkpoint.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        bits = hashlib.sha256(octets.numpy().tobytes()).hexdigest()
        return {place: f"{checkpoint.dtype} {list(checkpoint.shape)} {bits}"}
    else:
        return {place: repr(checkpoint)}
    return {key: value for name, part in parts for key, value in digest(part, f"{place}/{name}").items()}


def first_difference(one: Outcome, other: Outcome) -> str | None:
    """Return the first place where two outcomes differ, ``None`` if there is none."""
    return next((place for place in {**one, **other} if one.get(place) != other.get(place)), None)


def tiny_detector(**options: Any) -> Detector:
    """Return the smallest detector, of three classes."""
    return Detector(["a", "b", "c"], **{"warmup_epochs": 0.5, **options})


def tiny_batches(count: int = 6, batch: int = 2, size: int = 64, objects: Sequence[int] = (2, 5, 0, 1)) -> list[Batch]:
    """Return batches of noise with boxes in it; the capacity and the number of objects change from batch to batch.

    Args:
        count: Batches.
        batch: Images in each; the last one has one fewer.
        size: Side of the images in pixels.
        objects: Objects of each image, batch after batch, over and over.
    """
    random = torch.Generator().manual_seed(0)
    made = []
    for index in range(count):
        images = max(1, batch - (index == count - 1))
        n = objects[index % len(objects)]
        room = 1 << (max(1, n) - 1).bit_length()
        valid = torch.arange(room).expand(images, -1) < n
        corner = torch.rand(images, room, 2, generator=random) * size * 0.6
        boxes = torch.cat((corner, corner + 6 + torch.rand(images, room, 2, generator=random) * size * 0.3), 2)
        labels = torch.randint(0, 3, (images, room), generator=random) * valid
        pixels = torch.randint(0, 256, (images, 3, size, size), dtype=torch.uint8, generator=random)
        targets = Targets(boxes * valid.unsqueeze(2), labels, valid.clone())
        made.append(Batch(pixels, targets, torch.arange(images), torch.zeros(images, 3)))
    return made


class _Losses(Callback):
    """Notes the bits of every loss."""

    def __init__(self) -> None:
        self.seen: Outcome = {}

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any) -> None:
        self.seen |= digest(outputs, f"batch {len(self.seen)}")

"""A tiny module, its batches, and fits of it on an engine for the CPU."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from lucid_accel import AccelerationWarning
from lucid_accel.testing import cpu_engine

#: Settings of the Trainer that make it write or talk.
LOUD = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")

Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture(autouse=True, scope="module")
def nothing_old_to_collect() -> Iterator[None]:
    """Each recording collects garbage first; what was imported needs no look, and there is a lot of it."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Net(LightningModule):
    """A classifier that knows nothing of lucid: statistics, randomness and a schedule are in it."""

    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.SiLU(), nn.Conv2d(6, 6, 3), nn.SiLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(images).mean((2, 3)))
        return found

    def loss(self, batch: Any) -> Tensor:
        images, labels = batch
        return cross_entropy(self(images), labels)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch)

    def predict_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), 0.05, momentum=0.9, weight_decay=1e-2)
        return [optimizer], [{"scheduler": StepLR(optimizer, 3), "interval": "step"}]


class Validated(Net):
    """The same, with validation in between."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss(batch))

    def val_dataloader(self) -> Any:
        return DataLoader(batches(2), batch_size=None)  # type: ignore[arg-type]


class Act(Callback):
    """Does something at one batch, from one hook."""

    def __init__(self, hook: str, batch: int, do: Callable[[Trainer, LightningModule], Any]) -> None:
        self._batch = batch
        self._do = do
        self._seen = 0
        setattr(self, hook, self._act)

    def _act(self, trainer: Trainer, pl_module: LightningModule, *_: Any, **__: Any) -> None:
        if self._seen == self._batch:
            self._do(trainer, pl_module)
        self._seen += 1


def batches(count: int = 8, size: int = 4) -> Batches:
    """Batches of noise; the last one has fewer images."""
    random = torch.Generator().manual_seed(1)
    sizes = [size] * (count - 1) + [size - 1]
    return [(torch.rand(n, 3, 8, 8, generator=random), torch.randint(0, 3, (n,), generator=random)) for n in sizes]


def trainer_for(callbacks: Sequence[Callback], **settings: Any) -> Trainer:
    """A quiet Trainer on the CPU."""
    quiet = dict.fromkeys(LOUD, False)
    return Trainer(callbacks=list(callbacks), **{"accelerator": "cpu", "max_epochs": 1, **quiet, **settings})


def fit(callbacks: Sequence[Callback], module: LightningModule | None = None, **settings: Any) -> Trainer:
    """Fit a module of this file, and return the Trainer."""
    trainer = trainer_for(callbacks, **settings)
    trainer.fit(Net() if module is None else module, DataLoader(batches(), batch_size=None))  # type: ignore[arg-type]
    return trainer


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect what accelerations warn of."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(item.message) for item in caught if issubclass(item.category, AccelerationWarning)]


@pytest.fixture
def tape() -> Iterator[None]:
    """Record on the CPU."""
    with cpu_engine():
        yield

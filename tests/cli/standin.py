"""A model and a data module with the faces of the real ones, so small that a command takes a fraction of a second."""

from __future__ import annotations

from typing import Literal

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback
from torch import Tensor
from torch.utils.data import DataLoader

from lucid_core.data.types import DataError


class Model(LightningModule):
    """A line that rises, and with it ``val/map``.

    Args:
        class_names: Names of the classes.
        variant: Size.
        lr: Learning rate.
        momentum: Momentum, if any.
    """

    def __init__(
        self,
        class_names: list[str],
        variant: Literal["n", "s", "m"] = "n",
        lr: float = 0.01,
        momentum: float | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.line = torch.nn.Linear(2, 1)

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss: Tensor = -self.line(batch).mean()
        self.log_dict({"train/loss": loss, "train/o2m_box": loss, "train/o2o_box": loss})
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val/map", self.line(batch).mean())

    def test_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("test/map", self.line(batch).mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])


class Points:
    def __init__(self, broken: bool) -> None:
        self.broken = broken

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Tensor:
        if self.broken and index == 7:
            raise DataError("points/7.png is cut short; replace the file")
        return torch.tensor([index / 16, 1.0])


class Data(LightningDataModule):
    """Points.

    Args:
        points: How many, or ``none`` for a fault of the user's, ``late`` for one that a worker meets.
        workers: Worker processes.
    """

    def __init__(self, points: Literal["some", "none", "late"] = "some", workers: int | Literal["auto"] = 0) -> None:
        super().__init__()
        self.points, self.workers = points, 0 if workers == "auto" else workers
        if points == "none":
            raise DataError("points.json holds no images;\nname another file")

    @property
    def class_names(self) -> list[str]:
        return ["cat", "dog"]

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Points(self.points == "late"), batch_size=2, num_workers=self.workers)  # type: ignore[arg-type]

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Points(False), batch_size=8)  # type: ignore[arg-type]

    test_dataloader = val_dataloader


class Recorder(Callback):
    """Does nothing.

    Args:
        gain: A figure.
        mode: A name.
    """

    def __init__(self, gain: float = 0.1, mode: str = "eager") -> None:
        self.gain, self.mode = gain, mode


class Picky(Callback):
    """Refuses.

    Args:
        every: At least 1.
    """

    def __init__(self, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every is {every};\nit must be at least 1")
        self.every = every

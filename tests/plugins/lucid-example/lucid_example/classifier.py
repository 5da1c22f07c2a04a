"""A classifier as anybody would write it. It knows nothing of lucid."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

__all__ = ["Classifier"]


class Classifier(LightningModule):
    """A small convolutional network for images.

    Args:
        class_names: Names of the classes, in label order.
        width: Channels of the first layer.
        optimizer: Makes the optimizer from the parameters.
    """

    def __init__(self, class_names: list[str], width: int = 16, optimizer: OptimizerCallable = torch.optim.SGD) -> None:
        super().__init__()
        self.optimizer = optimizer
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.1),
            nn.Linear(2 * width, len(class_names)),
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(B, classes)`` for images ``(B, 3, H, W)``."""
        logits: Tensor = self.body(images)
        return logits

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of images and their labels ``(B,)``."""
        images, labels = batch
        loss: Tensor = self.criterion(self(images), labels)
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimizer."""
        return self.optimizer(self.parameters())

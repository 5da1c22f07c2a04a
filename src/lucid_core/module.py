"""The detector as a LightningModule: the step, its evaluation, and what a checkpoint holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, Unpack

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lucid_core.checkpoint import check_fits
from lucid_core.evaluation.evaluator import Decoder, Evaluator, detect
from lucid_core.memory_fill import KeepMemoryUnfilled
from lucid_core.network.detector import Network
from lucid_core.network.variants import Variant
from lucid_core.objective.build import build_objective
from lucid_core.objective.objective import progressive_weight
from lucid_core.optim.build import OptimizerName, build_optimizer, warn_of_kept
from lucid_core.optim.ema import AveragedNetwork, check_average
from lucid_core.optim.schedule import schedule_of
from lucid_core.prediction.load import TrainedOn, load_detector
from lucid_core.prediction.predict import ImageDetections, Options, Picture, predict
from lucid_core.seams import seam
from lucid_core.types import Batch, Detections, Task
from lucid_core.weights import start_from

__all__ = ["Detector"]


class Detector(LightningModule):
    """A detector and its training.

    The step, with the places where an acceleration may take over, is drawn in :mod:`lucid_core.seams`. Optimisation is
    Lightning's automatic one: precision, accumulation, clipping and schedules are its own.

    Args:
        class_names: Names of the classes, in label order. From the command line they come from the data.
        task: What is found besides classes and boxes. From the command line the data take it from here.
        points: Key points of an object, of the task ``keypoints``. From the command line they come from the data.
        variant: Size of the network.
        optimizer: ``musgd``, ``sgd`` or ``adamw``.
        lr: Learning rate after the warm-up.
        lrf: Factor on the learning rate at the last step; at 1 or more the rate does not decay.
        warmup_epochs: Epochs over which the learning rate rises linearly; 0 for none.
        momentum: Momentum, in ``[0, 1)``.
        weight_decay: Decay of matrices; vectors are never decayed.
        flow: Of the task ``keypoints``: learn how errors of key points are distributed (RLE); else Laplace's law holds.
        sigmas: Of the task ``keypoints``: spread of each point for object keypoint similarity, in the objective and in
            evaluation, as a part of the root of the object's area; by default COCO's for 17 points, else 0.072 for all.
        gains: Factors of terms of the objective that differ from the task's own, by name.
        alpha_start: Weight of the one-to-many branch in the first epoch.
        alpha_end: Weight of the one-to-many branch in the last epoch.
        ema_decay: Limit of the decay of the averaged weights, in ``[0, 1)``.
        ema_tau: Optimizer steps over which that decay grows.
        decoders: How predictions become detections for evaluation: ``end_to_end`` reads the one-to-one branch without
            suppression, ``nms`` the one-to-many branch with it. The first one gives ``val/map``; a second one is
            logged beside it under its name.
        engine: Evaluator of COCO metrics; ``pycocotools`` is the slower reference.
        weights: A checkpoint to start from, also one of other classes: what fits by name and shape is loaded, averaged
            where it has averages, classes by their names, key points by index; one message lists what does not fit.

    Raises:
        ValueError: A setting is out of its range.
    """

    def __init__(
        self,
        class_names: list[str],
        task: Task = "detect",
        points: int = 0,
        variant: Variant = "n",
        optimizer: OptimizerName = "musgd",
        lr: float = 0.01,
        lrf: float = 0.01,
        warmup_epochs: float = 3.0,
        momentum: float = 0.95,
        weight_decay: float = 5e-4,
        flow: bool = True,
        sigmas: list[float] | None = None,
        gains: dict[str, float] = {},  # noqa: B006 - read only, and hyperparameters are saved as they stand
        alpha_start: float = 0.8,
        alpha_end: float = 0.1,
        ema_decay: float = 0.9999,
        ema_tau: float = 2000.0,
        decoders: list[Decoder] = ["end_to_end"],  # noqa: B006 - as above
        engine: Literal["faster", "pycocotools"] = "faster",
        weights: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        check_average(ema_decay, ema_tau)
        limits = dict.fromkeys(("lr", "lrf", "warmup_epochs", "weight_decay"), math.inf)
        for name, limit in {**limits, "momentum": 1.0, "alpha_start": 1.0, "alpha_end": 1.0}.items():
            if not 0 <= self.hparams[name] <= limit:
                raise ValueError(f"model.{name} is {self.hparams[name]}; it must lie in [0, {limit:g}]")
        if not decoders:
            raise ValueError("model.decoders is empty; name end_to_end, nms or both")
        self.network = Network(variant, len(class_names), task, points)
        self.objective = build_objective(task, gains, points, flow, sigmas)
        if weights is not None:
            start_from(weights, self.network, self.objective, variant, class_names)
        self.evaluator: Evaluator | None = None
        self.trained_on = TrainedOn()
        self._average: AveragedNetwork | None = None
        self._average_state: dict[str, Any] | None = None

    # The step

    @seam("data.unpack")
    def unpack(self, batch: Batch) -> Batch:
        """Turn uint8 images on the device into floats in ``[0, 1]``, channels_last on CUDA."""
        layout = torch.channels_last if batch.images.is_cuda else torch.contiguous_format
        return batch._replace(images=batch.images.to(self.dtype, memory_format=layout).div_(255))

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        images, targets = super().transfer_batch_to_device((batch.images, batch.targets), device, dataloader_idx)
        return batch._replace(images=images, targets=targets)

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        return self.unpack(batch)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        losses = self.objective(self.network(batch.images), batch.targets)
        return {"loss": losses.total, "scalars": losses.scalars()}

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        super().optimizer_step(*args, **kwargs)
        # Here, and not in on_train_batch_end, because callbacks that save a checkpoint run before that hook. The
        # average follows global_step, so it also counts a step that the gradient scaler of 16-mixed skipped.
        self.average.write_scalars()
        self.average.update()

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        # Not in the step, where a recording would leave it out; and only where the logger writes, since each call of
        # log costs more than many of the step's kernels.
        every: int = self.trainer.log_every_n_steps  # type: ignore[attr-defined]
        if every and self.trainer.global_step % every == 0 and isinstance(outputs, Mapping):
            scalars = {f"train/{name}": value for name, value in outputs.get("scalars", {}).items()}
            self.log_dict(scalars, on_step=True, on_epoch=False, batch_size=len(batch.images))

    def configure_optimizers(self) -> Any:
        h = self.hparams
        optimizer = build_optimizer(h["optimizer"], self.parameters(), h["lr"], h["momentum"], h["weight_decay"])
        epochs = self._epochs()
        if epochs is None or (h["lrf"] >= 1 and h["warmup_epochs"] <= 0):
            return optimizer
        total = int(self.trainer.estimated_stepping_batches)
        scheduler = schedule_of(optimizer, total, epochs, h["warmup_epochs"], h["lrf"])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    # The life of a run

    def configure_callbacks(self) -> list[Callback]:
        return [KeepMemoryUnfilled()]

    def setup(self, stage: str) -> None:
        if isinstance(self.trainer.accelerator, CUDAAccelerator):
            self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def on_fit_start(self) -> None:
        self._renew_average()
        self.trained_on = self.trained_on.updated(getattr(self.trainer, "datamodule", None))

    def on_train_start(self) -> None:
        # Lightning leaves out on_train_epoch_start when it resumes in the middle of an epoch.
        self._write_weight()
        warn_of_kept(self.trainer.optimizers[0], self.hparams)

    def on_train_epoch_start(self) -> None:
        self._write_weight()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["ema"] = self.average.state_dict()
        checkpoint["trained_on"] = self.trained_on.state_dict()
        # It is complete without the file it was started from, which may be gone when it is loaded.
        checkpoint["hyper_parameters"]["weights"] = None

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        check_fits(checkpoint["hyper_parameters"], self.hparams)
        self._average, self._average_state = None, checkpoint.get("ema")
        self.trained_on = TrainedOn.of(checkpoint.get("trained_on"))
        self.trained_on.check_fits(getattr(self._trainer, "datamodule", None))

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load weights; the average starts anew from them, unless the checkpoint brings its own."""
        self._average = None
        return super().load_state_dict(*args, **kwargs)

    @property
    def average(self) -> AveragedNetwork:
        """The averaged network, where the network is; equal to it until the first optimizer step."""
        if self._average is None:
            self._average = AveragedNetwork(self.network, self.hparams["ema_decay"], self.hparams["ema_tau"])
            if self._average_state is not None:
                self._average.load_state_dict(self._average_state)
                self._average_state = None
        self._average.to(self.device, next(self.network.parameters()).dtype)
        return self._average

    def _renew_average(self) -> None:
        """Build the average where the network is now; one that was never updated takes the weights there are now."""
        if self._average is not None and self._average.updates and self._average_state is None:
            self._average_state = self._average.state_dict()
        self._average = None
        _ = self.average

    def _epochs(self) -> int | None:
        """Epochs of the run, or ``None`` where it is bounded by steps or time alone."""
        epochs = self.trainer.max_epochs
        return epochs if epochs is not None and epochs > 0 else None

    def _write_weight(self) -> None:
        start, end = self.hparams["alpha_start"], self.hparams["alpha_end"]
        self.objective.write_scalars(progressive_weight(self.current_epoch, self._epochs(), start, end))

    # Prediction and evaluation

    @classmethod
    def from_checkpoint(cls, path: str | Path, device: str | torch.device = "auto") -> Self:
        """Load a trained detector. ``auto`` is the first GPU, else the CPU; a ``ValueError`` says what does not fit."""
        return load_detector(cls, Path(path), device)

    def predict(self, images: Picture | Sequence[Picture], **options: Unpack[Options]) -> list[ImageDetections]:
        """Find the objects in pictures, as :func:`lucid_core.prediction.predict.predict` describes."""
        return predict(self, images, **options)

    def forward(self, images: Tensor) -> Detections:
        """Detect objects with the averaged weights and the first decoder.

        Args:
            images: ``(B, 3, H, W)`` floats in ``[0, 1]``, H and W multiples of 32.
        """
        return detect(self.average.network(images), self.hparams["decoders"][0])

    def predict_step(self, batch: Batch, batch_idx: int) -> Detections:
        return self.forward(batch.images)

    def on_validation_start(self) -> None:
        self._start_evaluation("val_set")

    def on_test_start(self) -> None:
        self._start_evaluation("test_set")

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "val")

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        self._evaluate(batch, "test")

    def on_validation_epoch_end(self) -> None:
        self._finish_evaluation("val")

    def on_test_epoch_end(self) -> None:
        self._finish_evaluation("test")

    def on_fit_end(self) -> None:
        self._report()

    def on_validation_end(self) -> None:
        if self.trainer.sanity_checking:
            self.evaluator = None  # or a run that ends early would report what it measured before it trained
        elif self.trainer.state.fn != "fit":
            self._report()

    def on_test_end(self) -> None:
        self._report()

    def _start_evaluation(self, name: str) -> None:
        if self.trainer.state.fn != "fit":
            self._renew_average()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.average.synchronize()
        data = getattr(getattr(self.trainer, "datamodule", None), name, None)
        h = self.hparams
        self.evaluator = None if data is None else Evaluator(data, h["decoders"], h["engine"], h["task"], h["sigmas"])

    def _evaluate(self, batch: Batch, prefix: str) -> None:
        predictions = self.average.network(batch.images)
        losses = self.objective(predictions, batch.targets).scalars().items()
        self.log_dict({f"{prefix}/{k}": v for k, v in losses}, batch_size=len(batch.images), sync_dist=True)
        if self.evaluator is not None:
            self.evaluator.update(predictions, batch)

    def _finish_evaluation(self, prefix: str) -> None:
        if self.evaluator is not None:
            figures = {f"{prefix}/{name}": value for name, value in self.evaluator.compute().items()}
            self.log_dict(figures, sync_dist=True)

    def _report(self) -> None:
        if self.evaluator is not None:
            rank_zero_info(self.evaluator.report())
            if self.trainer.logger is not None and self.trainer.log_dir is not None:
                rank_zero_info(f"\nThe run is in {self.trainer.log_dir}")
                if self.trainer.state.fn != "fit" and self.trainer.is_global_zero:
                    self.evaluator.write_detections(Path(self.trainer.log_dir))

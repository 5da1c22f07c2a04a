"""A data set of a few pictures, and runs of a few steps over it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer, seed_everything

from lucid_core.data.module import DataModule
from lucid_core.data.shapes import write_shapes
from lucid_core.module import Detector


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten training and six validation pictures of 64 pixels."""
    return write_shapes(tmp_path_factory.mktemp("shapes"), train=10, val=6, size=64)


@pytest.fixture
def fit(shapes: Path, tmp_path: Path) -> Callable[..., Trainer]:
    """Train for a few steps: batch 4, so three steps an epoch, the last with two pictures."""

    def run(
        callbacks: list[Any] | None = None,
        ckpt_path: Path | None = None,
        data: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        module: Detector | None = None,
        **settings: Any,
    ) -> Trainer:
        seed_everything(0, verbose=False)
        small = {"root": str(shapes), "image_size": 64, "batch_size": 4, "workers": 0}
        datamodule = DataModule(**{**small, **(data or {})})
        detector = module or Detector(list(datamodule.class_names), **{"warmup_epochs": 1.0, **(model or {})})
        trainer = Trainer(
            **{
                "accelerator": "cpu",
                "max_epochs": 2,
                "default_root_dir": tmp_path,
                "logger": False,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "gradient_clip_val": 10.0,
                "num_sanity_val_steps": 0,
                "deterministic": True,
                "log_every_n_steps": 1,
                "callbacks": callbacks,
                **settings,
            }
        )
        trainer.fit(detector, datamodule, ckpt_path=ckpt_path)
        return trainer

    return run


def digest(checkpoint: dict[str, Any]) -> dict[str, str]:
    """Hash every tensor and number of a checkpoint by its place, but for what names files and versions."""
    result: dict[str, str] = {}

    def walk(place: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                walk(f"{place}/{key}", item)
        elif isinstance(value, (list, tuple)):
            for key, item in enumerate(value):
                walk(f"{place}/{key}", item)
        elif isinstance(value, torch.Tensor):
            octets = value.detach().cpu().contiguous().flatten().view(torch.uint8)
            result[place] = hashlib.sha256(octets.numpy()).hexdigest()
        else:
            result[place] = repr(value)

    for part in ("state_dict", "ema", "optimizer_states", "lr_schedulers", "global_step", "epoch"):
        walk(part, checkpoint[part])
    return result

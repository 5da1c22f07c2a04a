"""A detector of two training steps, the pictures it was trained on, and the command line as typed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from lightning.pytorch import Trainer, seed_everything
from numpy.typing import NDArray
from PIL import Image

from lucid_core.__main__ import main
from lucid_core.data.module import DataModule
from lucid_core.data.shapes import write_shapes
from lucid_core.module import Detector

#: Ids of the annotation file that are not labels.
CATEGORIES = (3, 5, 7, 11, 90)


class Finished(NamedTuple):
    """What a command left."""

    status: int
    out: str
    err: str


Command = Callable[..., Finished]


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight training and five validation pictures of 64 pixels, with category ids of their own."""
    root = write_shapes(tmp_path_factory.mktemp("shapes"), train=8, val=5, size=64)
    for file in (root / "annotations").iterdir():
        content = json.loads(file.read_text())
        ids = {old["id"]: new for old, new in zip(content["categories"], CATEGORIES, strict=True)}
        for entry in content["categories"]:
            entry["id"] = ids[entry["id"]]
        for entry in content["annotations"]:
            entry["category_id"] = ids[entry["category_id"]]
        file.write_text(json.dumps(content))
    return root


@pytest.fixture(scope="session")
def checkpoint(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detector after two steps, whose averaged weights are not its raw ones."""
    seed_everything(0, verbose=False)
    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0)
    names = list(data.class_names)
    detector = Detector(names, warmup_epochs=0.0, lr=0.02, ema_tau=2.0, decoders=["end_to_end", "nms"])
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(detector, data)
    path = tmp_path_factory.mktemp("run") / "best.ckpt"
    trainer.save_checkpoint(path)
    return path


@pytest.fixture(scope="session")
def loaded(checkpoint: Path) -> Detector:
    return Detector.from_checkpoint(checkpoint, device="cpu")


@pytest.fixture
def photograph() -> NDArray[np.uint8]:
    """Blocks of random colours, wider than high, of a size that is no multiple of anything."""
    blocks = np.random.default_rng(3).integers(0, 256, (5, 7, 3), np.uint8)
    return np.asarray(Image.fromarray(blocks).resize((101, 67), Image.Resampling.NEAREST))


@pytest.fixture
def lucid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str | Path) -> Finished:
        monkeypatch.setattr(sys, "argv", ["lucid", *map(str, words)])
        capsys.readouterr()
        try:
            status = main()
        except SystemExit as stopped:
            status = int(stopped.code or 0)
        return Finished(status, *capsys.readouterr())

    return run

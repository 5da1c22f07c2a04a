"""The pictures of real runs: what they show, when they are made, and that the run does not notice."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from PIL import Image

from lucid_accel import LossReplay, NetworkReplay
from lucid_accel.testing import cpu_engine
from lucid_core.data.augment import Recipe
from lucid_core.data.loader import TrainLoader
from lucid_core.data.module import DataModule
from lucid_core.data.types import Sample
from lucid_core.evaluation.coco import CocoEvaluation
from lucid_core.module import Detector
from lucid_core.pictures import batches, callback
from lucid_core.pictures.batches import first_samples, validation
from lucid_core.pictures.callback import Pictures
from lucid_core.pictures.draw import colour_of
from lucid_core.pictures.grid import GAP, SIDE, TITLE
from lucid_core.types import Batch, Detections, Task
from tests.training.conftest import digest

Fit = Callable[..., Trainer]

ALL = {"train_batch_0.png", "curves.png", "val_predictions.png"}
RECIPE: dict[str, Any] = {"recipe": Recipe(mosaic=0.5, mixup=0.3, degrees=10.0), "close_mosaic": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def logger(folder: Path) -> CSVLogger:
    return CSVLogger(folder.parent, name="", version=folder.name)


def drawn(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.png")} if folder.is_dir() else set()


def test_a_run_folder_has_three_pictures(fit: Fit, folder: Path, logger: CSVLogger) -> None:
    fit([Pictures()], logger=logger, num_sanity_val_steps=1)
    assert drawn(folder) == ALL
    # Four pictures a batch; six validation pictures, each twice.
    height, width = TITLE + SIDE, 4 * SIDE + 3 * GAP
    assert np.asarray(Image.open(folder / "train_batch_0.png")).shape == (height, width, 3)
    assert np.asarray(Image.open(folder / "val_predictions.png")).shape == (3 * height + 2 * GAP, width, 3)


class Watch(Callback):
    """Keeps the first batch that the network gets, and what the pictures would show of it."""

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.samples: list[Sample] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        loader = trainer.train_dataloader
        assert isinstance(loader, TrainLoader)
        self.samples = first_samples(loader, trainer.current_epoch, 16)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.batch = self.batch or batch


class SaveAt(Callback):
    """Saves a checkpoint after some of the steps."""

    def __init__(self, folder: Path, steps: tuple[int, ...]) -> None:
        self.folder, self.steps = folder, steps

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step in self.steps:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")


def same(watch: Watch) -> bool:
    batch = watch.batch
    assert batch is not None
    seen = (batch.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    pixels = np.array_equal(seen, np.stack([sample.image for sample in watch.samples]))
    labels = all(
        np.array_equal(boxes[valid], sample.instances.boxes) and np.array_equal(of[valid], sample.instances.labels)
        for boxes, of, valid, sample in zip(*(t.numpy() for t in batch.targets[:3]), watch.samples, strict=True)
    )
    return pixels and labels


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batch_is_the_one_that_the_network_sees(fit: Fit, tmp_path: Path, workers: int) -> None:
    watch, data = Watch(), {"workers": workers, **RECIPE}
    fit([watch], data=data, max_epochs=1)
    assert same(watch)
    # The comparison sees another batch.
    watch.samples = watch.samples[::-1]
    assert not same(watch)
    # In the middle of an epoch, and after a whole one.
    fit([SaveAt(tmp_path, (2, 3))], data=data)
    for step in (2, 3):
        resumed = Watch()
        fit([resumed], data=data, ckpt_path=tmp_path / f"{step}.ckpt")
        assert same(resumed), step
        assert not np.array_equal(resumed.samples[0].image, watch.samples[0].image)


@pytest.mark.parametrize("task", [*get_args(Task), "one-sided"])
def test_the_samples_of_every_task_are_those_that_the_loader_delivers(shapes: Path, tmp_path: Path, task: str) -> None:
    """Mirrored ones too, in which key points change places; none is mirrored where it is not known which."""
    root = Path(shutil.copytree(shapes, tmp_path / "set"))
    if task == "one-sided":
        for file in (root / "annotations").glob("*.json"):
            held = json.loads(file.read_text())
            for category in held["categories"]:
                category["keypoints"] = ["left_eye", "nose", "mouth", "chin"]
            file.write_text(json.dumps(held))
    data = DataModule(
        str(root), image_size=64, batch_size=8, workers=0, recipe=Recipe(mosaic=0, flip=1.0),
        task="keypoints" if task == "one-sided" else task,  # type: ignore[arg-type]
    )  # fmt: skip
    loader = data.train_dataloader()
    assert loader.augmenter.pairs == {"keypoints": ((1, 3),), "one-sided": None}.get(task, ())
    samples = first_samples(loader, 0, 8)
    assert not loader.augmenter.source._kept
    batch = next(iter(loader))
    assert np.array_equal(batch.images.permute(0, 2, 3, 1).numpy(), np.stack([sample.image for sample in samples]))
    valid = batch.targets.valid
    for name in ("boxes", "labels", "rboxes", "points", "visibility"):
        delivered = getattr(batch.targets, name)
        if delivered is not None:
            drawn = np.concatenate([getattr(sample.instances, name) for sample in samples])
            assert np.array_equal(delivered[valid].numpy(), drawn), name


@pytest.mark.parametrize("replays", [(), (NetworkReplay, LossReplay)], ids=["native", "replayed"])
def test_a_run_has_the_same_bytes_with_and_without(
    fit: Fit, tmp_path: Path, logger: CSVLogger, folder: Path, replays: tuple[Any, ...]
) -> None:
    digests = []
    for name, pictures in (("without", []), ("with", [Pictures()])):
        with cpu_engine(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            callbacks = [*pictures, *(kind() for kind in replays)]
            trainer = fit(callbacks, logger=logger if pictures else False, data=RECIPE, max_epochs=3)
        assert all(replay.tally.replayed for replay in callbacks[len(pictures) :])
        trainer.save_checkpoint(tmp_path / name)
        checkpoint = torch.load(tmp_path / name, weights_only=True)
        assert not [key for key in checkpoint["callbacks"] if "Pictures" in key]
        digests.append(digest(checkpoint))
    assert digests[0] == digests[1]
    assert drawn(folder) == ALL


def test_nothing_happens_between_training_batches() -> None:
    """Where reading the device would make the host wait."""
    hooks = {name for name in dir(Callback) if getattr(Pictures, name) is not getattr(Callback, name, None)}
    assert {name for name in hooks if name.startswith("on_")} == {
        "on_train_start",
        "on_train_end",
        "on_validation_end",
        "on_test_end",
    }


@pytest.mark.parametrize(
    "options",
    [{"logger": False}, {"fast_dev_run": True}, {"every": 0}, {"rank": 1}],
    ids=lambda options: next(iter(options)),
)
def test_where_nothing_is_drawn(
    fit: Fit, tmp_path: Path, logger: CSVLogger, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    if options.pop("rank", 0):
        monkeypatch.setattr(Trainer, "is_global_zero", property(lambda self: False))
    pictures = Pictures(every=options.pop("every", 1))
    fit([pictures], **{"logger": logger, "max_epochs": 1, **options})
    assert not list(tmp_path.rglob("*.png"))


def test_nothing_is_drawn_in_the_sanity_check(fit: Fit, folder: Path, logger: CSVLogger) -> None:
    class Stop(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            assert not drawn(folder) - {"train_batch_0.png"}
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        fit([Pictures(), Stop()], logger=logger, num_sanity_val_steps=2)
    assert drawn(folder) == {"train_batch_0.png"}


def test_every_second_validation(fit: Fit, logger: CSVLogger, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(callback, "validation", lambda evaluation, limit: calls.append(limit))
    fit([Pictures(every=2, tiles=6)], logger=logger, max_epochs=5, limit_train_batches=1)
    assert calls == [3, 3, 3]


def test_a_run_without_validation_has_curves(fit: Fit, folder: Path, logger: CSVLogger) -> None:
    fit([Pictures()], logger=logger, limit_val_batches=0, max_epochs=1)
    assert drawn(folder) == {"train_batch_0.png", "curves.png"}


def test_another_logger_gives_a_folder_but_no_curves(fit: Fit, folder: Path) -> None:
    other = TensorBoardLogger(folder.parent, name="", version=folder.name)
    fit([Pictures()], logger=other, max_epochs=1)
    assert drawn(folder) == {"train_batch_0.png", "val_predictions.png"}


@pytest.mark.parametrize("broken", ["training_batch", "draw_curves", "validation", "save"])
def test_a_picture_that_fails_is_told_once_and_the_run_goes_on(
    fit: Fit, logger: CSVLogger, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(callback, broken, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit([Pictures()], logger=logger)
    told = [str(w.message) for w in caught if "pictures" in str(w.message)]
    assert len(told) == 1
    assert told[0].startswith("no more pictures of this run") and told[0].endswith("OSError: the disk is full")
    assert trainer.state.finished and trainer.global_step == 6


def test_validate_and_test_draw_into_their_own_folders(shapes: Path, tmp_path: Path) -> None:
    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0)
    for name in ("validate", "test"):
        trainer = Trainer(
            logger=CSVLogger(tmp_path, name="", version=name), callbacks=[Pictures()], accelerator="cpu",
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        getattr(trainer, name)(Detector(list(data.class_names)), data, verbose=False)
    assert drawn(tmp_path / "validate") == {"val_predictions.png"}
    assert drawn(tmp_path / "test") == {"test_predictions.png"}


def test_detections_stand_beside_the_labels(shapes: Path) -> None:
    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0).val_set
    evaluation = CocoEvaluation(data)
    letterbox = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    wanted = {}
    for index, record in enumerate(data.records):
        boxes = torch.tensor(record.truth.boxes, dtype=torch.float32)[None]
        count = boxes.shape[1]
        # All but the first picture are detected as they are labelled; there nothing reaches the score.
        scores = torch.full((1, count), 0.9 if index else 0.2)
        labels = torch.tensor(record.truth.labels)[None]
        evaluation.update(Detections(boxes, scores, labels, labels), torch.tensor([index]), letterbox)
        wanted[index] = [colour_of(int(label)) for label in record.truth.labels]
    picture = validation(evaluation, len(data))
    assert picture is not None
    step = SIDE + GAP
    for place, colours in enumerate(wanted[index] for index in wanted if len(data.records[index].truth.labels)):
        row, column = divmod(2 * place, 4)
        top = row * (TITLE + step) + TITLE
        left, right = (picture[top : top + SIDE, at * step : at * step + SIDE] for at in (column, column + 1))
        for colour in colours:
            assert (left == colour).all(2).any()
            assert bool((right == colour).all(2).sum() > 50) == bool(place)


def test_the_same_images_are_drawn_each_time(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataModule(str(shapes), image_size=64, batch_size=4, workers=0).train_set
    titles: list[str] = []
    real = batches.tile
    monkeypatch.setattr(batches, "tile", lambda *args: titles.append(args[2]) or real(*args))
    empty = torch.zeros(1, 1, dtype=torch.int64)
    for order in (range(10), range(9, -1, -1)):
        evaluation = CocoEvaluation(data)
        for index in order:
            nothing = Detections(torch.zeros(1, 1, 4), torch.zeros(1, 1), empty, empty - 1)
            evaluation.update(nothing, torch.tensor([index]), torch.tensor([[1.0, 0, 0]], dtype=torch.float64))
        validation(evaluation, 3)
    assert len(titles) == 12
    assert titles[:6] == titles[6:]
    assert len({title for title in titles if title.startswith("labels")}) == 3
    assert validation(CocoEvaluation(data), 3) is None


@pytest.mark.parametrize("options", [{"every": -1}, {"tiles": 1}])
def test_settings_are_checked(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Pictures(**options)

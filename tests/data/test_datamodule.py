"""The data module inside a real Trainer."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.images import ImageReader
from lucid_core.data.module import DataModule
from lucid_core.data.shapes import CLASSES, write_shapes
from lucid_core.data.types import DataError

from .test_loader import hashes
from .test_structure import broken_inside

TRAIN, BATCH = 22, 4
STEPS = 6


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("data") / "set", train=TRAIN, val=9, size=64)


class Seen(LightningModule):
    """Trains one number and remembers what it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.train_seen: list[tuple[int, list[str]]] = []
        self.val_seen: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.train_seen.append((self.current_epoch, hashes(batch)))
        return self.weight * batch.targets.boxes.mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_seen += batch.records.tolist()

    test_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def module(root: Path, **options: Any) -> DataModule:
    return DataModule(**{"root": str(root), "image_size": 64, "batch_size": BATCH, "workers": 0, **options})


def fit(root: Path, folder: Path, ckpt: Path | None = None, **options: Any) -> Seen:
    seen, data = Seen(), module(root, **options.pop("data", {}))
    trainer(folder, **options).fit(seen, data, ckpt_path=ckpt)
    return seen


def trainer(folder: Path, **options: Any) -> Trainer:
    given: dict[str, Any] = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "max_epochs": 3,
        "num_sanity_val_steps": 0,
    }
    return Trainer(**given | options)


def test_a_fit_shows_every_image_once_an_epoch_and_validates_in_order(shapes: Path, tmp_path: Path) -> None:
    seen = fit(shapes, tmp_path)
    assert [epoch for epoch, _ in seen.train_seen] == [0] * STEPS + [1] * STEPS + [2] * STEPS
    assert len({one for _, batch in seen.train_seen for one in batch}) == 3 * TRAIN
    assert seen.val_seen == list(range(9)) * 3
    again = fit(shapes, tmp_path, data={"workers": 2})
    assert again.train_seen == seen.train_seen


@pytest.mark.parametrize(("workers", "stop"), [(0, 4), (0, 6), (0, 8), (2, 8), (0, 12)])
def test_a_checkpoint_in_the_middle_of_an_epoch_goes_on_with_exactly_the_rest(
    shapes: Path, tmp_path: Path, workers: int, stop: int
) -> None:
    whole = fit(shapes, tmp_path)
    saver = ModelCheckpoint(tmp_path, filename="at-{step}", every_n_train_steps=stop, save_top_k=-1)
    fit(shapes, tmp_path, callbacks=[saver], enable_checkpointing=True, data={"workers": workers})
    rest = fit(shapes, tmp_path, ckpt=tmp_path / f"at-step={stop}.ckpt", data={"workers": workers})
    assert rest.train_seen == whole.train_seen[stop:]


def test_a_checkpoint_at_the_end_of_an_epoch_starts_the_next(shapes: Path, tmp_path: Path) -> None:
    whole = fit(shapes, tmp_path)
    saver = ModelCheckpoint(tmp_path, filename="end-{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    fit(shapes, tmp_path, callbacks=[saver], enable_checkpointing=True)
    rest = fit(shapes, tmp_path, ckpt=tmp_path / "end-epoch=0.ckpt")
    assert rest.train_seen == whole.train_seen[STEPS:]


@pytest.mark.parametrize("rest", [{"max_epochs": 3}, {"max_epochs": 3, "max_steps": 14}])
def test_a_run_stopped_by_steps_goes_on_where_it_stopped(shapes: Path, tmp_path: Path, rest: dict[str, int]) -> None:
    whole = fit(shapes, tmp_path)
    # What a callback saves at the last step; after fit has returned, Lightning counts the broken epoch as complete.
    saver = ModelCheckpoint(tmp_path, filename="at-{step}", every_n_train_steps=9)
    first = fit(shapes, tmp_path, callbacks=[saver], enable_checkpointing=True, max_steps=9)
    second = fit(shapes, tmp_path, ckpt=tmp_path / "at-step=9.ckpt", **rest)
    assert first.train_seen + second.train_seen == whole.train_seen[: rest.get("max_steps")]


def test_mosaic_closes_by_the_epochs_of_the_trainer_and_a_longer_run_keeps_it(shapes: Path, tmp_path: Path) -> None:
    short = fit(shapes, tmp_path, max_epochs=2, data={"close_mosaic": 1})
    long = fit(shapes, tmp_path, max_epochs=3, data={"close_mosaic": 1})
    assert short.train_seen[:STEPS] == long.train_seen[:STEPS]
    assert short.train_seen[STEPS:] != long.train_seen[STEPS : 2 * STEPS]


def test_overfitting_repeats_the_same_batches_without_a_warning_about_shuffling(shapes: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*overfit.*")
        seen = fit(shapes, tmp_path, overfit_batches=2, max_epochs=2)
    assert [batch for _, batch in seen.train_seen[:2]] == [batch for _, batch in seen.train_seen[2:]]
    assert len(seen.train_seen) == 4


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"fast_dev_run": True}, 1),
        ({"limit_train_batches": 1, "max_epochs": 2}, 2),
        ({"limit_train_batches": 0, "max_epochs": 1}, 0),
        ({"limit_val_batches": 0, "max_epochs": 1}, STEPS),
        ({"val_check_interval": 0.5, "max_epochs": 1}, STEPS),
        ({"max_steps": 8}, 8),
        ({"max_epochs": -1, "max_steps": 7}, 7),
    ],
)
def test_the_switches_of_the_trainer_work(shapes: Path, tmp_path: Path, options: dict[str, Any], steps: int) -> None:
    assert len(fit(shapes, tmp_path, data={"workers": 1}, **options).train_seen) == steps
    assert not multiprocessing.active_children()


def test_one_module_serves_two_fits_and_a_validation(shapes: Path, tmp_path: Path) -> None:
    data, runs = module(shapes, workers=1), []
    for _ in range(2):
        seen = Seen()
        trainer(tmp_path, max_epochs=1).fit(seen, data)
        runs.append(seen.train_seen)
    assert runs[0] == runs[1]
    seen = Seen()
    trainer(tmp_path).validate(seen, data)
    assert seen.val_seen == list(range(9))
    with pytest.warns(UserWarning, match="testing on the validation split"):
        trainer(tmp_path).test(seen, data)


def test_classes_are_known_right_after_construction(shapes: Path, tmp_path: Path, monkeypatch: Any) -> None:
    data = module(shapes)
    assert data.class_names == CLASSES
    assert data.num_classes == len(data.category_ids) == 5
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lucid_core.data.module.write_shapes", lambda root: write_shapes(root, 3, 2, 64))
    generated = DataModule()
    assert generated.class_names == CLASSES
    assert (tmp_path / ".lucid/shapes/annotations/instances_val.json").is_file()
    generated.prepare_data()
    assert len(generated.val_set) == 2


def test_a_validation_looks_at_no_training_picture(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    inspect = ImageReader.inspect

    def counted(self: ImageReader, path: Path, decode: bool = False) -> tuple[int, int]:
        looked.append(path.parent.name)
        return inspect(self, path, decode)

    monkeypatch.setattr(ImageReader, "inspect", counted)
    data = module(shapes)
    assert data.class_names == CLASSES and data.category_ids and not looked
    trainer(tmp_path).validate(Seen(), data)
    assert looked == ["val"] * 9
    trainer(tmp_path).fit(Seen(), module(shapes))
    assert looked.count("train") == TRAIN


def test_every_process_asks_for_the_folder_of_the_run_whatever_it_has_to_tell(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Trainer] = []
    monkeypatch.setattr(Trainer, "log_dir", property(asked.append))
    data = module(shapes)
    data.trainer = trainer(tmp_path)
    data.setup("fit")
    assert len(asked) == 2 and not data.train_set.problems


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 650}, "image_size is 650; .* such as 640"),
        ({"image_size": 0}, "image_size is 0"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"workers": -1}, "workers is -1"),
        ({"close_mosaic": -2}, "close_mosaic is -2"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataModule(**options)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        _ = module(tmp_path / "nowhere").class_names


def test_problems_are_told_once_and_all_of_them_are_kept(shapes: Path, tmp_path: Path) -> None:
    root = tmp_path / "set"
    (root / "annotations").mkdir(parents=True)
    for split in ("train", "val"):
        (root / split).symlink_to(shapes / split)
        content = json.loads((shapes / f"annotations/instances_{split}.json").read_text())
        if split == "train":
            kept = content["annotations"]
            bad = [{**kept[0], "id": 10_000 + k, "bbox": [1, 1, -5, 4]} for k in range(15)]
            content["annotations"] = kept + bad
        (root / f"annotations/instances_{split}.json").write_text(json.dumps(content))
    data = module(root)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer(tmp_path, max_epochs=1, limit_train_batches=1, limit_val_batches=1).fit(Seen(), data)
        trainer(tmp_path, max_epochs=1, limit_train_batches=1, limit_val_batches=1).fit(Seen(), data)
    told = [str(warning.message) for warning in caught if "problems" in str(warning.message)]
    assert len(told) == 1
    assert "problems-train.txt" in told[0]
    assert told[0].count("annotation 100") == 3 and "... and 12 more" in told[0]
    kept = (tmp_path / "problems-train.txt").read_text()
    assert len(data.train_set.problems) == 15 and all(str(problem) in kept for problem in data.train_set.problems)


@pytest.fixture
def own(shapes: Path, tmp_path: Path) -> Path:
    """A copy of the data set, to be damaged."""
    return Path(shutil.copytree(shapes, tmp_path / "own"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fit_goes_on_without_the_pictures_that_cannot_be_decoded(own: Path, tmp_path: Path, workers: int) -> None:
    pictures = sorted((own / "train").iterdir())
    whole = pictures[0].read_bytes()
    damaged = {0: b"", 1: b"<html>Not found</html>", 2: whole[: len(whole) // 2], 3: whole[:60], 4: whole[:-30]}
    for i, content in damaged.items():
        pictures[i].write_bytes(content)
    seen, data = Seen(), module(own, workers=workers)
    with pytest.warns(UserWarning, match="5 x picture unreadable") as caught:
        trainer(tmp_path, max_epochs=1).fit(seen, data)
    told = [str(warning.message) for warning in caught if "unreadable" in str(warning.message)]
    assert len(told) == 1 and "... and 2 more" in told[0]
    assert all(pictures[i].name in told[0] for i in range(3)) and pictures[4].name not in told[0]
    assert sum(len(batch) for _, batch in seen.train_seen) == TRAIN - 5
    assert not multiprocessing.active_children()


def test_damage_that_only_decoding_shows_ends_a_fit_in_one_line_that_names_the_file(own: Path, tmp_path: Path) -> None:
    path = min((own / "train").iterdir())
    path.write_bytes(broken_inside(path.read_bytes()))
    with pytest.raises(DataError, match=path.name) as caught:
        trainer(tmp_path, max_epochs=1).fit(Seen(), module(own, workers=2))
    assert "\n" not in str(caught.value)
    assert not multiprocessing.active_children()


def test_a_second_fit_in_one_process_sees_labels_and_pictures_as_they_are_now(own: Path, tmp_path: Path) -> None:
    data = module(own)

    def again() -> Seen:
        seen = Seen()
        trainer(tmp_path, max_epochs=1).fit(seen, data)
        return seen

    before = again().train_seen
    file, picture = own / "annotations/instances_train.json", min((own / "train").iterdir())
    content = json.loads(file.read_text())
    row = content["annotations"][0]
    row["category_id"] = row["category_id"] % 5 + 1
    file.write_text(json.dumps(content))
    relabelled = again().train_seen
    assert data.train_set.records[0].truth.labels[0] == row["category_id"] - 1
    assert relabelled != before
    pixels = np.asarray(Image.open(picture)).copy()
    pixels[::2] = 255 - pixels[::2]
    Image.fromarray(pixels).save(picture)
    repainted = again().train_seen
    assert repainted != relabelled
    fresh = fit(Path(shutil.copytree(own, tmp_path / "fresh")), tmp_path, max_epochs=1)
    assert repainted == fresh.train_seen
    picture.write_bytes(b"")
    with pytest.warns(UserWarning, match="1 x picture unreadable"):
        again()


@pytest.mark.parametrize("names", [CLASSES[:3], (*CLASSES, "more"), CLASSES[::-1]])
def test_a_model_of_other_classes_is_refused_before_the_first_batch(
    shapes: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    class Named(Seen):
        def __init__(self, class_names: tuple[str, ...]) -> None:
            super().__init__()
            self.save_hyperparameters()

    seen = Named(names)
    with pytest.raises(DataError, match=rf"the data has 5 classes \(.*the model has {len(names)} \("):
        trainer(tmp_path, max_epochs=1).fit(seen, module(shapes))
    assert seen.train_seen == []
    trainer(tmp_path, max_epochs=1).fit(Named(CLASSES), module(shapes))


def test_pictures_of_a_stated_recipe_reach_the_samples(shapes: Path) -> None:
    plain = Recipe(mosaic=0, scale=0, translate=0, copy_paste=0, hue=0, saturation=0, value=0, flip=0)
    data = module(shapes, recipe=plain)
    batch = next(iter(data.train_dataloader()))
    record = data.train_set.records[int(batch.records[0])]
    valid = batch.targets.valid[0]
    np.testing.assert_allclose(batch.targets.boxes[0][valid].numpy(), record.instances.boxes, atol=1e-4)


class Raising(Seen):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize(("error", "seen"), [(RuntimeError(), RuntimeError), (KeyboardInterrupt(), SystemExit)])
def test_a_fit_that_raises_leaves_no_worker(
    shapes: Path, tmp_path: Path, error: BaseException, seen: type[BaseException]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    try:
        # The traceback that is kept here must not keep workers alive either.
        with pytest.raises(seen) as caught:
            trainer(tmp_path, num_sanity_val_steps=1).fit(Raising(error), module(shapes, workers=2))
        assert not multiprocessing.active_children()
    finally:
        signal.signal(signal.SIGINT, handler)
    assert caught.tb is not None


def test_a_worker_that_raises_leaves_no_other(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Augmenter, key: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Augmenter, "sample", broken)
    with pytest.raises(RuntimeError, match="broken") as caught:
        trainer(tmp_path).fit(Seen(), module(shapes, workers=2))
    assert not multiprocessing.active_children()
    assert caught.tb is not None


def test_a_validated_checkpoint_does_not_shorten_a_later_fit(shapes: Path, tmp_path: Path) -> None:
    saver = ModelCheckpoint(tmp_path, filename="at-{step}", every_n_train_steps=4)
    fit(shapes, tmp_path, callbacks=[saver], enable_checkpointing=True, max_steps=4)
    data, whole = module(shapes), Seen()
    trainer(tmp_path).validate(Seen(), data, ckpt_path=tmp_path / "at-step=4.ckpt")
    trainer(tmp_path, max_epochs=1).fit(whole, data)
    assert len(whole.train_seen) == STEPS


def test_only_the_middle_of_an_epoch_ties_a_run_to_its_batch_size(shapes: Path, tmp_path: Path) -> None:
    middle = ModelCheckpoint(tmp_path, filename="at-{step}", every_n_train_steps=2)
    end = ModelCheckpoint(tmp_path, filename="end-{epoch}", save_on_train_epoch_end=True)
    options = {"limit_train_batches": 3, "enable_checkpointing": True}
    fit(shapes, tmp_path, callbacks=[middle, end], max_epochs=1, **options)
    other = {"batch_size": 2 * BATCH}
    with pytest.raises(ValueError, match=r"of 4 images per step .* would be 8"):
        fit(shapes, tmp_path, ckpt=tmp_path / "at-step=2.ckpt", data=other)
    assert len(fit(shapes, tmp_path, ckpt=tmp_path / "end-epoch=0.ckpt", data=other).train_seen) == 2 * 3


def test_only_a_test_split_that_is_not_there_gives_way_to_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lucid_core.data.module.write_shapes", lambda root: write_shapes(root, 3, 2, 64))
    generated = DataModule()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(generated.test_set) == 2
    broken = module(Path(".lucid/shapes"))
    Path(".lucid/shapes/annotations/instances_test.json").write_text("{")
    Path(".lucid/shapes/test").mkdir()
    with pytest.raises(DataError, match=r"instances_test\.json"):
        _ = broken.test_set


def test_a_module_can_be_copied_while_it_works(shapes: Path, tmp_path: Path) -> None:
    class Copying(Seen):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            data = self.trainer.datamodule  # type: ignore[attr-defined]
            self.copies = [copy.deepcopy(data), pickle.loads(pickle.dumps(data))]
            return super().training_step(batch, batch_idx)

    seen, data = Copying(), module(shapes, workers=1)
    trainer(tmp_path, max_epochs=1, limit_train_batches=2).fit(seen, data)
    for one in (*seen.copies, copy.deepcopy(data)):
        assert one.trainer is None
        assert fit_again(one, tmp_path) == fit(shapes, tmp_path, max_epochs=1).train_seen


def fit_again(data: DataModule, folder: Path) -> list[tuple[int, list[str]]]:
    seen = Seen()
    trainer(folder, max_epochs=1).fit(seen, data)
    return seen.train_seen

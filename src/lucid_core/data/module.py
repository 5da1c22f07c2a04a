"""The data module: from the settings of a run to its loaders."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, TypeVar

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info, rank_zero_only, rank_zero_warn

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.collate import room_for
from lucid_core.data.layout import Layout, Split, open_classes, open_split
from lucid_core.data.loader import EvaluationLoader, TrainLoader
from lucid_core.data.plan import BatchPlan, EpochPlan
from lucid_core.data.points import PointTable
from lucid_core.data.problems import Problem
from lucid_core.data.records import DataSet, match_classes
from lucid_core.data.scan import PictureScan, show_progress
from lucid_core.data.settings import check_settings
from lucid_core.data.shapes import write_shapes
from lucid_core.data.source import SourceReader
from lucid_core.data.telling import warn_of_problems
from lucid_core.data.types import DataError, NoSplit, Task, Wanted
from lucid_core.data.workers import Workers, allot

__all__ = ["DataModule"]

#: Where the generated data set is kept, under the working directory.
SHAPES = Path(".lucid/shapes")

DEFAULT_RECIPE = Recipe()

Loader = TypeVar("Loader", TrainLoader, EvaluationLoader)


class DataModule(LightningDataModule):
    """Training and evaluation data of one COCO, YOLO or DOTA folder, or of the generated set.

    Every run reads the data set anew, pictures included: those that cannot be decoded are left out, and a warning names
    what was left out or changed.

    Args:
        root: The data set's folder (or YOLO yaml file); ``shapes`` is a generated set, kept in ``.lucid/shapes``.
        layout: ``coco``, ``yolo``, ``dota``, or ``auto`` for the one that is there.
        image_size: Side of the square network input in pixels, a multiple of 32.
        batch_size: Images per batch and process.
        workers: Processes that load training images; ``auto`` takes the smaller of batch size and processors. Counts
            that would overfill shared memory, or of more than four per processor, are lowered.
        val_workers: Processes that load evaluation images; ``auto`` takes at most 4.
        recipe: How training images are varied.
        close_mosaic: Mosaic is off in that many last epochs; 0 keeps it on.
        seed: Of the order and of all that varies.
        train_images: Folder of the training images, absolute or under ``root``, where it is not found by itself; goes
            with the next.
        train_annotations: COCO json of the training images, absolute or under ``root``.
        val_images: Folder of the validation images, absolute or under ``root``; goes with the next.
        val_annotations: COCO json of the validation images, absolute or under ``root``.
        task: What is learnt, and so which labels are read, judged and delivered.

    Raises:
        ValueError: A setting is out of range.
    """

    def __init__(
        self,
        root: str = "shapes",
        layout: Layout = "auto",
        image_size: int = 640,
        batch_size: int = 16,
        workers: int | Literal["auto"] = "auto",
        val_workers: int | Literal["auto"] = "auto",
        recipe: Recipe = DEFAULT_RECIPE,
        close_mosaic: int = 10,
        seed: int = 0,
        train_images: str | None = None,
        train_annotations: str | None = None,
        val_images: str | None = None,
        val_annotations: str | None = None,
        task: Task = "detect",
    ) -> None:
        super().__init__()
        least = {"batch_size": (batch_size, 1), "close_mosaic": (close_mosaic, 0)}
        check_settings(image_size, seed, task, **least, workers=(workers, 0), val_workers=(val_workers, 0))
        self.root = root
        self.layout: Layout = layout
        self.image_size = image_size
        self.batch_size = batch_size
        self.workers = workers
        self.val_workers = val_workers
        self.recipe = recipe
        self.close_mosaic = close_mosaic
        self.seed = seed
        self.task: Task = task
        self._places = {"train": (train_images, train_annotations), "val": (val_images, val_annotations)}
        self._loaders: dict[str, TrainLoader | EvaluationLoader] = {}
        self._told: dict[str, tuple[Problem, ...]] = {}
        self._progress: dict[str, int] | None = None

    @cached_property
    def _classes(self) -> DataSet:
        """The tables of the training split, which are those of the run, for commands that train nothing."""
        return open_classes(self._folder(), "train", self.layout, *self._places["train"], self.task)

    @cached_property
    def train_set(self) -> DataSet:
        """The training split. Its classes are those of the run."""
        return self._read("train")

    @cached_property
    def val_set(self) -> DataSet:
        """The validation split, its labels brought to the classes of the training split."""
        return match_classes(self._classes, self._read("val"))

    @cached_property
    def test_set(self) -> DataSet:
        """The test split where there is one, else the validation split."""
        try:
            test = self._read("test")
        except NoSplit as error:
            if self.root != "shapes":
                rank_zero_warn(f"testing on the validation split: {error}")
            return self.val_set
        return match_classes(self._classes, test)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, by label."""
        return self._classes.class_names

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def category_ids(self) -> tuple[int, ...]:
        """Ids of the classes in result files, by label."""
        return self._classes.category_ids

    @property
    def points(self) -> PointTable | None:
        """The key points of an object, of the task ``keypoints``."""
        return self._classes.points

    @property
    def num_points(self) -> int:
        """Number of key points of an object; 0 for other tasks."""
        return 0 if self.points is None else self.points.count

    def prepare_data(self) -> None:
        """Write the generated data set, if it is asked for and not there."""
        if self.root == "shapes":
            write_shapes(SHAPES)

    def setup(self, stage: str) -> None:
        """Read what the stage needs, and tell what is wrong with it."""
        # Lightning loads the state for every stage, after this.
        self._progress = None
        self._check_model()
        if stage == "fit":
            rank_zero_info(
                f"{self.root}: {len(self.train_set)} images to train on, {len(self.val_set)} to validate, "
                f"{self.num_classes} classes, at {self.image_size} px"
            )
            self._report("train", self.train_set)
        if stage in ("fit", "validate"):
            self._report("val", self.val_set)
        if stage == "test":
            self._report("test", self.test_set)

    def teardown(self, stage: str) -> None:
        """End the workers, and forget the data: by the next run it may be another."""
        for name in list(self._loaders):
            self._loaders.pop(name).close()
        for name in ("_classes", "train_set", "val_set", "test_set"):
            self.__dict__.pop(name, None)

    def on_exception(self, exception: BaseException) -> None:
        """End the workers: there is no teardown after an exception."""
        for loader in self._loaders.values():
            loader.close()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to a run: a copy serves another one."""
        state = {**self.__dict__, "trainer": None, "_loaders": {}}
        state.pop("_allotted", None)
        return state

    def state_dict(self) -> dict[str, int]:
        """Return how far the training loader is in its epoch, for the checkpoint."""
        loader = self._loaders.get("train")
        return loader.progress() if isinstance(loader, TrainLoader) else {}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Let the next training loader go on where the checkpoint was saved."""
        # Kept here rather than in the loader, whose own state Lightning restores too late: after the optimizer, and
        # with it the number of steps and the loader, has been made.
        self._progress = state_dict or None

    def train_dataloader(self) -> TrainLoader:
        """Make the training loader, with this process's part of every batch."""
        data, trainer, (rank, world) = self.train_set, self.trainer, self._process()
        if len(data) < world:
            raise DataError(f"{self.root}: {len(data)} training images cannot be shared by {world} processes")
        overfit = getattr(trainer, "overfit_batches", 0) > 0
        epochs = None if trainer is None or trainer.max_epochs in (None, -1) else trainer.max_epochs
        plan = EpochPlan(len(data), self.seed, epochs, self.close_mosaic, shuffle=not overfit)
        source = SourceReader(data.records, self.image_size)
        pairs = () if data.points is None else data.points.pairs
        augmenter = Augmenter(source, data.records, plan, self.image_size, self.recipe, self.seed, pairs)
        batches = BatchPlan(plan, self.batch_size, rank, world, repeat=overfit)
        loader = TrainLoader(
            augmenter,
            batches,
            self.num_classes,
            self._allotted.train,
            pin_memory=self._feeds_cuda(),
            wanted=Wanted(self.task, self.num_points),
        )
        if self._progress is not None:
            loader.resume(self._progress)
            self._progress = None
        return self._keep("train", loader)

    def val_dataloader(self) -> EvaluationLoader:
        """Make the validation loader, with this process's part of the split."""
        return self._keep("val", self._evaluation(self.val_set))

    def test_dataloader(self) -> EvaluationLoader:
        """Make the test loader, with this process's part of the split."""
        return self._keep("test", self._evaluation(self.test_set))

    def _read(self, split: Split) -> DataSet:
        images, annotations = self._places.get(split, (None, None))
        first = getattr(rank_zero_only, "rank", 0) == 0
        scan = PictureScan(progress=show_progress if first else None)
        return open_split(self._folder(), split, self.layout, images, annotations, scan, self.task)

    def _folder(self) -> Path:
        return write_shapes(SHAPES) if self.root == "shapes" else Path(self.root)

    def _check_model(self) -> None:
        """Refuse a model of other classes here: on a GPU, a label too high for it ends the process."""
        model = None if self.trainer is None else self.trainer.lightning_module
        names = dict(getattr(model, "hparams", {})).get("class_names")
        if names is not None and tuple(names) != self.class_names:
            raise DataError(
                f"{self.root}: the data has {self.num_classes} classes ({shorten(', '.join(self.class_names), 60)}), "
                f"the model has {len(names)} ({shorten(', '.join(names), 60)}); make the model with the class_names of "
                f"the data"
            )

    def _evaluation(self, data: DataSet) -> EvaluationLoader:
        rank, world = self._process()
        return EvaluationLoader(
            SourceReader(data.records, self.image_size),
            data.records,
            self.image_size,
            self.batch_size,
            self.num_classes,
            self._allotted.val,
            rank,
            world,
            self._feeds_cuda(),
            Wanted(self.task, self.num_points),
        )

    @cached_property
    def _allotted(self) -> Workers:
        here = 1 if self.trainer is None else self.trainer.num_devices
        read = [self.__dict__[name] for name in ("train_set", "val_set", "test_set") if name in self.__dict__]
        masks = 0
        if self.task == "segment":
            masks = room_for(max((len(one.instances) for data in read for one in data.records), default=1))
        return allot(self.workers, self.val_workers, self.batch_size, self.image_size, here, masks)

    def _process(self) -> tuple[int, int]:
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _feeds_cuda(self) -> bool:
        return self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"

    def _keep(self, name: str, loader: Loader) -> Loader:
        """Close the workers of the loader that this one takes the place of."""
        if name in self._loaders:
            self._loaders[name].close()
        self._loaders[name] = loader
        return loader

    def _report(self, split: str, data: DataSet) -> None:
        # Lightning broadcasts it, so that every process must ask, whatever it has to tell.
        folder = None if self.trainer is None else self.trainer.log_dir or self.trainer.default_root_dir
        if not data.problems or self._told.get(split) == data.problems:
            return
        self._told[split] = data.problems
        warn_of_problems(data, self.root, split, self.trainer, folder)

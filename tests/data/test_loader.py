"""Loaders: the same samples for any number of workers, batches and processes, and after a resume."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path

import cv2
import numpy as np
import pytest

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.loader import EvaluationLoader, TrainLoader
from lucid_core.data.plan import BatchPlan, EpochPlan
from lucid_core.data.records import make_truth
from lucid_core.data.source import SourceReader
from lucid_core.data.types import DataError, Record
from lucid_core.seams import claim

from .synthetic import CLASSES, SIZE, PaintedSource, make_augmenter, make_instances, make_record, make_records

RECIPE = Recipe(mixup=0.3, copy_paste=0.3)
RECORDS = make_records(37)


def make_loader(batch: int = 4, rank: int = 0, world: int = 1, epochs: int | None = 3, **options) -> TrainLoader:
    augmenter = make_augmenter(RECORDS, RECIPE, epochs)
    return TrainLoader(augmenter, BatchPlan(augmenter.plan, batch, rank, world), CLASSES, **options)


def digests(loader: TrainLoader, epoch: int) -> list[str]:
    """One hash per sample, in the order of delivery. Padding is left out: it depends on the rest of the batch."""
    loader.batch_sampler.set_epoch(epoch)
    return [one for batch in loader for one in hashes(batch)]


def hashes(batch) -> list[str]:
    found = []
    for row in range(len(batch.images)):
        valid = batch.targets.valid[row]
        parts = batch.images[row], batch.targets.boxes[row][valid], batch.targets.labels[row][valid], batch.records[row]
        found.append(hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest())
    return found


@pytest.fixture(scope="module")
def expected() -> list[list[str]]:
    return [digests(make_loader(), epoch) for epoch in range(3)]


def test_every_sample_of_every_epoch_is_another(expected: list[list[str]]) -> None:
    assert [len(epoch) for epoch in expected] == [37] * 3
    assert len({one for epoch in expected for one in epoch}) == 3 * 37


@pytest.mark.parametrize(("workers", "persistent"), [(0, True), (1, True), (3, True), (1, False), (3, False)])
@pytest.mark.parametrize("batch", [4, 16])
def test_samples_do_not_depend_on_workers_or_batches(expected, workers: int, batch: int, persistent: bool) -> None:
    loader = make_loader(batch, workers=workers, persistent=persistent)
    assert [digests(loader, epoch) for epoch in range(3)] == expected
    loader.close()


@pytest.mark.parametrize("world", [2, 3])
def test_samples_do_not_depend_on_the_number_of_processes(expected, world: int) -> None:
    loaders = [make_loader(5, rank, world) for rank in range(world)]
    assert len({len(loader) for loader in loaders}) == 1
    for loader in loaders:
        loader.batch_sampler.set_epoch(1)
    steps = zip(*loaders, strict=True)
    assert [one for step in steps for batch in step for one in hashes(batch)] == expected[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_goes_on_with_the_next_batch(expected, workers: int) -> None:
    first = make_loader(workers=workers)
    first.batch_sampler.set_epoch(1)
    delivered = iter(first)
    for _ in range(3):
        next(delivered)
    state = first.progress()
    assert state == {"epoch": 1, "batches": 3, "global_batch": 4}
    first.close()
    second = make_loader(workers=workers)
    second.resume(state)
    assert second.progress() == state
    assert digests(second, 1) == expected[1][12:]
    assert digests(second, 1) == expected[1]
    assert digests(second, 2) == expected[2]
    second.close()


def test_a_complete_epoch_is_the_start_of_the_next(expected) -> None:
    loader = make_loader()
    loader.batch_sampler.set_epoch(0)
    delivered = iter(loader)
    for _ in range(len(loader)):
        next(delivered)
    assert loader.progress() == {"epoch": 1, "batches": 0, "global_batch": 4}
    other = make_loader(16)
    other.resume(loader.progress())
    assert digests(other, 1) == expected[1]


@pytest.mark.parametrize(("batch", "world"), [(8, 1), (4, 2)])
def test_an_epoch_is_not_resumed_in_its_middle_with_another_global_batch(batch: int, world: int) -> None:
    loader = make_loader(batch, 0, world)
    loader.resume({"epoch": 1, "batches": 3, "global_batch": 4})
    with pytest.raises(ValueError, match=r"of 4 images per step .* would be 8: resume with 4") as caught:
        digests(loader, 1)
    assert "\n" not in str(caught.value)


def test_processes_that_share_the_same_global_batch_resume_it(expected) -> None:
    loaders = [make_loader(2, rank, 2) for rank in range(2)]
    for loader in loaders:
        loader.resume({"epoch": 1, "batches": 3, "global_batch": 4})
    halves = [digests(loader, 1) for loader in loaders]
    assert sorted(halves[0] + halves[1]) == sorted(expected[1][12:36])


def test_an_epoch_that_is_left_open_does_not_disturb_the_next(expected) -> None:
    loader = make_loader(workers=2)
    loader.batch_sampler.set_epoch(0)
    left = iter(loader)
    next(left)
    assert digests(loader, 1) == expected[1]
    loader.close()


def test_closing_ends_the_workers_although_an_iterator_is_still_held() -> None:
    loader = make_loader(workers=2)
    left = iter(loader)
    next(left)
    assert len(multiprocessing.active_children()) == 2
    loader.close()
    assert not multiprocessing.active_children()


def test_mosaic_closes_for_workers_that_live_on() -> None:
    """Flat images: the number of colours of a sample is the number of its sources."""

    class Flat(PaintedSource):
        def source(self, index: int) -> np.ndarray:
            return np.full((SIZE, SIZE, 3), 120 + index, np.uint8)

    records = tuple(make_record(index, SIZE, SIZE, make_instances([])) for index in range(32))
    recipe = Recipe(scale=0, translate=0, copy_paste=0, hue=0, saturation=0, value=0)
    plan = EpochPlan(32, 0, epochs=4, close_mosaic=2)
    augmenter = Augmenter(Flat(records), records, plan, SIZE, recipe, 0)
    loader = TrainLoader(augmenter, BatchPlan(plan, 8), CLASSES, workers=2, persistent=True)
    most = []
    for epoch in range(4):
        loader.batch_sampler.set_epoch(epoch)
        most.append(max(len(np.unique(image.numpy())) for batch in loader for image in batch.images))
    loader.close()
    assert most == [4, 4, 1, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_file_is_one_line_that_names_it(tmp_path: Path, workers: int) -> None:
    records = []
    for index in range(6):
        file = tmp_path / f"{index}.png"
        cv2.imwrite(str(file), np.full((48, 64, 3), 40 * index, np.uint8))
        records.append(Record(file, index, 64, 48, make_instances([]), make_truth([], [], [], [])))
    (tmp_path / "4.png").write_bytes((tmp_path / "4.png").read_bytes()[:60])
    plan = EpochPlan(6, 0, None, 0)
    augmenter = Augmenter(SourceReader(records, SIZE), records, plan, SIZE, Recipe(), 0)
    loader = TrainLoader(augmenter, BatchPlan(plan, 2), CLASSES, workers=workers)
    with pytest.raises(DataError, match=r"4\.png") as caught:
        list(loader)
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    loader.close()


def test_the_loader_is_a_seam_that_another_may_own(expected) -> None:
    loader = make_loader()
    asked = []

    def owned(native, epoch, start):
        asked.append((epoch, start))
        return native(epoch, start)

    held = claim(loader, "data.loader", "test", loader, owned)
    assert digests(loader, 2) == expected[2]
    assert asked == [(2, 0)]
    held.release()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 7, 8])
def test_evaluation_shows_every_image_in_order_and_ranks_agree_on_batches(world: int, count: int) -> None:
    records = make_records(count)
    loaders = [
        EvaluationLoader(PaintedSource(records), records, SIZE, 3, CLASSES, 0, rank, world) for rank in range(world)
    ]
    parts = [[int(index) for batch in loader for index in batch.records] for loader in loaders]
    assert len({len(loader) for loader in loaders}) == 1
    assert [len(list(loader)) for loader in loaders] == [len(loader) for loader in loaders]
    merged = [index for part in parts for index in part]
    assert sorted(set(merged)) == list(range(count))
    assert merged == sorted(merged)


def test_evaluation_is_the_same_from_workers_and_again() -> None:
    loader = EvaluationLoader(PaintedSource(RECORDS), RECORDS, SIZE, 8, CLASSES, workers=2)
    first, second = ([one for batch in loader for one in hashes(batch)] for _ in range(2))
    loader.close()
    alone = EvaluationLoader(PaintedSource(RECORDS), RECORDS, SIZE, 5, CLASSES)
    assert first == second == [one for batch in alone for one in hashes(batch)]

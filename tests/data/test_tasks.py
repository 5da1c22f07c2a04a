"""From a data set to the loss of every task, through the data module and its workers."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from lucid_core import types
from lucid_core.data.augment import Recipe
from lucid_core.data.check import Verdict, check
from lucid_core.data.collate import check_points, check_polygons, check_rboxes, collate
from lucid_core.data.geometry import corners
from lucid_core.data.masks import rasterise
from lucid_core.data.module import DataModule
from lucid_core.data.shapes import CLASSES, KEYPOINTS, write_shapes
from lucid_core.data.types import DataError, Instances, Sample, Task, Wanted
from lucid_core.data.workers import Workers, allot
from lucid_core.network.detector import Network
from lucid_core.objective.keypoints import KeypointObjective
from lucid_core.objective.oriented import OrientedObjective
from lucid_core.objective.segment import SegmentObjective
from lucid_core.types import Batch

from .synthetic import make_instances, make_record, rectangle

SIZE = 96
TASKS: tuple[Task, ...] = get_args(Task)
#: Tensors of the targets of each task, besides those of detection.
OWN: dict[str, set[str]] = {
    "detect": set(),
    "segment": {"masks"},
    "obb": {"rboxes"},
    "keypoints": {"points", "visibility"},
}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shapes(tmp_path_factory.mktemp("data") / "set", train=24, val=5, size=64)


def module(root: Path, task: Task, **settings: Any) -> DataModule:
    settings = {"workers": 0, "val_workers": 0, **settings}
    return DataModule(str(root), task=task, image_size=SIZE, batch_size=4, **settings)


def batches(loader: Any) -> list[Batch]:
    return list(loader)


def as_bytes(batch: Batch) -> list[bytes]:
    tensors = [batch.images, *batch.targets, batch.records, batch.letterbox]
    return [b"" if tensor is None else tensor.numpy().tobytes() for tensor in tensors]


def test_the_tasks_of_the_data_are_those_of_the_network() -> None:
    assert get_args(types.Task) == TASKS
    with pytest.raises(ValueError, match="no task is called 'pose'; tasks are detect, segment, obb, keypoints"):
        DataModule(task="pose")  # type: ignore[arg-type]


@pytest.mark.parametrize("task", TASKS)
def test_the_generated_set_serves_every_task_without_a_fault(shapes: Path, task: Task) -> None:
    found = check(shapes, task=task)
    assert found.verdict is Verdict.CLEAN and not any(data.problems for data in found.splits.values())
    data = module(shapes, task)
    objects = sum(len(record.instances) for record in data.train_set.records)
    assert objects == sum(len(record.instances) for record in module(shapes, "detect").train_set.records) > 40
    if task == "keypoints":
        assert data.points is not None
        assert (data.num_points, data.points.names, data.points.pairs) == (4, KEYPOINTS, ((1, 3),))
    else:
        assert data.points is None and data.num_points == 0


@pytest.mark.parametrize("task", TASKS)
def test_every_batch_of_a_task_has_its_structure_and_padding_is_zero(shapes: Path, task: Task) -> None:
    data = module(shapes, task)
    for batch in [*batches(data.train_dataloader()), *batches(data.val_dataloader())]:
        targets, room = batch.targets._asdict(), batch.targets.boxes.shape[1]
        assert room & (room - 1) == 0
        there = {name for name, tensor in targets.items() if tensor is not None}
        assert there == {"boxes", "labels", "valid", *OWN[task]}
        count = len(batch.images)
        shapes_of = {
            "masks": ((count, room, SIZE // 4, SIZE // 4), torch.bool),
            "rboxes": ((count, room, 5), torch.float32),
            "points": ((count, room, 4, 2), torch.float32),
            "visibility": ((count, room, 4), torch.int64),
        }
        for name in OWN[task]:
            assert (targets[name].shape, targets[name].dtype) == shapes_of[name]
            assert not targets[name][~batch.targets.valid].any()


@pytest.mark.parametrize("task", ["segment", "obb", "keypoints"])
def test_samples_do_not_depend_on_workers_and_boxes_not_on_the_task(shapes: Path, task: Task) -> None:
    recipe = Recipe(degrees=10, mixup=0.5)
    here = module(shapes, task, recipe=recipe)
    there = module(shapes, task, recipe=recipe, workers=2)
    ours, theirs = batches(here.train_dataloader()), batches(there.train_dataloader())
    there.teardown("fit")
    assert [as_bytes(batch) for batch in ours] == [as_bytes(batch) for batch in theirs]
    if task == "segment":
        plain = batches(module(shapes, "detect", recipe=recipe).train_dataloader())
        assert [as_bytes(batch)[:4] for batch in ours] == [as_bytes(batch)[:4] for batch in plain]


def test_masks_lie_in_their_boxes_and_cover_the_objects(shapes: Path) -> None:
    for batch in batches(module(shapes, "segment").train_dataloader()):
        masks, boxes = batch.targets.masks, batch.targets.boxes / 4
        assert masks is not None
        rows, columns = torch.meshgrid(*[torch.arange(SIZE // 4) + 0.5] * 2, indexing="ij")
        for mask, (x1, y1, x2, y2) in zip(masks[batch.targets.valid], boxes[batch.targets.valid].tolist(), strict=True):
            inside = (columns >= x1 - 1e-3) & (columns <= x2 + 1e-3) & (rows >= y1 - 1e-3) & (rows <= y2 + 1e-3)
            assert not (mask & ~inside).any()
            # Of the shapes a star fills least of its box.
            assert (x2 - x1) * (y2 - y1) < 20 or mask.sum() > 0.15 * inside.sum()


def test_boxes_are_the_envelopes_of_oriented_boxes_that_lie_whole_within(shapes: Path) -> None:
    looked = 0
    for batch in batches(module(shapes, "obb", recipe=Recipe(mosaic=0, degrees=30)).train_dataloader()):
        rboxes, boxes = batch.targets.rboxes, batch.targets.boxes
        assert rboxes is not None
        quads = corners(rboxes[batch.targets.valid].numpy())
        about = np.concatenate([quads.min(1), quads.max(1)], 1)
        whole = ((about > 0) & (about < SIZE)).all(1)
        np.testing.assert_allclose(about[whole], boxes[batch.targets.valid].numpy()[whole], atol=2e-2)
        looked += whole.sum()
    assert looked > 15


@pytest.mark.parametrize("task", ["segment", "obb", "keypoints"])
def test_the_objective_of_a_task_learns_from_its_batches(shapes: Path, task: Task) -> None:
    torch.manual_seed(0)
    data = module(shapes, task)
    network = Network("n", len(CLASSES), task, data.num_points)
    objective = {
        "segment": SegmentObjective,
        "obb": OrientedObjective,
        "keypoints": lambda: KeypointObjective(data.num_points),
    }[task]()
    batch = next(iter(data.train_dataloader()))
    losses = objective(network(batch.images / 255), batch.targets)
    losses.total.backward()
    assert torch.isfinite(losses.total)
    assert all(value > 0 for name, value in losses.scalars().items() if name not in ("oks",)), losses.scalars()
    assert all(torch.isfinite(one.grad).all() for one in network.parameters() if one.grad is not None)


def mirrored(root: Path, flip: float) -> tuple[Batch, DataModule]:
    recipe = Recipe(mosaic=0, scale=0, translate=0, copy_paste=0, hue=0, saturation=0, value=0, flip=flip)
    data = module(root, "keypoints", recipe=recipe)
    return next(iter(data.train_dataloader())), data


def test_left_and_right_change_places_in_mirrored_images_with_their_visibility(shapes: Path) -> None:
    plain, mirror = mirrored(shapes, 0)[0].targets, mirrored(shapes, 1)[0].targets
    assert plain.points is not None and mirror.points is not None and mirror.visibility is not None
    swapped = plain.points[:, :, [0, 3, 2, 1]]
    kept = plain.valid.unsqueeze(-1)
    torch.testing.assert_close(mirror.points[..., 0] * kept, (SIZE - swapped[..., 0]) * kept, atol=1e-3, rtol=0)
    torch.testing.assert_close(mirror.points[..., 1], swapped[..., 1])
    assert torch.equal(mirror.visibility, plain.visibility[:, :, [0, 3, 2, 1]])  # type: ignore[index]


def test_images_are_not_mirrored_where_left_and_right_are_not_known(shapes: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        (tmp_path / split).symlink_to(shapes / split)
    (tmp_path / "annotations").mkdir()
    for split in ("train", "val"):
        text = (shapes / f"annotations/instances_{split}.json").read_text()
        named = '"keypoints": ["top", "right", "bottom", "left"], '
        assert named in text
        (tmp_path / f"annotations/instances_{split}.json").write_text(text.replace(named, ""))
    batch, data = mirrored(tmp_path, 1)
    assert as_bytes(batch) == as_bytes(mirrored(shapes, 0)[0])
    assert len([one for one in data.train_set.problems if "not mirrored" in str(one)]) == 1
    with pytest.warns(UserWarning, match="images are not mirrored"):
        data.setup("fit")


def sample(instances: Instances) -> tuple[Sample, Any]:
    return Sample(np.zeros((64, 64, 3), np.uint8), instances, 0), (make_record(0, 64, 64, instances),)


@pytest.mark.parametrize("task", ["segment", "obb", "keypoints"])
def test_a_batch_without_objects_has_every_tensor_of_its_task(task: Task) -> None:
    made, records = sample(make_instances(np.zeros((0, 4), np.float32)))
    targets = collate([made], records, 3, Wanted(task, 4))[1]._asdict()
    assert {name for name, tensor in targets.items() if tensor is not None} >= OWN[task]
    assert all(targets[name].shape[:2] == (1, 1) and not targets[name].any() for name in OWN[task])


BOX = np.array([[0, 0, 20, 10]], np.float32)
LABEL = np.zeros(1, np.int64)
RBOX = np.array([[10, 5, 20, 10, 0]], np.float32)
POINTS = np.zeros((1, 4, 2), np.float32)
SEEN = np.full((1, 4), 2)


@pytest.mark.parametrize(
    ("instances", "task", "said"),
    [
        (Instances(BOX, LABEL, ((),)), "segment", "has no finite polygon"),
        (Instances(BOX, LABEL, ((rectangle(0, 0, np.nan, 5),),)), "segment", "has no finite polygon"),
        (Instances(BOX, LABEL, ((),)), "obb", "has no oriented box"),
        (Instances(BOX, LABEL, ((),), RBOX * np.nan), "obb", "not finite or its sides"),
        (Instances(BOX, LABEL, ((),), RBOX[:, [0, 1, 3, 2, 4]]), "obb", "not finite or its sides"),
        (Instances(BOX, LABEL, ((),)), "keypoints", "has not 4 key points"),
        (Instances(BOX, LABEL, ((),), None, POINTS[:, :3], SEEN[:, :3]), "keypoints", "has not 4 key points"),
        (Instances(BOX, LABEL, ((),), None, POINTS * np.nan, SEEN), "keypoints", "cannot be used"),
        (Instances(BOX, LABEL, ((),), None, POINTS, SEEN + 1), "keypoints", "cannot be used"),
    ],
)
def test_a_sample_that_does_not_fit_its_task_is_refused_with_the_name_of_the_file(
    instances: Instances, task: Task, said: str
) -> None:
    made, records = sample(instances)
    with pytest.raises(DataError, match=rf"0\.jpg: .*{said}"):
        collate([made], records, 3, Wanted(task, 4))
    collate([made], records, 3)


def test_the_checks_have_names_of_their_own() -> None:
    whole = Instances(BOX, LABEL, ((rectangle(0, 0, 20, 10),),), RBOX, POINTS, SEEN)
    made, (record,) = sample(whole)
    check_polygons(made, record.image)
    check_rboxes(made, record.image)
    check_points(made, 4, record.image)
    hidden = Instances(BOX, LABEL, ((),), None, POINTS * np.nan, SEEN * 0)
    check_points(sample(hidden)[0], 4, record.image)


def test_masks_of_a_batch_are_those_of_its_polygons(shapes: Path) -> None:
    data = module(shapes, "segment")
    loader = data.val_dataloader()
    batch = next(iter(loader))
    for row, index in enumerate(batch.records.tolist()):
        rings = data.val_set.records[index].instances.polygons
        scaled = [tuple(ring * np.float32(SIZE / 64) for ring in one) for one in rings]
        assert batch.targets.masks is not None
        np.testing.assert_array_equal(batch.targets.masks[row, : len(rings)].numpy(), rasterise(scaled, SIZE))


def test_room_for_masks_counts_in_the_budget_of_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucid_core.data.workers.processors", lambda: 64)
    # Batches of four images of 12,288 bytes, two ahead: as much as four workers may have.
    monkeypatch.setattr("lucid_core.data.workers.free_shared_memory", lambda: 2 * 4 * 2 * 4 * 12288)
    assert allot("auto", 0, 4, 64) == Workers(4, 0)
    with pytest.warns(UserWarning, match="going on with 2"):
        assert allot("auto", 0, 4, 64, masks=48) == Workers(2, 0)

"""Batches of one fixed structure."""

import numpy as np
import pytest
import torch

from lucid_core.data.collate import check_boxes, check_image, check_labels, collate
from lucid_core.data.types import DataError, Instances, Sample

from .synthetic import CLASSES, SIZE, make_instances, make_records

RECORDS = make_records(4)


def sample(objects: int, index: int = 0, size: int = SIZE) -> Sample:
    image = np.random.default_rng(index).integers(0, 256, (size, size, 3), np.uint8)
    boxes = np.array([[k, k, k + 5, k + 6] for k in range(objects)], np.float32).reshape(-1, 4)
    return Sample(image, make_instances(boxes), index)


@pytest.mark.parametrize(("objects", "room"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (16, 16), (17, 32)])
def test_room_is_the_next_power_of_two(objects: int, room: int) -> None:
    batch = collate([sample(objects), sample(0, 1)], RECORDS, CLASSES)
    assert batch.targets.boxes.shape == (2, room, 4)
    assert batch.targets.valid.sum().item() == objects


def test_every_part_has_its_type_and_padding_is_zero() -> None:
    samples = [sample(3, 2), sample(1, 3)]
    batch = collate(samples, RECORDS, CLASSES)
    assert batch.images.dtype == torch.uint8
    assert batch.images.is_contiguous()
    for row, made in enumerate(samples):
        np.testing.assert_array_equal(batch.images[row].numpy(), made.image.transpose(2, 0, 1))
        count = len(made.instances)
        np.testing.assert_array_equal(batch.targets.boxes[row, :count].numpy(), made.instances.boxes)
        np.testing.assert_array_equal(batch.targets.labels[row, :count].numpy(), made.instances.labels)
        assert batch.targets.valid[row].tolist() == [True] * count + [False] * (4 - count)
        assert not batch.targets.boxes[row, count:].any()
        assert not batch.targets.labels[row, count:].any()
    assert (batch.targets.labels.dtype, batch.targets.valid.dtype) == (torch.int64, torch.bool)
    assert batch.records.tolist() == [2, 3]
    assert batch.letterbox.dtype == torch.float64
    assert batch.letterbox.tolist() == [[1, 0, 0]] * 2


@pytest.mark.parametrize("box", [[0, 0, np.nan, 5], [0, 0, np.inf, 5], [5, 5, 4, 9]])
def test_a_bad_box_is_refused_with_the_name_of_the_file(box: list[float]) -> None:
    bad = Sample(sample(0).image, make_instances([box]), 3)
    with pytest.raises(DataError, match=r"3\.jpg: box .* not finite or has a negative side"):
        collate([sample(1), bad], RECORDS, CLASSES)
    with pytest.raises(DataError):
        check_boxes(bad, RECORDS[3].image)


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    boxes = np.array([[0, 0, 5, 5]], np.float32)
    bad = Sample(sample(0).image, Instances(boxes, np.array([label]), ((),)), 2)
    with pytest.raises(DataError, match=rf"2\.jpg: label {label} .* not in \[0, 3\)"):
        check_labels(bad, CLASSES, RECORDS[2].image)


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(DataError, match=r"1\.jpg: .*\(32, 32, 3\), not uint8 \(64, 64, 3\)"):
        collate([sample(1), sample(1, 1, size=32)], RECORDS, CLASSES)
    check_image(sample(1), SIZE, RECORDS[0].image)

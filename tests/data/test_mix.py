"""Mixup and copy-paste."""

import numpy as np
import pytest

from lucid_core.data.mix import copy_paste, mixup
from lucid_core.data.types import Instances

from .synthetic import make_instances, rectangle

S = 64


def canvas(value: int) -> np.ndarray:
    image = np.full((S, S, 3), value, np.uint8)
    image.setflags(write=False)
    return image


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.999, 1.0])
def test_mixup_is_the_rounded_mean_in_whole_numbers(share: float) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 256, (2, 32, 32, 3), np.uint8)
    first[0, 0], second[0, 0] = 255, 255
    image, instances = mixup(
        (first, make_instances([[0, 0, 4, 4]])), (second, make_instances([[1, 1, 9, 9], [2, 2, 5, 5]])), share
    )
    weight = round(256 * share)
    expected = (first.astype(np.int64) * weight + second.astype(np.int64) * (256 - weight) + 128) // 256
    np.testing.assert_array_equal(image, expected)
    np.testing.assert_array_equal(instances.boxes[:, 0], [0, 1, 2])


def test_mixup_leaves_its_arguments_alone() -> None:
    first, second = canvas(10), canvas(30)
    mixup((first, make_instances([])), (second, make_instances([])), 0.5)
    assert (first == 10).all()
    assert (second == 30).all()


def test_pasted_objects_bring_their_pixels_and_follow_the_labels() -> None:
    receiver = canvas(0), make_instances([[40, 40, 60, 60]])
    image, instances = copy_paste(receiver, (canvas(200), make_instances([[4, 6, 20, 30]])))
    np.testing.assert_array_equal(instances.boxes, [[40, 40, 60, 60], [4, 6, 20, 30]])
    rows, columns = np.nonzero(image[..., 0])
    assert [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1] == [4, 6, 20, 30]
    assert (receiver[0] == 0).all()


def test_holes_stay_holes_and_parts_belong_together() -> None:
    rings = (rectangle(4, 4, 44, 44), rectangle(14, 14, 34, 34), rectangle(50, 50, 60, 60))
    donor = Instances(np.array([[4, 4, 60, 60]], np.float32), np.zeros(1, np.int64), (rings,))
    image, _ = copy_paste((canvas(0), make_instances([])), (canvas(200), donor))
    assert image[24, 24, 0] == 0
    assert image[8, 8, 0] == 200
    assert image[55, 55, 0] == 200
    assert image[47, 47, 0] == 0


@pytest.mark.parametrize(("right", "pasted"), [(16.0, False), (12.9, True), (13.0, False), (10.0, True)])
def test_an_object_that_hides_three_tenths_of_another_is_not_pasted(right: float, pasted: bool) -> None:
    receiver = canvas(0), make_instances([[10, 10, 20, 20]])
    image, instances = copy_paste(receiver, (canvas(200), make_instances([[0, 10, right, 20]])))
    assert len(instances) == 1 + pasted
    assert image.any() == pasted


def test_pasted_objects_do_not_hide_each_other_either() -> None:
    donor = make_instances([[0, 0, 20, 20], [2, 2, 18, 18], [30, 30, 50, 50]])
    _, instances = copy_paste((canvas(0), make_instances([])), (canvas(200), donor))
    np.testing.assert_array_equal(instances.boxes[:, 0], [0, 30])


def test_objects_without_an_outline_are_not_pasted() -> None:
    donor = make_instances([[0, 0, 20, 20]], outlined=False)
    image, instances = copy_paste((canvas(0), make_instances([])), (canvas(200), donor))
    assert not image.any()
    assert len(instances) == 0


def test_objects_at_the_border_are_pasted_whole() -> None:
    donor = make_instances([[0, 0, 10.5, 10.5], [50, 50, 64, 64]])
    image, instances = copy_paste((canvas(0), make_instances([])), (canvas(200), donor))
    assert len(instances) == 2
    assert image[0, 0, 0] == image[63, 63, 0] == 200

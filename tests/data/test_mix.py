"""Mixup and copy-paste."""

import numpy as np
import pytest

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.collate import collate
from lucid_core.data.mix import copy_paste, mixup
from lucid_core.data.plan import EpochPlan
from lucid_core.data.rle import outline
from lucid_core.data.types import Instances, SampleKey, Wanted

from .synthetic import CLASSES, make_instances, make_record, rectangle

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
    mask = np.zeros((S, S), np.bool_)
    mask[4:44, 4:44] = True
    mask[14:34, 14:34] = False
    rings = (*outline(mask), rectangle(40, 40, 60, 60))
    donor = Instances(np.array([[4, 4, 60, 60]], np.float32), np.zeros(1, np.int64), (rings,))
    image, _ = copy_paste((canvas(0), make_instances([])), (canvas(200), donor))
    mask[40:60, 40:60] = True
    np.testing.assert_array_equal(image[..., 0] == 200, mask)


class Flat:
    """Pictures of one grey each, 50 more than that of the last."""

    def source(self, index: int) -> np.ndarray:
        return canvas(50 * (index + 1))


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_no_mask_holds_a_pixel_that_another_object_was_pasted_over(flip: float) -> None:
    boxes = [[8, 8, 40, 40], [32, 32, 56, 56]]
    records = tuple(make_record(index, S, S, make_instances([box])) for index, box in enumerate(boxes))
    recipe = Recipe(mosaic=0, scale=0, translate=0, copy_paste=1, hue=0, saturation=0, value=0, flip=flip)
    augmenter = Augmenter(Flat(), records, EpochPlan(2, 0, None, 1), S, recipe, 0)
    for position in range(2):
        sample = augmenter.sample(SampleKey(0, position, False))
        masks = collate([sample], records, CLASSES, Wanted("segment")).targets.masks
        assert masks is not None and len(sample.instances) == 2
        # All borders are those of cells, of which one pixel tells.
        pixels = sample.image[2::4, 2::4, 0]
        receiver, pasted = masks[0, :2].numpy()
        np.testing.assert_array_equal(pasted, pixels == 50 * (2 - sample.index))
        assert receiver.sum() == ((40 - 8) ** 2 if sample.index == 0 else 24**2) / 16 - 4
        assert not (receiver & pasted).any()


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

"""Training samples, from keys to pixels and labels."""

import numpy as np
import pytest

from lucid_core.data.augment import Augmenter, Recipe
from lucid_core.data.colour import apply_colour, colour_matrix
from lucid_core.data.plan import EpochPlan
from lucid_core.data.types import Instances, SampleKey
from lucid_core.seams import claim

from .synthetic import SIZE, PaintedSource, digest, make_augmenter, make_instances, make_record, make_records

EVERYTHING = Recipe(degrees=10, shear=3, mixup=0.5, copy_paste=0.5)
PLAIN = Recipe(mosaic=0, scale=0, translate=0, copy_paste=0, hue=0, saturation=0, value=0, flip=0)


def log_sides(recipe: Recipe, sides: tuple[float, float], samples: int, mosaic: bool = True) -> np.ndarray:
    """log(training side / evaluation side) of every box; each object carries its own label to be known again."""
    records, evaluation = [], []
    for record in make_records(160, sides):
        boxes = record.instances.boxes
        extent = (boxes[:, 2:] - boxes[:, :2]) * (SIZE * 4 / max(record.width, record.height))
        first = sum(len(part) for part in evaluation)
        numbered = Instances(boxes, np.arange(first, first + len(boxes)), record.instances.polygons)
        records.append(make_record(record.image_id, record.width, record.height, numbered))
        evaluation.append(extent)
    extents = np.concatenate(evaluation)
    augmenter = make_augmenter(tuple(records), recipe, size=SIZE * 4)
    logs = []
    for number in range(samples):
        made = augmenter.sample(SampleKey(*divmod(number, len(records)), mosaic)).instances
        logs.append(np.log((made.boxes[:, 2:] - made.boxes[:, :2]) / extents[made.labels]))
    return np.concatenate(logs)


@pytest.mark.parametrize("scale", [0.5, 0.9])
@pytest.mark.parametrize("sides", [(0.04, 0.15), (0.1, 0.4)])
def test_objects_keep_their_evaluation_scale(scale: float, sides: tuple[float, float]) -> None:
    logs = log_sides(Recipe(scale=scale, hue=0, saturation=0, value=0), sides, 2000 if scale == 0.5 else 500)
    assert abs(np.median(logs)) <= 0.15
    assert np.quantile(logs, 0.9) - np.quantile(logs, 0.1) > 0.5


def test_objects_keep_their_evaluation_scale_after_mosaic_has_closed() -> None:
    assert abs(np.median(log_sides(Recipe(scale=0.9), (0.1, 0.4), 500, mosaic=False))) <= 0.15


def test_the_usual_uniform_scale_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lucid_core.data.augment.draw_scale", lambda rng, spread, images: rng.uniform(0.1, 1.9))
    assert np.median(log_sides(Recipe(scale=0.9), (0.1, 0.4), 300)) < -0.3


def test_a_sample_depends_on_its_key_alone() -> None:
    records = make_records(40)
    keys = [SampleKey(epoch, position, True) for epoch in (0, 1) for position in (0, 17, 39)]
    first = {key: digest(make_augmenter(records, EVERYTHING).sample(key)) for key in keys}
    augmenter = make_augmenter(records, EVERYTHING)
    for position in range(40):
        augmenter.sample(SampleKey(0, position, True))
    assert first == {key: digest(augmenter.sample(key)) for key in reversed(keys)}
    assert len(set(first.values())) == len(keys)
    assert digest(make_augmenter(records, EVERYTHING, seed=1).sample(keys[0])) != first[keys[0]]


def test_partners_come_from_the_group_and_a_group_is_decoded_once() -> None:
    records = make_records(40)
    augmenter = make_augmenter(records, EVERYTHING)
    order = augmenter.plan.order(0)
    source = augmenter.source.inner
    seen: set[int] = set()
    inner = source.source
    source.source = lambda index: (seen.add(index), inner(index))[1]  # type: ignore[method-assign]
    for position in range(16):
        augmenter.sample(SampleKey(0, position, True))
    assert seen <= {int(index) for index in order[:16]}
    assert len(seen) > 8
    assert source.reads <= 16


def test_a_group_of_one_is_its_own_partner() -> None:
    sample = make_augmenter(make_records(17), Recipe(mixup=1, copy_paste=1)).sample(SampleKey(0, 16, True))
    assert sample.image.shape == (SIZE, SIZE, 3)


def test_sources_are_never_written_to_nor_shared_with_samples() -> None:
    boxes = make_instances([[4, 4, 40, 40]])
    records = tuple(make_record(index, SIZE, SIZE, boxes) for index in range(4))
    for recipe in (PLAIN, Recipe(mosaic=0), EVERYTHING):
        augmenter = make_augmenter(records, recipe)
        kept = [augmenter.source.source(index) for index in range(4)]
        before = [pixels.tobytes() for pixels in kept]
        for position in range(4):
            sample = augmenter.sample(SampleKey(0, position, True))
            assert sample.image.flags.writeable
            sample.image[:] = 0
        assert [pixels.tobytes() for pixels in kept] == before


def test_a_recipe_of_nothing_is_the_letterboxed_image() -> None:
    records = make_records(4)
    augmenter = make_augmenter(records, PLAIN)
    sample = augmenter.sample(SampleKey(0, 0, True))
    pixels = PaintedSource(records).source(sample.index)
    top, left = ((SIZE - side) // 2 for side in pixels.shape[:2])
    np.testing.assert_array_equal(sample.image[top : top + len(pixels), left : left + pixels.shape[1]], pixels)
    assert sample.letterbox == (1.0, 0.0, 0.0)


def test_labels_are_inside_and_large_enough_whatever_is_switched_on() -> None:
    augmenter = make_augmenter(make_records(32), EVERYTHING)
    for position in range(32):
        boxes = augmenter.sample(SampleKey(0, position, True)).instances.boxes
        assert boxes.dtype == np.float32
        assert (boxes >= 0).all()
        assert (boxes <= SIZE).all()
        assert (boxes[:, 2:] - boxes[:, :2] >= 2).all()


def test_without_objects_there_are_no_labels() -> None:
    records = tuple(make_record(index, 640, 480, make_instances([])) for index in range(5))
    sample = make_augmenter(records, EVERYTHING).sample(SampleKey(0, 2, True))
    assert len(sample.instances) == 0


def test_copy_paste_without_outlines_changes_no_byte() -> None:
    records = make_records(16, outlined=False)
    off, on = (make_augmenter(records, Recipe(copy_paste=chance)) for chance in (0.0, 1.0))
    key = SampleKey(0, 3, True)
    assert digest(off.sample(key)) == digest(on.sample(key))
    outlined = make_augmenter(make_records(16), Recipe(copy_paste=1.0)).sample(key)
    assert len(outlined.instances) > len(on.sample(key).instances)


def test_the_flip_mirrors_pixels_and_labels() -> None:
    records = make_records(4)
    plain, flipped = (
        make_augmenter(records, Recipe(**{**vars(PLAIN), "flip": chance})).sample(SampleKey(0, 0, True))
        for chance in (0.0, 1.0)
    )
    np.testing.assert_array_equal(flipped.image, plain.image[:, ::-1])
    np.testing.assert_allclose(flipped.instances.boxes[:, 0], SIZE - plain.instances.boxes[:, 2], atol=1e-5)


def test_colour_is_a_seam_that_another_may_own() -> None:
    augmenter, key = make_augmenter(make_records(16)), SampleKey(0, 5, True)
    native = digest(augmenter.sample(key))
    seen = []

    def owned(inner, image, gains):
        seen.append(gains)
        return apply_colour(image, colour_matrix(gains))

    held = claim(augmenter, "data.colour", "test", augmenter, owned)
    assert digest(augmenter.sample(key)) == native
    assert seen[0].shape == (3,)
    assert seen[0].dtype == np.float64
    held.release()


@pytest.mark.parametrize(("name", "value"), [("mosaic", 1.5), ("scale", -0.1), ("hue", 0.6), ("flip", float("nan"))])
def test_a_recipe_out_of_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=rf"recipe\.{name} is {value}"):
        Recipe(**{name: value})


def test_a_strip_makes_samples() -> None:
    records = (make_record(0, 8192, 16, make_instances([[100, 3, 500, 13]])),)
    plan = EpochPlan(1, 0, None, 0)
    augmenter = Augmenter(PaintedSource(records), records, plan, SIZE, EVERYTHING, 0)
    for epoch in range(5):
        assert augmenter.sample(SampleKey(epoch, 0, True)).image.shape == (SIZE, SIZE, 3)

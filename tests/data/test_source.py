"""Pictures at training scale."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from lucid_core.data.images import ImageReader
from lucid_core.data.records import make_instances, make_truth
from lucid_core.data.source import SourceReader, scaled_size
from lucid_core.data.types import DataError, Record


def record(path: Path, width: int, height: int) -> Record:
    return Record(path, path.name, width, height, make_instances([], [], []), make_truth([], [], [], []))


def picture(path: Path, width: int, height: int, **options: object) -> Record:
    rng = np.random.default_rng(width * 10_000 + height)
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    coarse.resize((width, height), Image.Resampling.BICUBIC).save(path, **options)
    return record(path, width, height)


@pytest.mark.parametrize(
    ("width", "height", "size", "expected"),
    [
        (640, 480, 320, (320, 240)),
        (480, 640, 320, (240, 320)),
        (100, 75, 160, (160, 120)),
        (333, 250, 160, (160, 120)),
        (8192, 16, 64, (64, 1)),
        (16, 8192, 64, (1, 64)),
        (1, 1, 64, (64, 64)),
    ],
)
def test_long_side_reaches_the_size_and_no_side_vanishes(
    tmp_path: Path, width: int, height: int, size: int, expected: tuple[int, int]
) -> None:
    assert scaled_size(width, height, size) == expected
    for name in ("a.png", "a.jpg"):
        pixels = SourceReader([picture(tmp_path / name, width, height)], size).source(0)
        assert pixels.shape == (expected[1], expected[0], 3) and pixels.dtype == np.uint8


def test_a_picture_of_the_right_size_is_untouched(tmp_path: Path) -> None:
    one = picture(tmp_path / "a.png", 160, 90)
    assert np.array_equal(SourceReader([one], 160).source(0), ImageReader().decode(one.image))


def test_shrinks_by_area_and_grows_bilinearly(tmp_path: Path) -> None:
    one = picture(tmp_path / "a.png", 200, 100)
    full = ImageReader().decode(one.image)
    for size, way in ((120, cv2.INTER_AREA), (300, cv2.INTER_LINEAR)):
        expected = cv2.resize(full, (size, size // 2), interpolation=way)
        other = cv2.resize(full, (size, size // 2), interpolation=cv2.INTER_NEAREST)
        pixels = SourceReader([one], size).source(0)
        assert np.array_equal(pixels, expected) and not np.array_equal(pixels, other)


def test_same_bytes_every_time_and_none_to_write_on(tmp_path: Path) -> None:
    reader = SourceReader([picture(tmp_path / "a.jpg", 640, 480)], 160)
    first, second = reader.source(0), reader.source(0)
    assert np.array_equal(first, second)
    for pixels in (first, SourceReader(reader.records, 640).source(0)):
        with pytest.raises(ValueError, match="read-only"):
            pixels[0, 0] = 0


@pytest.mark.parametrize(("width", "height"), [(1280, 963), (1281, 965), (1999, 1333), (963, 1280)])
def test_reduced_decoding_stays_close_to_full_decoding(tmp_path: Path, width: int, height: int) -> None:
    one = picture(tmp_path / "a.jpg", width, height, quality=95)
    pixels = SourceReader([one], 320).source(0)
    full = cv2.resize(ImageReader().decode(one.image), scaled_size(width, height, 320), interpolation=cv2.INTER_AREA)
    assert pixels.shape == full.shape
    assert np.abs(pixels.astype(int) - full).mean() < 1.5


def test_turned_pictures_keep_the_size_their_labels_were_made_for(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(tmp_path / "a.jpg", 640, 480, exif=exif)
    assert SourceReader([record(tmp_path / "a.jpg", 480, 640)], 160).source(0).shape == (160, 120, 3)


@pytest.mark.parametrize(("width", "height"), [(480, 640), (1280, 960), (320, 240), (640, 481)])
def test_a_picture_that_is_not_what_its_labels_say_is_refused(tmp_path: Path, width: int, height: int) -> None:
    picture(tmp_path / "a.jpg", 640, 480)
    for size in (160, 640):
        with pytest.raises(DataError, match=rf"a\.jpg: is 640 x 480 .*{width} x {height}"):
            SourceReader([record(tmp_path / "a.jpg", width, height)], size).source(0)


def test_an_unreadable_file_is_a_fault_of_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.jpg: is empty"):
        SourceReader([record(tmp_path / "a.jpg", 64, 48)], 64).source(0)

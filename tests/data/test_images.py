"""Decoding of every kind of picture file."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from lucid_core.data.images import MAX_PIXELS, ImageReader
from lucid_core.data.types import DataError, UnreadableNow

READER = ImageReader()


def photograph(width: int = 64, height: int = 48) -> NDArray[np.uint8]:
    """Four quarters of distinct colours, so that turning and mirroring show."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (250, 10, 10)
    pixels[: height // 2, width // 2 :] = (10, 240, 10)
    pixels[height // 2 :, : width // 2] = (10, 10, 230)
    pixels[height // 2 :, width // 2 :] = (200, 200, 20)
    return pixels


def upright(stored: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    turns = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: np.transpose(a, (1, 0, 2)),
        6: lambda a: np.rot90(a, -1),
        7: lambda a: np.rot90(np.transpose(a, (1, 0, 2)), 2),
        8: lambda a: np.rot90(a, 1),
    }
    return turns[orientation](stored)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp"])
def test_pictures_come_upright(tmp_path: Path, suffix: str, orientation: int) -> None:
    path = tmp_path / f"turned{suffix}"
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(photograph()).save(path, exif=exif, quality=95, subsampling=0)
    pixels = READER.decode(path)
    expected = upright(photograph(), orientation)
    assert pixels.shape == expected.shape
    assert READER.probe(path) == (expected.shape[1], expected.shape[0])
    # Corners tell the eight apart; lossy formats blur only the seams between quarters.
    assert np.abs(pixels[2:-2:40, 2:-2:40].astype(int) - expected[2:-2:40, 2:-2:40]).max() <= 12


def test_16_bit_grey_is_scaled_not_cut(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 64 * 64).round().astype(np.uint16).reshape(64, 64)
    for name in ("ramp.png", "ramp.tif", "ramp.pgm"):
        path = tmp_path / name
        if name == "ramp.pgm":
            path.write_bytes(b"P5 64 64 65535\n" + ramp.astype(">u2").tobytes())
        else:
            Image.fromarray(ramp).save(path)
        pixels = READER.decode(path)
        assert pixels.dtype == np.uint8 and pixels.shape == (64, 64, 3)
        assert pixels.mean() == pytest.approx(127.5, abs=0.1)
        assert pixels[0, 0].tolist() == [0, 0, 0] and pixels[-1, -1].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_depths_without_a_scale_are_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "deep.tif"
    Image.fromarray(np.full((4, 4), 70_000, np.float32 if mode == "F" else np.int32)).save(path)
    with pytest.raises(DataError, match=r"deep.tif.*no defined scale"):
        READER.decode(path)


@pytest.mark.parametrize(
    ("name", "mode", "tolerance"),
    [
        ("a.png", "RGBA", 0),
        ("a.webp", "RGBA", 0),
        ("a.png", "P", 0),
        ("a.gif", "P", 0),
        ("a.bmp", "RGB", 0),
        ("a.tif", "RGB", 0),
        ("a.ppm", "RGB", 0),
        ("a.jpg", "CMYK", 12),
        ("a.tif", "CMYK", 0),
        ("really_a_png.jpg", "RGB", 0),
    ],
)
def test_colours_survive_every_mode(tmp_path: Path, name: str, mode: str, tolerance: int) -> None:
    path = tmp_path / name
    image = Image.fromarray(photograph()).convert(mode) if mode != "P" else Image.fromarray(photograph()).quantize(16)
    image.save(
        path, format="PNG" if name.startswith("really") else None, **({"lossless": True} if mode == "RGBA" else {})
    )
    difference = np.abs(READER.decode(path)[4:-4:36, 4:-4:50].astype(int) - photograph()[4:-4:36, 4:-4:50])
    assert difference.max() <= tolerance


def test_cmyk_red_is_red(tmp_path: Path) -> None:
    path = tmp_path / "red.jpg"
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(path, quality=100)
    red, green, blue = READER.decode(path)[8, 8].tolist()
    assert red > 245 and green < 10 and blue < 10


def test_transparency_is_dropped_and_the_colour_beneath_kept(tmp_path: Path) -> None:
    pixels = np.dstack([photograph(), np.zeros((48, 64), np.uint8)])
    Image.fromarray(pixels).save(tmp_path / "clear.png")
    assert np.array_equal(READER.decode(tmp_path / "clear.png"), photograph())
    grey = np.dstack([photograph()[..., 0], np.zeros((48, 64), np.uint8)])
    Image.fromarray(grey, mode=None).save(tmp_path / "la.png")
    assert np.array_equal(READER.decode(tmp_path / "la.png")[..., 1], photograph()[..., 0])


def test_one_bit_and_first_frames(tmp_path: Path) -> None:
    bits = photograph()[..., 0] > 100
    Image.fromarray(bits).save(tmp_path / "bits.png")
    assert np.array_equal(READER.decode(tmp_path / "bits.png")[..., 2], bits * np.uint8(255))
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for name in ("two.gif", "two.tif", "two.webp"):
        frames[0].save(
            tmp_path / name, save_all=True, append_images=frames[1:], **({"lossless": True} if "webp" in name else {})
        )
        assert READER.decode(tmp_path / name)[4, 4].tolist() == [255, 0, 0]


def test_result_is_contiguous_and_read_only(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photograph()).save(tmp_path / "a.jpg", exif=exif)
    pixels = READER.decode(tmp_path / "a.jpg", None)
    assert pixels.flags.c_contiguous and not pixels.flags.writeable


@pytest.mark.parametrize(("width", "height"), [(1000, 600), (600, 1000), (1001, 37), (3000, 2)])
@pytest.mark.parametrize("size", [64, 125, 499, 500, 501, 1000, 2000])
def test_reduced_decoding_never_falls_below_the_size_asked_for(
    tmp_path: Path, width: int, height: int, size: int
) -> None:
    path = tmp_path / "large.jpg"
    Image.fromarray(photograph(width, max(height, 2))).save(path)
    height, width = READER.decode(path).shape[:2]
    reduced = READER.decode(path, size).shape
    assert max(reduced[:2]) >= min(size, max(width, height))
    assert max(reduced[:2]) < max(2 * size, 2) or max(width, height) >= 8 * size or min(width, height) < 8
    assert reduced[0] / height == pytest.approx(reduced[1] / width, abs=1 / min(width, height))
    if size <= max(width, height) // 2 and min(width, height) > 8:
        assert max(reduced[:2]) < max(width, height)


def files_that_are_no_pictures(folder: Path) -> dict[str, bytes]:
    Image.fromarray(photograph()).save(folder / "good.jpg")
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 60, 3), dtype=np.uint8)).save(folder / "good.png")
    jpeg, png = (folder / "good.jpg").read_bytes(), (folder / "good.png").read_bytes()
    flipped = bytearray(png)
    flipped[len(png) // 2] ^= 0xFF
    return {
        "empty.jpg": b"",
        "page.jpg": b"<html><body>404 Not Found</body></html>",
        "pointer.jpg": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "cut.jpg": jpeg[: len(jpeg) * 6 // 10],
        "header_only.jpg": jpeg[:200],
        "cut.png": png[: len(png) // 2],
        "flipped.png": bytes(flipped),
        "script.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
    }


def test_damaged_files_are_named_in_one_line_with_a_remedy(tmp_path: Path) -> None:
    for name, content in files_that_are_no_pictures(tmp_path).items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(DataError, match=name) as caught:
            READER.decode(path)
        assert "remove" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_file_and_folder_are_faults_of_the_data(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.jpg", tmp_path):
        for read in (READER.decode, READER.probe):
            with pytest.raises(DataError, match=str(path)):
                read(path)


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        *((OSError(code, "seen"), True) for code in (errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE)),
        (MemoryError(), True),
        (OSError("image file is truncated"), False),
        (OSError(errno.EINVAL, "seen"), False),
    ],
)
def test_what_does_not_lie_with_the_file_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, passing: bool
) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    with pytest.raises(DataError, match="could not be read now" if passing else "damaged") as caught:
        READER.decode(tmp_path / "a.png")
    assert isinstance(caught.value, UnreadableNow) == passing and "\n" not in str(caught.value)


def test_pictures_that_claim_too_many_pixels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("1", (20_000, 10_000)).save(tmp_path / "huge.png")
    # Programs switch off Pillow's own limit; ours must not depend on it.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    for read in (READER.decode, READER.probe):
        with pytest.raises(DataError, match=rf"huge.png.*{MAX_PIXELS}"):
            read(tmp_path / "huge.png")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_metadata_does_not_lose_the_picture(tmp_path: Path) -> None:
    Image.fromarray(photograph()).save(tmp_path / "a.jpg", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert READER.decode(tmp_path / "a.jpg").shape == (48, 64, 3)
    assert READER.probe(tmp_path / "a.jpg") == (64, 48)


def test_probe_reads_no_pixels(tmp_path: Path) -> None:
    Image.fromarray(photograph()).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(data[:60])
    assert READER.probe(tmp_path / "a.png") == (64, 48)

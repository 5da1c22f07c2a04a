"""Whether a picture file is all there, and that looking it over agrees with decoding it."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lucid_core.data.images import ImageReader
from lucid_core.data.structure import is_whole
from lucid_core.data.types import DataError

READER = ImageReader()


def encoded(kind: str, **options: object) -> bytes:
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    file = io.BytesIO()
    small.resize((64, 48), Image.Resampling.BICUBIC).save(file, kind, **options)
    return file.getvalue()


KINDS = {
    "jpeg": encoded("JPEG"),
    "progressive": encoded("JPEG", progressive=True),
    "png": encoded("PNG"),
    "webp": encoded("WEBP"),
    "lossless": encoded("WEBP", lossless=True),
    "extended": encoded("WEBP", exif=Image.Exif().tobytes()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_are_known_without_decoding(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(KINDS[kind])
    assert is_whole(path)
    monkeypatch.setattr(ImageReader, "decode", None)
    assert READER.inspect(path) == (64, 48)


@pytest.mark.parametrize("kind", KINDS)
def test_no_cut_passes_that_a_decoder_would_trip_over(tmp_path: Path, kind: str) -> None:
    path, content = tmp_path / "a", KINDS[kind]
    for length in {*range(0, len(content), max(1, len(content) // 60)), *range(len(content) - 14, len(content))}:
        path.write_bytes(content[:length])
        # A cut that the decoder does not mind, such as one of metadata, may be called whole or not.
        assert not is_whole(path) or decodes(path), length
        assert inspects(path) == decodes(path), length


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_the_end_costs_nothing_but_time(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a"
    for junk in (b"\0", b"junk" * 500):
        path.write_bytes(KINDS[kind] + junk)
        assert inspects(path) and decodes(path)


@pytest.mark.parametrize("kind", ["tiff", "bmp", "gif", "ppm"])
def test_of_other_kinds_the_decoder_judges(tmp_path: Path, kind: str) -> None:
    path, content = tmp_path / "a", encoded(kind)
    path.write_bytes(content)
    assert not is_whole(path) and READER.inspect(path) == (64, 48)
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="cannot be decoded"):
        READER.inspect(path)


def test_flipped_bits_of_a_png_are_seen_by_its_check_sums(tmp_path: Path) -> None:
    path, content = tmp_path / "a.png", bytearray(KINDS["png"])
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert not is_whole(path)
    with pytest.raises(DataError, match=r"a\.png"):
        READER.inspect(path)


def test_a_chunk_that_claims_gigabytes_is_not_read(tmp_path: Path) -> None:
    claim = struct.pack(">I4s", (1 << 31) - 1, b"IDAT") + b"abc"
    (tmp_path / "a.png").write_bytes(KINDS["png"][: 8 + 25] + claim)
    assert not is_whole(tmp_path / "a.png")


def broken_inside(png: bytes) -> bytes:
    """A PNG with the right chunks and check sums, but pixels that nothing can unpack."""
    bad = b"IDAT" + bytes(10)
    return png[:33] + struct.pack(">I", 10) + bad + struct.pack(">I", zlib.crc32(bad)) + KINDS["png"][-12:]


def test_decoding_finds_what_structure_cannot_show(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(broken_inside(KINDS["png"]))
    assert is_whole(path) and READER.inspect(path) == (64, 48)
    with pytest.raises(DataError, match="cannot be decoded"):
        READER.inspect(path, decode=True)


def test_a_file_that_is_not_there_is_not_whole(tmp_path: Path) -> None:
    assert not is_whole(tmp_path / "gone.jpg") and not is_whole(tmp_path)
    with pytest.raises(DataError, match="no such picture"):
        READER.inspect(tmp_path / "gone.jpg")


def decodes(path: Path) -> bool:
    try:
        READER.decode(path)
    except DataError:
        return False
    return True


def inspects(path: Path) -> bool:
    try:
        READER.inspect(path)
    except DataError:
        return False
    return True

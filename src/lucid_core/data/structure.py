"""Whether a picture file is all there, told from its structure alone."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import BinaryIO

__all__ = ["is_whole"]

_PNG = b"\x89PNG\r\n\x1a\n"
_END_OF_JPEG = b"\xff\xd9"


def is_whole(path: Path) -> bool:
    """Tell whether a picture file reaches its own end.

    Nothing is decoded, and of a JPEG only both ends are read. The header is not looked into; that is for whoever reads
    the size.

    Args:
        path: The file.

    Returns:
        True for a JPEG that ends with its end marker, a PNG whose chunks have the right check sums up to the end chunk,
        and a WebP that is as long as it states. False for all others, which only a decoder can judge.
    """
    try:
        with path.open("rb") as file:
            return _is_whole(file)
    except OSError:
        return False


def _is_whole(file: BinaryIO) -> bool:
    head = file.read(12)
    end = file.seek(0, 2)
    if head.startswith(b"\xff\xd8\xff"):
        # Coded pixels cannot hold that pair of bytes, so no file ends with it that was cut there.
        file.seek(-2, 2)
        return file.read() == _END_OF_JPEG
    if head.startswith(_PNG):
        return _is_whole_png(file, end)
    if head.startswith(b"RIFF") and head.endswith(b"WEBP"):
        return _is_whole_webp(file, end, struct.unpack("<I", head[4:8])[0] + 8)
    return False


def _is_whole_png(file: BinaryIO, end: int) -> bool:
    file.seek(len(_PNG))
    while len(start := file.read(8)) == 8:
        length, name = struct.unpack(">I4s", start)
        if file.tell() + length + 4 > end:
            return False
        content, stated = file.read(length), file.read(4)
        if zlib.crc32(content, zlib.crc32(name)) != int.from_bytes(stated):
            return False
        if name == b"IEND":
            return True
    return False


def _is_whole_webp(file: BinaryIO, end: int, stated: int) -> bool:
    place = 12
    while place + 8 <= stated <= end:
        file.seek(place + 4)
        length = int.from_bytes(file.read(4), "little")
        # Chunks have even lengths in the file.
        place += 8 + length + length % 2
    return place == stated <= end

"""Decoding: any picture file becomes upright RGB bytes, or one :class:`DataError` that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError

from lucid_core.data.structure import is_whole
from lucid_core.data.types import DataError, UnreadableNow
from lucid_core.seams import seam

__all__ = ["MAX_PIXELS", "ImageReader", "upright_rgb"]

#: Pictures that claim more pixels than this are refused before anything is allocated for them. It is the limit at
#: which Pillow itself refuses; ours also holds where a program has switched Pillow's off.
MAX_PIXELS = 178_956_970

#: Raster formats only: Pillow would also hand PostScript to an interpreter and open proprietary containers.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "BMP", "DIB", "TIFF", "GIF", "AVIF", "JPEG2000", "PPM", "ICO")


class ImageReader:
    """Reads picture files. It holds nothing, so one reader may serve many data sets and processes.

    What comes out is what a viewer shows, in 8 bits:

    - the EXIF (or TIFF, AVIF, XMP) orientation is applied;
    - 16-bit grey is scaled, ``round(value * 255 / 65535)``; 16-bit colour keeps its high byte;
    - grey, 1-bit, palette and CMYK become RGB (without colour profiles);
    - transparency is dropped, never composited: a fourth channel is not always one, and the colour beneath it is what
      other readers give to a trained network;
    - of files with several frames the first is read.
    """

    @seam("data.decode")
    def decode(self, path: Path, size: int | None = None) -> NDArray[np.uint8]:
        """Decode one file.

        Args:
            path: The picture file. Its content decides the format, not its suffix.
            size: The long side, in pixels, that the caller will scale to. A JPEG whose long side is at least twice as
                long is then decoded at 1/2, 1/4 or 1/8 of its size, never below ``size``. ``None`` decodes in full.

        Returns:
            ``(H, W, 3)`` uint8 RGB, contiguous and read-only.

        Raises:
            DataError: The file is missing, empty, no picture, cut short, too large or of a depth without a defined
                scale.
            UnreadableNow: It could not be read for a reason that lies outside the file.
        """
        with _opened(path) as image:
            if size is not None and image.format in ("JPEG", "MPO"):
                width, height = image.size
                # Pillow takes the largest reduction that leaves both sides at least as long as asked.
                image.draft(None, (size, 1) if width >= height else (1, size))
            pixels = upright_rgb(image)
        pixels.setflags(write=False)
        return pixels

    def probe(self, path: Path) -> tuple[int, int]:
        """Read the size of a picture from its header, without decoding pixels.

        Args:
            path: The picture file.

        Returns:
            ``(width, height)`` in pixels of the upright picture.

        Raises:
            DataError: The file is missing, empty, no picture or too large.
        """
        with _opened(path) as image:
            width, height = image.size
            if isinstance(image, TiffImagePlugin.TiffImageFile):
                # Whether Pillow has turned this size already depends on its version.
                width, height = image.tag_v2[ExifTags.Base.ImageWidth], image.tag_v2[ExifTags.Base.ImageLength]
            turned = _orientation(image) >= 5
        return (height, width) if turned else (width, height)

    def inspect(self, path: Path, decode: bool = False) -> tuple[int, int]:
        """Make sure, at little cost, that a picture can be decoded.

        Args:
            path: The picture file.
            decode: Decode it in any case, not only where its structure does not show that all of it is there.

        Returns:
            ``(width, height)`` in pixels of the upright picture.

        Raises:
            DataError: It cannot be decoded.
        """
        size = self.probe(path)
        if decode or not is_whole(path):
            # The decoder has the last word, so that what it can read is never refused.
            self.decode(path)
        return size


def upright_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Give the pixels of a picture as ``(H, W, 3)`` uint8 RGB, as :class:`ImageReader` does.

    Raises:
        ValueError: Its depth has no defined scale. Whatever the decoder raises, too, where pixels are not loaded yet.
    """
    image.load()
    return _upright(_rgb(image), _orientation(image))


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """Open a picture; what goes wrong until the block ends is a fault of the file, unless it cannot be read now."""
    try:
        with Image.open(path, formats=_formats()) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Image.DecompressionBombError(f"{image.width} x {image.height} pixels")
            yield image
    except FileNotFoundError:
        raise DataError(f"{path}: no such picture file; restore it or remove it from the data set") from None
    except UnidentifiedImageError:
        seen = "is empty" if path.is_file() and path.stat().st_size == 0 else "is not a picture of a known format"
        raise DataError(f"{path}: {seen}; replace or remove the file (read are {', '.join(_formats())})") from None
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{path}: claims to be larger than {MAX_PIXELS} pixels ({_line(error)}); cut it into tiles or remove it"
        ) from None
    # Decoders of foreign bytes raise whatever they stumble on: OSError, SyntaxError, struct.error, IndexError ...
    except Exception as error:
        if (passing := UnreadableNow.because(path, error)) is not None:
            raise passing from error
        raise DataError(
            f"{path}: cannot be decoded ({_line(error)}); it is damaged or cut short: replace or remove the file"
        ) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Give the pixels of a loaded image as ``(H, W, 3)`` uint8."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError("32-bit grey has no defined scale; convert it to 8 or 16 bit")
        grey = ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.mode == "F":
        raise ValueError("floating-point grey has no defined scale; convert it to 8 or 16 bit")
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _orientation(image: Image.Image) -> int:
    """Read the EXIF orientation, 1 to 8; unreadable metadata does not make a picture unreadable."""
    try:
        # Before its pixels are loaded, a PNG's own method would load them to look for metadata behind them.
        exif = Image.Image.getexif(image)
        orientation = int(exif.get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)

"""Labelled boxes on a picture."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

__all__ = ["Colour", "colour_of", "draw_boxes"]

Colour = tuple[int, int, int]

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
_Area = tuple[int, int, int, int]

#: Pixels; smaller type cannot be read.
SMALLEST_TYPE = 11
#: Fonts of operating systems that have what Pillow's and matplotlib's lack, tried in this order.
SYSTEM_FONTS = (
    "DejaVuSans.ttf",
    "NotoSansCJK-Regular.ttc",
    "wqy-zenhei.ttc",
    "PingFang.ttc",
    "Arial Unicode.ttf",
    "msyh.ttc",
    "malgun.ttf",
    "YuGothM.ttc",
    "arial.ttf",
)


def colour_of(index: int) -> Colour:
    """Return the colour of a class: always the same one, and far from those of its neighbours.

    Args:
        index: Any integer, such as a label.

    Returns:
        ``(red, green, blue)``, each in ``[0, 255]``.
    """
    # Steps of the golden ratio never come close to an earlier hue soon; where they do, saturation and value differ.
    hue = index * 0.6180339887498949 % 1.0
    saturation, value = ((0.75, 1.0), (1.0, 0.65), (0.95, 0.85))[index % 3]
    red, green, blue = (round(255 * part) for part in colorsys.hsv_to_rgb(hue, saturation, value))
    return red, green, blue


def draw_boxes(
    image: NDArray[np.uint8],
    boxes: ArrayLike,
    captions: Sequence[str],
    colours: Sequence[Colour],
    quads: ArrayLike | None = None,
) -> NDArray[np.uint8]:
    """Draw boxes, each with a caption.

    Lines and type grow with the picture. A caption stands where it hides no earlier one, if there is such a place at
    its box, and always within the picture; one that is wider than the picture is cut short. Characters that no font at
    hand has are written as ``\\uXXXX``.

    Args:
        image: ``(H, W, 3)`` uint8 RGB.
        boxes: ``(N, 4)`` ``x1, y1, x2, y2`` in pixels, the most important one first. What lies outside is not drawn.
        captions: ``N`` texts; an empty one leaves its box without.
        colours: ``N`` colours.
        quads: ``(N, 4, 2)`` corners, drawn instead of the boxes, which then only say where captions belong.

    Returns:
        A copy of the picture with the boxes.

    Raises:
        ValueError: The lengths differ.
    """
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    width = max(1, round(max(canvas.size) / 300))
    corners = np.asarray(boxes).reshape(-1, 4)
    outlines = [None] * len(corners) if quads is None else np.asarray(quads).reshape(-1, 8).tolist()
    drawn = [
        (area, outline, caption, colour)
        for box, outline, caption, colour in zip(corners.tolist(), outlines, captions, colours, strict=True)
        if (area := _area(box, canvas.size)) is not None
    ]
    for area, outline, _, colour in reversed(drawn):
        if outline is None:
            draw.rectangle(area, outline=colour, width=width)
        else:
            # The first corner again, and the second, so that the last joint is filled as the others are.
            draw.line([*outline, *outline[:4]], fill=colour, width=width, joint="curve")
    taken: list[_Area] = []
    for area, _, caption, colour in drawn:
        if caption:
            taken.append(_write(draw, canvas.size, area, caption, colour, taken))
    return np.array(canvas)


def _area(box: Sequence[float], size: tuple[int, int]) -> _Area | None:
    """The first and last pixels that a box covers of the picture; None where it covers none."""
    if not np.isfinite(box).all():
        return None
    (left, right), (top, bottom) = sorted(box[0::2]), sorted(box[1::2])
    if right < 0 or bottom < 0 or left > size[0] or top > size[1]:
        return None
    x1, y1 = min(int(max(left, 0)), size[0] - 1), min(int(max(top, 0)), size[1] - 1)
    x2, y2 = (min(int(np.ceil(end)), limit) - 1 for end, limit in ((right, size[0]), (bottom, size[1])))
    return x1, y1, max(x1, x2), max(y1, y2)


def _write(
    draw: ImageDraw.ImageDraw, size: tuple[int, int], area: _Area, caption: str, colour: Colour, taken: list[_Area]
) -> _Area:
    """Write one caption on a ground of its colour, and return where."""
    type_size = max(SMALLEST_TYPE, round(max(size) / 50))
    margin = max(1, type_size // 6)
    text, font = _fitting(" ".join(caption.split()), type_size, size[0] - 2 * margin)
    ink = font.getbbox(text)
    # The height of a line is the same whatever its letters are.
    _, above, _, below = font.getbbox("Ág|")
    above, below = min(above, ink[1]), max(below, ink[3])
    width, height = int(np.ceil(ink[2] - ink[0])) + 2 * margin, int(np.ceil(below - above)) + 2 * margin
    x1, y1, x2, y2 = area
    places = [
        (min(max(x, 0), max(size[0] - width, 0)), min(max(y, 0), max(size[1] - height, 0)))
        for x in (x1, x2 + 1 - width)
        for y in (y1 - height, y1, y2 + 1, y2 + 1 - height)
    ]
    grounds = [(x, y, min(x + width, size[0]) - 1, min(y + height, size[1]) - 1) for x, y in places]
    ground = next((it for it in grounds if not any(_overlap(it, other) for other in taken)), grounds[0])
    draw.rectangle(ground, fill=colour)
    luminance = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    shade = (0, 0, 0) if luminance > 120 else (255, 255, 255)
    draw.text((ground[0] + margin - ink[0], ground[1] + margin - above), text, fill=shade, font=font)
    return ground


def _overlap(one: _Area, other: _Area) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def _fitting(text: str, size: int, room: int) -> tuple[str, _Font]:
    """The text, cut short where it is wider than ``room``, and the font that has its characters."""
    text, font = _font_for(text, size)
    if font.getlength(text) > room:
        while text and font.getlength(f"{text}...") > room:
            text = text[:-1]
        text = f"{text.rstrip(' .')}..." if text else "."
    return text, font


def _font_for(text: str, size: int) -> tuple[str, _Font]:
    """The first font that has every character; else the first one, and what it lacks written out."""
    for source in _sources():
        if all(_has(source, character) for character in text):
            return text, _load(source, size)
    first = next(_sources())
    plain = (c if _has(first, c) else c.encode("ascii", "backslashreplace").decode() for c in text)
    return "".join(plain), _load(first, size)


def _sources() -> Iterator[str]:
    """Fonts by name or file, the empty name for Pillow's own."""
    yield ""
    plots = find_spec("matplotlib")
    if plots is not None and plots.origin is not None:
        yield str(Path(plots.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf")
    yield from SYSTEM_FONTS


@cache
def _load(source: str, size: int) -> _Font:
    return ImageFont.truetype(source, size) if source else ImageFont.load_default(size)


@cache
def _has(source: str, character: str) -> bool:
    """Whether a font is there and has a character: if not, it shows what it shows for the non-character U+FFFF."""
    try:
        font = _load(source, 16)
    except OSError:
        return False
    return character == " " or bytes(font.getmask(character)) != bytes(font.getmask("\uffff"))

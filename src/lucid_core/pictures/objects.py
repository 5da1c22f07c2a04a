"""What is labelled or detected on a picture: boxes, masks, oriented boxes and key points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pycocotools import mask as coco_mask

from lucid_core.data.points import Pairs, PointTable
from lucid_core.data.types import Rle
from lucid_core.pictures.draw import Colour, colour_of, draw_boxes

__all__ = ["Objects", "draw_objects", "links_of", "unpacked"]

#: How much a mask covers what is under it.
OPACITY = 0.45


class Objects(NamedTuple):
    """Objects with captions, to draw on one picture. All but the boxes may be left out.

    Attributes:
        boxes: ``(n, 4)`` ``x1, y1, x2, y2`` in pixels of the picture.
        labels: ``n`` classes; each has its colour.
        captions: ``n`` texts.
        masks: Up to ``n`` masks over the whole picture, bool, in any size; read once.
        quads: ``(n, 4, 2)`` corners of oriented boxes, drawn instead of the boxes.
        points: ``(n, K, 2)`` key points; those that are not finite are not drawn.
        links: Key points to join.
    """

    boxes: NDArray[np.floating]
    labels: Sequence[int]
    captions: Sequence[str]
    masks: Iterable[NDArray[np.bool_]] = ()
    quads: NDArray[np.floating] | None = None
    points: NDArray[np.floating] | None = None
    links: Pairs = ()

    def scaled(self, ratio: float) -> Objects:
        """Return the objects of the picture when it is enlarged so many times."""
        return self._replace(
            boxes=np.asarray(self.boxes).reshape(-1, 4) * ratio,
            quads=None if self.quads is None else self.quads * ratio,
            points=None if self.points is None else self.points * ratio,
        )


def links_of(table: PointTable | None) -> Pairs:
    """Return the points to join: the skeleton of the annotation, or without one those that mirror each other."""
    return () if table is None else table.skeleton or table.pairs or ()


def unpacked(masks: Iterable[Rle]) -> Iterator[NDArray[np.bool_]]:
    """Unpack run lengths one by one, since all together may not fit into memory."""
    for mask in masks:
        yield coco_mask.decode([mask])[..., 0].astype(np.bool_)  # type: ignore[arg-type]


def draw_objects(image: NDArray[np.uint8], objects: Objects) -> NDArray[np.uint8]:
    """Draw masks, then skeletons, then boxes with their captions.

    Args:
        image: ``(H, W, 3)`` uint8 RGB.
        objects: In its pixels.

    Returns:
        A copy of the picture with the objects.
    """
    colours = [colour_of(label) for label in objects.labels]
    drawn = image.copy()
    for mask, colour in zip(objects.masks, colours, strict=False):
        _paint(drawn, mask, colour)
    if objects.points is not None:
        drawn = _join(drawn, objects.points, objects.links, colours)
    return draw_boxes(drawn, objects.boxes, objects.captions, colours, objects.quads)


def _paint(image: NDArray[np.uint8], mask: NDArray[np.bool_], colour: Colour) -> None:
    height, width = image.shape[:2]
    if mask.shape != (height, width):
        mask = cv2.resize(mask.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST) > 0
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if len(rows):
        part = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
        window, inside = image[part], mask[part]
        window[inside] = (window[inside] * (1 - OPACITY) + np.array(colour) * OPACITY).astype(np.uint8)


def _join(
    image: NDArray[np.uint8], points: NDArray[np.floating], links: Pairs, colours: Sequence[Colour]
) -> NDArray[np.uint8]:
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    width = max(1, round(max(canvas.size) / 300))
    for places, colour in zip(points, colours, strict=True):
        shown = np.isfinite(places).all(1)
        for one, other in links:
            if shown[one] and shown[other]:
                draw.line([*places[one].tolist(), *places[other].tolist()], fill=colour, width=width)
        # A point has the same colour on every object, and is told from the lines of its own.
        for number in np.flatnonzero(shown):
            x, y = places[number].tolist()
            reach = width + 1
            draw.ellipse([x - reach, y - reach, x + reach, y + reach], fill=colour_of(int(number)), outline=colour)
    return np.array(canvas)

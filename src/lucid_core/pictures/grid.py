"""Many pictures in one file, all of one size, each under its title."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lucid_core.pictures.draw import draw_boxes
from lucid_core.pictures.objects import Objects, draw_objects

__all__ = ["SIDE", "grid", "save", "tile"]

#: Side of a tile in pixels: captions can be read, and sixteen tiles fit on a screen.
SIDE = 320
#: Height of a title in pixels, and the gap between tiles.
TITLE, GAP = 20, 4

WHITE = 255


def tile(image: NDArray[np.uint8], objects: Objects, title: str) -> NDArray[np.uint8]:
    """Draw one picture with its objects, fitted into a square below a title.

    Args:
        image: ``(H, W, 3)`` uint8 RGB; its pixels stay sharp squares when it grows.
        objects: What is on it.
        title: One line.

    Returns:
        ``(TITLE + SIDE, SIDE, 3)`` uint8 RGB.
    """
    height, width = image.shape[:2]
    ratio = SIDE / max(height, width)
    columns, rows = max(1, round(width * ratio)), max(1, round(height * ratio))
    how = cv2.INTER_NEAREST if ratio > 1 else cv2.INTER_AREA
    fitted: NDArray[np.uint8] = np.asarray(cv2.resize(image, (columns, rows), interpolation=how), np.uint8)
    drawn = draw_objects(fitted, objects.scaled(ratio))
    result = np.full((TITLE + SIDE, SIDE, 3), WHITE, np.uint8)
    result[TITLE : TITLE + rows, :columns] = drawn
    # The title is the caption of a box that is too small to see, and so comes in every script that captions do.
    result[:TITLE] = draw_boxes(result[:TITLE], [(0, 0, 1, 1)], [title], [(WHITE, WHITE, WHITE)])
    return result


def grid(tiles: Sequence[NDArray[np.uint8]], columns: int) -> NDArray[np.uint8]:
    """Lay tiles out in rows.

    Args:
        tiles: At least one, all of one shape.
        columns: Tiles in a row, at most.
    """
    columns = min(columns, len(tiles))
    height, width = (side + GAP for side in tiles[0].shape[:2])
    result = np.full((math.ceil(len(tiles) / columns) * height - GAP, columns * width - GAP, 3), WHITE, np.uint8)
    for place, picture in enumerate(tiles):
        top, left = place // columns * height, place % columns * width
        result[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return result


def save(image: NDArray[np.uint8], file: Path) -> None:
    """Write a PNG; whoever looks at the file meanwhile sees the old one."""
    part = file.with_name(f".{file.name}.part")
    # Level 1 takes a fifth of the time of the default and a tenth more room.
    Image.fromarray(image).save(part, "png", compress_level=1)
    os.replace(part, file)

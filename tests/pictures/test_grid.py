"""Tiles: what is drawn lies where it is on the picture, at every scale and shape."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lucid_core.pictures.draw import colour_of
from lucid_core.pictures.grid import GAP, SIDE, TITLE, grid, save, tile
from lucid_core.pictures.objects import Objects


@pytest.mark.parametrize(("height", "width"), [(64, 64), (320, 320), (640, 320), (100, 1000)])
def test_a_box_lies_where_it_is_on_the_picture(height: int, width: int) -> None:
    image = np.full((height, width, 3), 40, np.uint8)
    box = np.array([[0.25 * width, 0.25 * height, 0.75 * width, 0.75 * height]])
    made = tile(image, Objects(box, [1], [""]), "title")
    assert made.shape == (TITLE + SIDE, SIDE, 3)
    rows, columns = np.nonzero((made[TITLE:] == colour_of(1)).all(2))
    ratio = SIDE / max(height, width)
    assert [columns.min(), rows.min()] == pytest.approx((box[0, :2] * ratio).tolist(), abs=1)
    assert [columns.max() + 1, rows.max() + 1] == pytest.approx((box[0, 2:] * ratio).tolist(), abs=1)
    assert (image == 40).all()
    inside = made[TITLE:][: round(height * ratio), : round(width * ratio)]
    assert (inside != 255).all()


def test_a_title_changes_with_its_text_and_leaves_the_picture_alone() -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    nothing = Objects(np.zeros((0, 4)), [], [])
    one, other = tile(image, nothing, "a.jpg"), tile(image, nothing, "изображение.jpg")
    assert (one[:TITLE] != other[:TITLE]).any()
    assert (one[TITLE:] == other[TITLE:]).all()


def test_tiles_stand_in_rows(tmp_path: Path) -> None:
    tiles = [np.full((TITLE + SIDE, SIDE, 3), value, np.uint8) for value in (10, 20, 30)]
    assert grid(tiles[:1], 4).shape == tiles[0].shape
    picture = grid(tiles, 2)
    assert picture.shape == (2 * (TITLE + SIDE) + GAP, 2 * SIDE + GAP, 3)
    assert picture[0, 0, 0] == 10 and picture[0, -1, 0] == 20 and picture[-1, 0, 0] == 30 and picture[-1, -1, 0] == 255
    save(picture, tmp_path / "some.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "some.png")), picture)
    assert [path.name for path in tmp_path.iterdir()] == ["some.png"]

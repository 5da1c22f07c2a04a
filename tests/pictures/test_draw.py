"""Boxes and captions, at every size of picture and in any script."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from lucid_core.pictures import draw
from lucid_core.pictures.draw import Colour, colour_of, draw_boxes

RED = (200, 0, 0)
GREY = 100


def canvas(width: int, height: int) -> NDArray[np.uint8]:
    return np.full((height, width, 3), GREY, np.uint8)


def where(picture: NDArray[np.uint8], colour: Colour) -> tuple[int, int, int, int]:
    """First and last column and row that show a colour: x1, y1, x2, y2."""
    rows, columns = np.nonzero((picture == colour).all(axis=2))
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


def test_a_box_covers_the_pixels_it_says() -> None:
    before = canvas(100, 80)
    picture = draw_boxes(before, [[10, 20, 30, 60]], [""], [RED])
    assert where(picture, RED) == (10, 20, 29, 59)
    assert (picture[40, 20] == GREY).all()
    assert (before == GREY).all()
    assert picture.dtype == np.uint8 and picture.shape == before.shape


def test_nothing_to_draw_gives_an_equal_copy() -> None:
    before = canvas(20, 20)
    picture = draw_boxes(before, np.empty((0, 4), np.float32), [], [])
    assert np.array_equal(picture, before) and not np.shares_memory(picture, before)


def test_pictures_that_may_not_be_written_to_can_be_drawn() -> None:
    before = canvas(60, 60)
    before.setflags(write=False)
    draw_boxes(before, [[1, 1, 50, 50]], ["a"], [RED])[0, 0] = 0


@pytest.mark.parametrize("size", [(1, 1), (8, 200), (200, 8), (64, 48), (640, 480), (4000, 3000)])
@pytest.mark.parametrize("corner", [(0.0, 0.0), (0.9, 0.0), (0.0, 0.9), (0.9, 0.9)])
def test_a_caption_stays_within_the_picture(size: tuple[int, int], corner: tuple[float, float]) -> None:
    width, height = size
    x, y = corner[0] * width, corner[1] * height
    framed = canvas(width + 2, height + 2)
    picture = draw_boxes(framed[1:-1, 1:-1], [[x, y, x + width / 10, y + height / 10]], ["a long name 0.87"], [RED])
    assert picture.shape == (height, width, 3)
    if min(size) >= 48:
        # Room enough: the whole line stands there, with ink in it.
        x1, y1, x2, y2 = where(picture, RED)
        assert y2 - y1 >= 11 and x2 - x1 >= 40
        inside = picture[y1 : y2 + 1, x1 : x2 + 1].astype(int)
        assert (np.abs(inside - RED).sum(axis=2) > 300).any()


def test_type_grows_with_the_picture() -> None:
    def height(side: int) -> int:
        picture = draw_boxes(canvas(side, side), [[0, side // 2, 1, side // 2 + 1]], ["abc"], [RED])
        _, y1, _, y2 = where(picture, RED)
        return y2 - y1

    assert height(64) == height(300) < height(1200) < height(4000)


def test_a_caption_that_is_too_wide_is_cut_short() -> None:
    font = draw._load("", 11)
    text, _ = draw._fitting("a very long name of a class 0.87", 11, 60)
    assert text.startswith("a very") and text.endswith("...") and font.getlength(text) <= 60
    assert draw._fitting("abc", 11, 60)[0] == "abc"
    assert draw._fitting("abc", 11, 0)[0] == "."


def test_captions_do_not_hide_each_other_where_there_is_room() -> None:
    boxes = [[100, 100, 200, 200], [102, 101, 201, 202], [100, 99, 199, 198]]
    colours = [colour_of(index) for index in range(3)]
    alone = [draw_boxes(canvas(400, 400), boxes[:1], ["name 0.50"], [colour]) for colour in colours]
    together = draw_boxes(canvas(400, 400), boxes, ["name 0.50"] * 3, colours)
    for picture, colour in zip(alone, colours, strict=True):
        assert (together == colour).all(axis=2).sum() > 0.6 * (picture == colour).all(axis=2).sum()


@pytest.mark.parametrize(
    ("box", "drawn"),
    [
        ((-50, -50, 30, 30), True),
        ((30, 30, 10, 10), True),
        ((80, 80, 500, 500), True),
        ((10, 10, 10, 10), True),
        ((-50, -50, -10, -10), False),
        ((500, 10, 600, 20), False),
        ((float("nan"), 0, 10, 10), False),
        ((0, 0, float("inf"), 10), False),
    ],
)
def test_odd_boxes(box: tuple[float, ...], drawn: bool) -> None:
    picture = draw_boxes(canvas(100, 100), [box], ["x"], [RED])
    assert (picture != GREY).any() == drawn


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="argument"):
        draw_boxes(canvas(10, 10), [[0, 0, 5, 5]], [], [RED])


@pytest.mark.parametrize("text", ["déjà vu", "ящик", "κύκλος", "two\nlines\tand  more"])
def test_scripts_are_shown_with_a_font_that_has_them(text: str) -> None:
    pytest.importorskip("matplotlib")
    shown, font = draw._font_for(" ".join(text.split()), 16)
    assert shown == " ".join(text.split())
    missing = bytes(font.getmask("\uffff"))
    assert not any(bytes(font.getmask(character)) == missing for character in shown if character != " ")


def test_what_no_font_has_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draw, "_sources", lambda: iter(["", "no such font.ttf"]))
    assert draw._font_for("缺 a", 16)[0] == r"\u7f3a a"


def test_colours_are_stable_and_well_separated() -> None:
    colours = [colour_of(index) for index in range(20)]
    assert colours == [colour_of(index) for index in range(20)]
    distances = [np.abs(np.subtract(a, b)).sum() for a, b in combinations(colours, 2)]
    assert min(distances) >= 60
    assert min(np.abs(np.subtract(a, b)).sum() for a, b in combinations(colours[:8], 2)) >= 120
    assert len({colour_of(index) for index in range(1000)}) > 500

from __future__ import annotations

import numpy as np
import pytest

from lucid_core.evaluation.original import original_boxes

from .scenes import letterbox, record


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(480, 640, (1.0, 0, 80)), (427, 640, (1.0, 0, 106)), (1000, 750, (0.64, 80, 0)), (333, 500, (1.28, 0, 107))],
)
def test_letterbox_round_trip(height: int, width: int, expected: tuple[float, float, float]) -> None:
    shown = record([], [], width=width, height=height)
    frame = letterbox(shown, 640)
    assert frame == pytest.approx(expected)
    ratio, pad_x, pad_y = frame
    boxes = np.array([[0, 0, width, height], [1.25, 2.5, 100.125, 200.75], [width - 1, height - 1, width, height]])
    canvas = boxes * ratio + np.array([pad_x, pad_y, pad_x, pad_y])
    assert original_boxes(canvas, frame, width, height) == pytest.approx(boxes, abs=1e-10)


def test_boxes_in_the_padding_are_clamped_to_the_image() -> None:
    canvas = np.array([[0.0, 0, 640, 640], [-50, 100, 20, 700]])
    found = original_boxes(canvas, (1.0, 0, 106), 640, 427)
    assert found.tolist() == [[0, 0, 640, 427], [0, 0, 20, 427]]


def test_an_inverted_box_becomes_an_empty_one() -> None:
    found = original_boxes(np.array([[50.0, 200, 20, 150]]), (1.0, 0, 80), 640, 480)
    assert found.tolist() == [[50, 120, 50, 120]]
    assert original_boxes(np.empty((0, 4)), (1.0, 0, 80), 640, 480).shape == (0, 4)

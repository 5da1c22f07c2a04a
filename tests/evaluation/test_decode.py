from __future__ import annotations

import math

import pytest
import torch

from lucid_core.evaluation.decode import end_to_end
from lucid_core.network.anchors import make_anchors
from lucid_core.types import Anchors, BranchOutput


def grid(canvas: int = 64) -> Anchors:
    return make_anchors(canvas, canvas, torch.device("cpu"))


def output(canvas: int = 64, classes: int = 3, images: int = 2, seed: int = 0) -> BranchOutput:
    generator = torch.Generator().manual_seed(seed)
    count = len(grid(canvas).centres)
    return BranchOutput(
        torch.randn(images, count, classes, generator=generator),
        torch.rand(images, count, 4, generator=generator) * 4 + 0.5,
    )


def test_rows_are_the_best_anchors_by_falling_score() -> None:
    raw, anchors = output(256), grid(256)
    found = end_to_end(raw, anchors, limit=50)
    best = raw.logits.max(-1)
    for image in range(2):
        expected = best.values[image].topk(50).indices
        assert torch.equal(found.anchors[image], expected)
        assert torch.equal(found.scores[image], best.values[image, expected].sigmoid())
        assert torch.equal(found.labels[image], best.indices[image, expected])
    anchor = int(found.anchors[0, 0])
    (x, y), stride = anchors.centres[anchor].tolist(), float(anchors.strides[anchor])
    left, top, right, bottom = (raw.distances[0, anchor] * stride).tolist()
    assert found.boxes[0, 0].tolist() == pytest.approx([x - left, y - top, x + right, y + bottom], rel=1e-5)


def test_an_anchor_appears_once_even_if_two_of_its_classes_score_high() -> None:
    raw = output()
    raw.logits[0, 5] = 9.0
    found = end_to_end(raw, grid())
    assert (found.anchors[0] == 5).sum() == 1
    assert found.labels[0, 0] == 0


def test_a_small_canvas_is_padded_to_exactly_the_limit() -> None:
    found = end_to_end(output(64), grid(64), limit=300)
    assert found.boxes.shape == (2, 300, 4)
    assert (found.anchors[:, :84] >= 0).all()
    assert (found.anchors[:, 84:] == -1).all()
    assert not found.boxes[:, 84:].any() and not found.scores[:, 84:].any() and not found.labels[:, 84:].any()


def test_equal_scores_come_lowest_anchor_first() -> None:
    raw = output(640, images=1)
    raw.logits.zero_()
    found = end_to_end(raw, grid(640))
    assert torch.equal(found.anchors[0], torch.arange(300))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["logits", "distances"])
def test_anchors_that_are_not_finite_give_no_row(bad: float, field: str) -> None:
    raw = output()
    getattr(raw, field)[0, 7] = bad
    found = end_to_end(raw, grid(), limit=100)
    assert 7 not in found.anchors[0].tolist()
    assert 7 in found.anchors[1].tolist()
    assert all(part.isfinite().all() for part in found if part is not None)
    assert (found.anchors[0] >= 0).sum() == 83


def test_half_precision_output_gives_float32() -> None:
    raw = BranchOutput(*(part.bfloat16() for part in output()[:2]))
    found = end_to_end(raw, grid())
    assert found.boxes.dtype == found.scores.dtype == torch.float32
    assert found.labels.dtype == found.anchors.dtype == torch.int64

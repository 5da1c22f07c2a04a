from __future__ import annotations

import pytest
import torch

from lucid_core.evaluation import nms
from lucid_core.evaluation.nms import suppress, with_nms
from lucid_core.network.anchors import make_anchors
from lucid_core.types import Anchors, BranchOutput


def naive(boxes: torch.Tensor, labels: torch.Tensor, iou: float, limit: int) -> list[int]:
    """One box at a time."""
    kept: list[int] = []
    for j in range(len(boxes)):
        clash = False
        for i in kept:
            if labels[i] != labels[j]:
                continue
            low, high = torch.maximum(boxes[i, :2], boxes[j, :2]), torch.minimum(boxes[i, 2:], boxes[j, 2:])
            shared = (high - low).clamp(min=0).prod()
            areas = [(boxes[k, 2:] - boxes[k, :2]).prod() for k in (i, j)]
            clash |= bool(shared / (areas[0] + areas[1] - shared) > iou)
        if not clash:
            kept.append(j)
        if len(kept) == limit:
            break
    return kept


def crowded(seed: int, count: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.rand(count, 2, generator=generator) * 60
    sides = torch.rand(count, 2, generator=generator) * 30 + 20
    labels = torch.randint(classes, (count,), generator=generator)
    return torch.cat([centres - sides / 2, centres + sides / 2], dim=1), labels


@pytest.mark.parametrize("block", [1, 7, 512])
@pytest.mark.parametrize(("seed", "classes", "iou", "limit"), [(0, 1, 0.7, 300), (1, 3, 0.5, 300), (2, 2, 0.3, 9)])
def test_equals_the_naive_greedy_loop(
    monkeypatch: pytest.MonkeyPatch, block: int, seed: int, classes: int, iou: float, limit: int
) -> None:
    monkeypatch.setattr(nms, "BLOCK", block)
    boxes, labels = crowded(seed, 150, classes)
    expected = naive(boxes, labels, iou, limit)
    assert 1 < len(expected) < 150
    assert suppress(boxes, labels, iou, limit).tolist() == expected


def test_a_suppressed_box_suppresses_nothing() -> None:
    chain = torch.tensor([[0.0, 0, 10, 10], [3, 0, 13, 10], [6, 0, 16, 10], [9, 0, 19, 10]])
    assert suppress(chain, torch.zeros(4, dtype=torch.int64), 0.5, 300).tolist() == [0, 2]


def test_classes_do_not_suppress_each_other() -> None:
    twice = torch.tensor([[0.0, 0, 10, 10]]).repeat(3, 1)
    assert suppress(twice, torch.tensor([0, 1, 0]), 0.7, 300).tolist() == [0, 1]


def scene(canvas: int = 64) -> tuple[BranchOutput, Anchors]:
    anchors = make_anchors(canvas, canvas, torch.device("cpu"))
    count = len(anchors.centres)
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, count, 3, generator=generator)
    return BranchOutput(logits, torch.rand(2, count, 4, generator=generator) * 4 + 0.5), anchors


def test_layout_is_fixed_and_sorted() -> None:
    raw, anchors = scene()
    found = with_nms(raw, anchors, limit=300)
    assert found.boxes.shape == (2, 300, 4) and found.scores.shape == (2, 300)
    assert (found.scores.diff(dim=1) <= 0).all()
    empty = found.anchors < 0
    assert empty.any() and not empty[:, 0].any()
    assert not found.scores[empty].any() and not found.boxes[empty].any()
    assert with_nms(raw, anchors, limit=5).anchors.tolist() == found.anchors[:, :5].tolist()


def test_faulty_boxes_are_dropped_and_suppress_nothing() -> None:
    raw, anchors = scene()
    clean = set(with_nms(raw, anchors, iou=1.0).anchors[0].tolist())
    raw.distances[0, 3] = float("nan")
    raw.distances[0, 4] = -1.0
    raw.logits[0, 5] = float("nan")
    raw.distances[0, 6, 0] = -raw.distances[0, 6, 2]
    raw.logits[0, 3:7] += 20.0
    kept = set(with_nms(raw, anchors, iou=1.0).anchors[0].tolist())
    assert clean - kept == {3, 4, 5, 6}


def test_scores_below_the_threshold_are_left_out() -> None:
    raw, anchors = scene()
    found = with_nms(raw, anchors, score=0.6, iou=1.0)
    assert found.scores[found.anchors >= 0].min() >= 0.6
    assert int((found.anchors[0] >= 0).sum()) == int((raw.logits[0].max(-1).values.sigmoid() >= 0.6).sum())


def test_nothing_found_is_an_empty_layout() -> None:
    raw, anchors = scene()
    found = with_nms(BranchOutput(raw.logits - 50, raw.distances), anchors)
    assert (found.anchors == -1).all() and not found.scores.any()

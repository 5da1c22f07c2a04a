"""The assigner against scenes worked out by hand."""

from __future__ import annotations

import pytest
import torch

from lucid_core.network.anchors import make_anchors
from lucid_core.objective.assign import Assigner, candidates
from lucid_core.objective.boxes import pairwise_iou
from lucid_core.types import Anchors, Targets


def grid(canvas: int, stride: int) -> Anchors:
    ticks = (torch.arange(canvas // stride) + 0.5) * stride
    y, x = torch.meshgrid(ticks, ticks, indexing="ij")
    centres = torch.stack((x, y), -1).reshape(-1, 2)
    return Anchors(centres, torch.full((len(centres), 1), float(stride)))


def targets_of(*boxes: tuple[float, float, float, float]) -> Targets:
    return Targets(
        torch.tensor([boxes], dtype=torch.float32),
        torch.zeros(1, len(boxes), dtype=torch.int64),
        torch.ones(1, len(boxes), dtype=torch.bool),
    )


class Scene:
    """Canvas 32, stride 8; the anchor at (x, y) predicts (x-9, y-9, x+11, y+10); its score is 0.5 + 0.03*index."""

    def __init__(self) -> None:
        self.anchors = grid(32, 8)
        self.boxes = torch.cat((self.anchors.centres - 9, self.anchors.centres + torch.tensor([11.0, 10.0])), 1)[None]
        self.logits = torch.logit(0.5 + 0.03 * torch.arange(16.0)).view(1, 16, 1)
        self.targets = targets_of((0, 0, 20, 20), (12, 12, 32, 32))

    def assign(self, topk: int, single: bool = False) -> tuple[dict[int, list[int]], torch.Tensor]:
        inside = candidates(self.targets, self.anchors)
        result = Assigner(topk, single)(self.logits, self.boxes, self.targets, inside)
        owned: dict[int, list[int]] = {0: [], 1: []}
        for anchor in result.foreground[0].nonzero().flatten().tolist():
            owned[int(result.owner[0, anchor])].append(anchor)
        return owned, result.weight[0]


def test_candidates_include_edges() -> None:
    scene = Scene()
    inside = candidates(scene.targets, scene.anchors)[0]
    assert inside[0].nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert inside[1].nonzero().flatten().tolist() == [5, 6, 7, 9, 10, 11, 13, 14, 15]


@pytest.mark.parametrize(
    ("topk", "first", "second"), [(4, [0, 1, 4, 5], [9, 10, 11, 14]), (6, [0, 1, 4, 5], [6, 9, 10, 11, 14, 15])]
)
def test_topk_and_conflicts(topk: int, first: list[int], second: list[int]) -> None:
    assert Scene().assign(topk)[0] == {0: first, 1: second}


def test_weights() -> None:
    weight = Scene().assign(4)[1]
    expected = {0: 0.0272, 1: 0.0827, 4: 0.1773, 5: 0.5886, 9: 0.0051, 10: 0.7808, 11: 0.0221, 14: 0.0392}
    for anchor, value in expected.items():
        assert weight[anchor].item() == pytest.approx(value, abs=6e-5)
    assert weight.count_nonzero() == len(expected)


@pytest.mark.parametrize("topk", [1, 4, 6])
def test_single_keeps_the_best_anchor(topk: int) -> None:
    owned, weight = Scene().assign(topk, single=True)
    assert owned == {0: [5], 1: [10]}
    assert weight[5].item() == pytest.approx(0.5886, abs=6e-5)
    assert weight[10].item() == pytest.approx(0.7808, abs=6e-5)


@pytest.mark.parametrize("topk", [1, 3, 4, 6])
def test_ties_at_zero_keep_candidates(topk: int) -> None:
    """All alignments are 0: the target still gets its own candidates, lowest anchor first, and nobody else's."""
    anchors = grid(16, 4)
    targets = targets_of((8, 8, 16, 16))
    boxes = torch.zeros(1, 16, 4)
    result = Assigner(topk)(torch.zeros(1, 16, 1), boxes, targets, candidates(targets, anchors))
    assert result.foreground[0].nonzero().flatten().tolist() == [10, 11, 14, 15][:topk]


@pytest.mark.parametrize("iou", [1.0, 0.5, 0.1, 0.01])
def test_best_weight_is_the_iou(iou: float) -> None:
    """Also for poor overlaps, whose alignment of iou**6 an absolute floor would swallow."""
    anchors = grid(16, 16)
    targets = targets_of((0, 0, 16, 16))
    boxes = torch.tensor([[[0.0, 0.0, 16.0, 16.0 * iou]]])
    result = Assigner(10)(torch.zeros(1, 1, 1), boxes, targets, candidates(targets, anchors))
    assert result.weight.item() == pytest.approx(iou, rel=1e-5)


def test_loser_falls_back_to_its_next_anchor() -> None:
    """Two targets prefer the same anchor and each has a second candidate: both keep one."""
    anchors = grid(16, 8)
    targets = targets_of((0, 0, 16, 8), (0, 0, 8, 16))
    boxes = torch.tensor([[[0.0, 0, 12, 12], [8.0, 0, 9, 9], [0.0, 8, 9, 9], [0, 0, 0, 0]]])
    result = Assigner(7, single=True)(torch.zeros(1, 4, 1), boxes, targets, candidates(targets, anchors))
    assert int(result.foreground.sum()) == 2
    assert sorted(result.owner[0][result.foreground[0]].tolist()) == [0, 1]


def test_small_targets_get_candidates() -> None:
    anchors = make_anchors(64, 64, torch.device("cpu"))
    inside = candidates(targets_of((29, 29, 35, 35)), anchors)[0, 0]
    assert int(inside[:64].sum()) == 4
    assert int(candidates(targets_of((29, 29, 35.0, 61)), anchors)[0, 0][:64].sum()) == 8


def test_pairwise_iou_value() -> None:
    a, b = torch.tensor([[[0.0, 0, 2, 2]]]), torch.tensor([[[1.0, 1, 3, 3], [3.0, 3, 1, 1]]])
    assert pairwise_iou(a, b)[0, 0].tolist() == pytest.approx([1 / 7, 0.0])


def test_anchor_counts_and_centres() -> None:
    for canvas, count in {640: 8400, 1024: 21504, 320: 2100, 128: 336, 64: 84}.items():
        assert make_anchors(canvas, canvas, torch.device("cpu")).centres.shape == (count, 2)
    anchors = make_anchors(32, 64, torch.device("cpu"))
    assert anchors.centres[[0, 1, 8]].tolist() == [[4, 4], [12, 4], [4, 12]]
    assert anchors.strides[[0, 31, 32, 40]].flatten().tolist() == [8, 8, 16, 32]


def test_capacity_changes_no_bit_though_it_moves_the_tail_of_a_vector() -> None:
    """A CPU computes the last few of many numbers otherwise than the rest, and how many these are depends on N."""
    anchors = make_anchors(64, 64, torch.device("cpu"))
    random = torch.Generator().manual_seed(0)
    for _ in range(100):
        low = torch.rand(2, 2, 2, generator=random) * 40
        few = Targets(
            torch.cat((low, low + 5 + torch.rand(2, 2, 2, generator=random) * 30), 2),
            torch.randint(0, 3, (2, 2), generator=random),
            torch.ones(2, 2, dtype=torch.bool),
        )
        many = Targets(*(torch.cat((x, x.new_zeros(2, 5, *x.shape[2:])), 1) for x in few[:3]))
        logits = torch.randn(2, 84, 3, generator=random)
        sides = 4 + torch.rand(2, 84, 4, generator=random) * 20
        boxes = torch.cat((anchors.centres - sides[..., :2], anchors.centres + sides[..., 2:]), 2)
        made = [Assigner(10)(logits, boxes, targets, candidates(targets, anchors)) for targets in (few, many)]
        assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 6, 7])
def test_the_overlap_counts_by_its_power(exponent: int) -> None:
    scene = Scene()
    inside = candidates(scene.targets, scene.anchors)
    result = Assigner(4, beta=exponent)(scene.logits, scene.boxes, scene.targets, inside)
    overlap = pairwise_iou(scene.targets.boxes, scene.boxes)[0]
    alignment = scene.logits[0, :, 0].sigmoid() * overlap**exponent
    for target in (0, 1):
        mine = result.foreground[0] & (result.owner[0] == target)
        expected = alignment[target] * overlap[target][mine].max() / alignment[target][mine].max()
        torch.testing.assert_close(result.weight[0][mine], expected[mine])


@pytest.mark.parametrize(("name", "value"), [("topk", 0), ("alpha", float("nan")), ("beta", -1)])
def test_settings_are_checked(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        Assigner(**{"topk": 10, name: value})  # type: ignore[arg-type]

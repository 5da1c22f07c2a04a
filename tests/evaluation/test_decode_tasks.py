"""Decoding of masks, oriented boxes and key points: rows go with their anchors, whatever the decoder."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lucid_core.evaluation.decode import end_to_end
from lucid_core.evaluation.evaluator import Decoder, detect
from lucid_core.evaluation.nms import with_nms
from lucid_core.network.anchors import make_anchors
from lucid_core.network.rotated import decode_rotated
from lucid_core.types import BranchOutput, Predictions

GRID = make_anchors(64, 64, torch.device("cpu"))
COUNT = len(GRID.centres)
DECODERS: tuple[Decoder, ...] = ("end_to_end", "nms")


def branch(task: str, dtype: torch.dtype = torch.float32) -> BranchOutput:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, COUNT, *shape, generator=generator).to(dtype)

    raw = BranchOutput(normal(3), normal(4).abs() + 0.5)
    if task == "segment":
        return raw._replace(coefficients=normal(32).tanh())
    if task == "obb":
        return raw._replace(angles=normal(1) * 3)
    return raw._replace(points=normal(5, 2), sigmas=normal(5, 2))


def predictions(task: str, dtype: torch.dtype = torch.float32) -> Predictions:
    raw = branch(task, dtype)
    prototypes = torch.randn(2, 32, 16, 16).to(dtype) if task == "segment" else None
    return Predictions(raw, raw, GRID, prototypes)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("task", ["segment", "obb", "keypoints"])
def test_what_belongs_to_an_anchor_goes_with_its_row(task: str, decoder: Decoder) -> None:
    shown = predictions(task)
    found, raw = detect(shown, decoder), shown.one_to_one
    used = 0
    for image in range(2):
        for row, anchor in enumerate(found.anchors[image].tolist()):
            if anchor < 0:
                continue
            used += 1
            centre, stride = GRID.centres[anchor], GRID.strides[anchor]
            if found.coefficients is not None and raw.coefficients is not None:
                assert torch.equal(found.coefficients[image, row], raw.coefficients[image, anchor])
            if found.points is not None and raw.points is not None:
                assert torch.allclose(found.points[image, row], centre + raw.points[image, anchor] * stride)
            if found.rboxes is not None and raw.angles is not None:
                reach = raw.distances[image, anchor] * stride
                box = torch.cat((centre - reach[:2], centre + reach[2:]))
                assert torch.allclose(found.rboxes[image, row], decode_rotated(box, raw.angles[image, anchor]))
    assert used > 40
    present = {name for name, field in found._asdict().items() if field is not None}
    extras = {"segment": {"coefficients", "prototypes"}, "obb": {"rboxes"}, "keypoints": {"points"}}[task]
    assert present == {"boxes", "scores", "labels", "anchors"} | extras


@pytest.mark.parametrize("task", ["segment", "obb", "keypoints"])
def test_rows_that_hold_nothing_are_zero(task: str) -> None:
    found = end_to_end(branch(task), GRID, limit=300)
    for field in (found.coefficients, found.rboxes, found.points):
        assert field is None or (field.shape[:2] == (2, 300) and not field[:, COUNT:].any())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["coefficients", "angles", "points"])
def test_anchors_of_which_anything_is_not_finite_give_no_row(bad: float, field: str) -> None:
    raw = branch({"coefficients": "segment", "angles": "obb", "points": "keypoints"}[field])
    getattr(raw, field)[0, 7].view(-1)[-1] = bad
    for found in (end_to_end(raw, GRID), with_nms(raw, GRID, iou=1.0)):
        assert 7 not in found.anchors[0].tolist() and 7 in found.anchors[1].tolist()
        assert all(part.isfinite().all() for part in found if part is not None)


def test_the_box_of_an_oriented_box_encloses_it() -> None:
    raw = branch("obb")
    raw.logits[0, 0], raw.distances[0, 0], raw.angles[0, 0] = 9.0, torch.tensor([4.0, 1, 4, 1]), math.pi / 2
    found = end_to_end(raw, GRID)
    assert found.rboxes is not None
    assert found.rboxes[0, 0].tolist() == pytest.approx([4, 4, 64, 16, math.pi / 2], abs=1e-4)
    assert found.boxes[0, 0].tolist() == pytest.approx([-4, -28, 12, 36], abs=1e-4)


def test_suppression_compares_oriented_boxes_and_not_what_encloses_them() -> None:
    """Two crossed bars at one place fill the same upright box nearly alike, and share little."""
    raw = BranchOutput(torch.full((1, COUNT, 1), -9.0), torch.ones(1, COUNT, 4), angles=torch.zeros(1, COUNT, 1))
    raw.logits[0, :3] = torch.tensor([3.0, 2.0, 1.0]).unsqueeze(1)
    # Boxes of 40 x 8 about (20, 4), written from the centres (4, 4), (12, 4) and (20, 4).
    raw.distances[0, :3] = torch.tensor([[0.5, 0.5, 4.5, 0.5], [1.5, 0.5, 3.5, 0.5], [2.5, 0.5, 2.5, 0.5]])
    raw.angles[0, :3, 0] = torch.tensor([math.pi / 4, -math.pi / 4, math.pi / 4 + 0.01])
    found = with_nms(raw, GRID, score=0.1)
    assert found.anchors[0, :3].tolist() == [0, 1, -1]
    upright = with_nms(raw._replace(angles=torch.zeros(1, COUNT, 1)), GRID, score=0.1)
    assert upright.anchors[0, :2].tolist() == [0, -1]


@pytest.mark.parametrize("task", ["segment", "obb", "keypoints"])
def test_half_precision_output_gives_float32(task: str) -> None:
    for decoder in DECODERS:
        found = detect(predictions(task, torch.bfloat16), decoder)
        floats = [found.boxes, found.coefficients, found.prototypes, found.rboxes, found.points]
        assert all(part is None or part.dtype == torch.float32 for part in floats)

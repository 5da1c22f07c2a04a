"""Box arithmetic against values worked out by hand."""

from __future__ import annotations

import pytest
import torch

from lucid_core.network.anchors import decode
from lucid_core.objective.boxes import complete_iou
from lucid_core.types import Anchors


@pytest.mark.parametrize(
    ("predicted", "target", "loss"),
    [
        ((1, 1, 3, 3), (0, 0, 2, 2), 0.968254),
        ((0, 0, 4, 2), (0, 0, 2, 2), 0.553248),
        ((2, 3, 7, 5), (2, 3, 7, 5), 2.5e-8),
        ((5, 5, 5, 5), (0, 0, 10, 20), 1.056982),
    ],
)
def test_complete_iou_loss(predicted: tuple[float, ...], target: tuple[float, ...], loss: float) -> None:
    value = 1 - complete_iou(torch.tensor(predicted, dtype=torch.float64), torch.tensor(target, dtype=torch.float64))
    assert value.item() == pytest.approx(loss, abs=2e-6 if loss > 1e-6 else 1e-6)


def test_gradient_of_a_collapsed_box_is_finite() -> None:
    """A point has no aspect: that term pulls at nothing, and no other gradient explodes."""
    for box in ((5.0, 5.0, 5.0, 5.0), (5.0, 5.0, 5.0, 9.0), (9.0, 9.0, 2.0, 1.0)):
        predicted = torch.tensor(box, requires_grad=True)
        (1 - complete_iou(predicted, torch.tensor((0.0, 0.0, 10.0, 20.0)))).backward()
        assert predicted.grad is not None
        assert predicted.grad.abs().max() < 1


def test_decode() -> None:
    anchors = Anchors(torch.tensor([[4.0, 12.0], [16.0, 16.0]]), torch.tensor([[8.0], [32.0]]))
    boxes = decode(torch.tensor([[[0.5, 1, 2, 3], [-1, 0, 0, 0.25]]], dtype=torch.bfloat16), anchors)
    assert boxes.dtype == torch.float32
    assert boxes.tolist() == [[[0, 4, 20, 36], [48, 16, 16, 24]]]

"""The objective of instance segmentation: that of detection, the masks of objects, and the classes of cells."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from lucid_core.objective.objective import Gains, Objective
from lucid_core.objective.positives import mean_of, rows_of, select_positives
from lucid_core.types import CELL, Assignment, MaskTerms, Predictions, Targets

__all__ = ["SegmentGains", "SegmentObjective", "mask_term", "semantic_target", "semantic_term"]

#: Masks of an image that one branch learns from: maps of 13 MB for each image in float32 at 640 pixels, in a handful of
#: tensors of which three stay until backward.
CAPACITY = 128


@dataclass(frozen=True)
class SegmentGains(Gains):
    """Factors of the terms of segmentation.

    Args:
        mask: Of the masks of objects.
        semantic: Of the classes of cells.
    """

    mask: float = 2.5
    semantic: float = 0.5


class SegmentObjective(Objective):
    """Score boxes, classes and masks.

    Args:
        gains: Factors of the terms.
        capacity: Anchors of an image that a branch learns masks at, the best placed ones where there are more.
            Memory grows with it. Boxes and classes are learnt at all anchors.

    Raises:
        ValueError: ``capacity`` is under 1.
    """

    def __init__(self, gains: SegmentGains | None = None, capacity: int = CAPACITY) -> None:
        super().__init__(gains or SegmentGains())
        if capacity < 1:
            raise ValueError(f"masks need at least one anchor of an image, got capacity={capacity}")
        self.capacity = capacity

    def task(self, predictions: Predictions, targets: Targets, many: Assignment, one: Assignment) -> MaskTerms:
        """Return the mask term of both branches, and the semantic term, which there is in training alone.

        Raises:
            ValueError: There are no prototypes, or no masks.
        """
        masks = targets.masks
        if predictions.prototypes is None or masks is None:
            missing = "targets.masks" if masks is None else "predictions.prototypes"
            raise ValueError(f"masks cannot be scored without {missing}: the network and the data must be of segment")
        prototypes = predictions.prototypes.float()
        # Masks are indexed, not gathered as coefficients are, which would look up each cell by an index of its own.
        images = torch.arange(len(masks), device=masks.device).unsqueeze(1)
        terms = []
        for branch, assignment in ((predictions.one_to_many, many), (predictions.one_to_one, one)):
            anchors, owner, real = select_positives(assignment, self.capacity)
            assert branch.coefficients is not None
            terms.append(
                mask_term(
                    rows_of(branch.coefficients.float(), anchors),
                    prototypes,
                    masks[images, owner],
                    rows_of(targets.boxes, owner),
                    real,
                )
            )
        if predictions.semantic is None:
            return MaskTerms(self.blend(*terms))
        semantic = predictions.semantic.float()
        return MaskTerms(
            self.blend(*terms), semantic_term(semantic, semantic_target(targets, masks, semantic.shape[1]))
        )


def mask_term(coefficients: Tensor, prototypes: Tensor, masks: Tensor, boxes: Tensor, real: Tensor) -> Tensor:
    """Return binary cross-entropy of masks within the boxes of their objects (YOLACT, arXiv 1904.02689, section 3.1).

    The sum over the cells whose centres lie in the box, left and upper edge included, is divided by the area of the
    box in cells, at least 1, and averaged over objects: a large one counts as much as a small one.

    Args:
        coefficients: ``(B, P, k)`` float.
        prototypes: ``(B, k, h, w)`` float.
        masks: ``(B, P, h, w)`` bool, what is to be predicted.
        boxes: ``(B, P, 4)`` of the objects, pixels of the canvas.
        real: ``(B, P)`` bool. Places without an object have no part in value or gradient, whatever they hold.
    """
    coefficients = torch.where(real.unsqueeze(2), coefficients, 0.0)
    low, high = torch.split(torch.where(real.unsqueeze(2), boxes, 0.0) / CELL, 2, 2)
    height, width = prototypes.shape[2:]
    columns = torch.arange(width, device=boxes.device) + 0.5
    rows = torch.arange(height, device=boxes.device) + 0.5
    across = (columns >= low[..., :1]) & (columns < high[..., :1])
    down = (rows >= low[..., 1:]) & (rows < high[..., 1:])
    crop = down.unsqueeze(3) & across.unsqueeze(2)
    logits = torch.unflatten(coefficients @ prototypes.flatten(2), 2, (height, width))
    entropy = functional.binary_cross_entropy_with_logits(logits, masks.to(logits.dtype), reduction="none")
    area = (high - low).prod(2).clamp(min=1)
    return mean_of((entropy * crop).sum((2, 3)) / area, real)


def semantic_target(targets: Targets, masks: Tensor, classes: int) -> Tensor:
    """Return which classes are present in each cell of 8 pixels, ``(B, C, h/2, w/2)`` float, from ``(B, N, h, w)``."""
    cells = torch.unflatten(torch.unflatten(masks, 3, (-1, 2)).any(4), 2, (-1, 2)).any(3)
    of_class = targets.labels.unsqueeze(1) == torch.arange(classes, device=masks.device).unsqueeze(1)
    of_class = of_class & targets.valid.unsqueeze(1)
    # A float sum over targets, but all that is kept of it is whether it is 0, which no order of summation changes.
    counts = of_class.float() @ cells.flatten(2).float()
    return torch.unflatten((counts > 0).float(), 2, cells.shape[2:])


def semantic_term(logits: Tensor, target: Tensor) -> Tensor:
    """Return binary cross-entropy and soft Dice, averaged over images and classes.

    Args:
        logits: ``(B, C, h, w)`` float.
        target: ``(B, C, h, w)`` float, 0 or 1.
    """
    entropy = functional.binary_cross_entropy_with_logits(logits, target)
    found = logits.sigmoid()
    shared, both = (found * target).sum((2, 3)), found.sum((2, 3)) + target.sum((2, 3))
    return entropy + (1 - (2 * shared + 1) / (both + 1)).mean()

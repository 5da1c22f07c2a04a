"""The types that travel along the arrows of one training step.

``file -> Sample -> Batch -> Predictions -> Losses -> gradients -> weights -> checkpoint -> Detections -> AP``

Letters used for shapes throughout the package:

===== =========================================================================
``B`` images in the batch
``S`` side of the square canvas in pixels, a multiple of 32
``N`` target capacity: rows reserved per image, a power of two, at least 1
``A`` anchors over all levels: ``(S/8)**2 + (S/16)**2 + (S/32)**2``
``C`` classes
``K`` key points per object
===== =========================================================================

Boxes are ``(x1, y1, x2, y2)`` in pixels of the image they belong to, with the origin at the outer corner of the first
pixel (a pixel covers ``[i, i + 1)``), unless a name says otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Anchors", "Assignment", "Batch", "BranchOutput", "Detections", "Losses", "Predictions", "Targets", "Terms"]


class Targets(NamedTuple):
    """Ground truth of a batch, padded to a fixed structure by the loader's workers.

    Rows past an image's own objects are padding: zero boxes, label 0, ``valid`` false. Padding is inert in bits.

    Attributes:
        boxes: ``(B, N, 4)`` float32, pixels of the canvas.
        labels: ``(B, N)`` int64, in ``[0, C)``.
        valid: ``(B, N)`` bool.
    """

    boxes: Tensor
    labels: Tensor
    valid: Tensor


class Batch(NamedTuple):
    """What the loader delivers, and what the step reads.

    Attributes:
        images: ``(B, 3, S, S)`` RGB. uint8 from the loader until it is on the device; ``unpack`` replaces it by floats
            in ``[0, 1]`` (channels_last on CUDA).
        targets: Padded ground truth.
        records: ``(B,)`` int64, the record of the data set that each image was made from. It stays on the host.
        letterbox: ``(B, 3)`` float64, ``(ratio, pad_x, pad_y)``: canvas = ratio * original + pad. Meaningful for
            evaluation batches; ``(1, 0, 0)`` for training batches, whose geometry is random. It stays on the host.
    """

    images: Tensor
    targets: Targets
    records: Tensor
    letterbox: Tensor


class Anchors(NamedTuple):
    """The grid of one canvas size.

    Attributes:
        centres: ``(A, 2)`` float32, ``(x, y)`` in pixels of the canvas, levels in stride order, rows before columns.
        strides: ``(A, 1)`` float32, pixels.
    """

    centres: Tensor
    strides: Tensor


class BranchOutput(NamedTuple):
    """Raw output of one branch of the head.

    Attributes:
        logits: ``(B, A, C)`` class logits.
        distances: ``(B, A, 4)`` left, top, right, bottom from the anchor centre, in strides, unbounded.
    """

    logits: Tensor
    distances: Tensor


class Predictions(NamedTuple):
    """Raw output of the network: two branches over the same features, and the grid they refer to."""

    one_to_many: BranchOutput
    one_to_one: BranchOutput
    anchors: Anchors


class Assignment(NamedTuple):
    """Which anchor is responsible for which object. Made without gradient.

    Attributes:
        foreground: ``(B, A)`` bool.
        owner: ``(B, A)`` int64, row of the target the anchor belongs to; 0 at background.
        weight: ``(B, A)`` float32, in ``[0, 1]``; 0 at background.
    """

    foreground: Tensor
    owner: Tensor
    weight: Tensor


class Terms(NamedTuple):
    """The three terms of one branch before their gains; 0-d float32 tensors."""

    box: Tensor
    cls: Tensor
    l1: Tensor


class Losses(NamedTuple):
    """What the objective returns.

    Attributes:
        total: 0-d float32, what backward starts from.
        one_to_many: Terms of that branch.
        one_to_one: Terms of that branch.
    """

    total: Tensor
    one_to_many: Terms
    one_to_one: Terms

    def scalars(self) -> dict[str, Tensor]:
        """Name every loss for the logger. The tensors are detached and owned by the caller."""
        values = torch.stack([self.total, *self.one_to_many, *self.one_to_one]).detach().unbind()
        names = ["loss", *(f"{branch}_{term}" for branch in ("o2m", "o2o") for term in Terms._fields)]
        return dict(zip(names, values, strict=True))


class Detections(NamedTuple):
    """Decoded boxes of a batch in a fixed layout, best first; rows that hold nothing have score 0 and anchor -1.

    Attributes:
        boxes: ``(B, D, 4)`` float32, pixels of the canvas.
        scores: ``(B, D)`` float32, in ``[0, 1]``.
        labels: ``(B, D)`` int64.
        anchors: ``(B, D)`` int64, the anchor each row was decoded from.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor

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

Oriented boxes are ``(cx, cy, w, h, angle)``: ``w`` is the longer side, and the angle, in radians in
``[-pi/4, 3*pi/4)``, leads from the x axis to the ``w`` side, towards the y axis: clockwise on the screen. A square has
its angle in ``[-pi/4, pi/4)``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = [
    "CELL",
    "Anchors",
    "Assignment",
    "Batch",
    "BranchOutput",
    "Detections",
    "Losses",
    "MaskTerms",
    "NoTerms",
    "OrientedTerms",
    "PointTerms",
    "Predictions",
    "Targets",
    "Task",
    "Terms",
]

#: Pixels of the canvas along a side of a cell of masks and prototypes.
CELL = 4

#: What a detector finds besides the class and the box of an object: nothing, its mask, the rotation of its box, or its
#: key points.
Task = Literal["detect", "segment", "obb", "keypoints"]


class Targets(NamedTuple):
    """Ground truth of a batch, padded to a fixed structure by the loader's workers.

    Rows past an image's own objects are padding: zero boxes, label 0, ``valid`` false. Padding is inert in bits.

    Attributes:
        boxes: ``(B, N, 4)`` float32, pixels of the canvas. Where there are oriented boxes, what encloses them.
        labels: ``(B, N)`` int64, in ``[0, C)``.
        valid: ``(B, N)`` bool.
        masks: Of the task ``segment``: ``(B, N, S/4, S/4)`` bool, the cells of the prototypes that an object covers.
        rboxes: Of the task ``obb``: ``(B, N, 5)`` float32, oriented boxes, pixels of the canvas and radians.
        points: Of the task ``keypoints``: ``(B, N, K, 2)`` float32, ``(x, y)`` in pixels of the canvas. Read only where
            they are labelled.
        visibility: Of the task ``keypoints``: ``(B, N, K)`` int64, 0 for a point without a label, 1 for a hidden one,
            2 for one that is seen.
    """

    boxes: Tensor
    labels: Tensor
    valid: Tensor
    masks: Tensor | None = None
    rboxes: Tensor | None = None
    points: Tensor | None = None
    visibility: Tensor | None = None


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
        coefficients: Of the task ``segment``: ``(B, A, 32)`` factors of the prototypes, in ``[-1, 1]``.
        angles: Of the task ``obb``: ``(B, A, 1)`` rotation of the box about its own centre, radians, unbounded.
        points: Of the task ``keypoints``: ``(B, A, K, 2)`` from the anchor centre, in strides, unbounded.
        sigmas: Of the task ``keypoints``: ``(B, A, K, 2)`` logits of the spread of each coordinate.
    """

    logits: Tensor
    distances: Tensor
    coefficients: Tensor | None = None
    angles: Tensor | None = None
    points: Tensor | None = None
    sigmas: Tensor | None = None


class Predictions(NamedTuple):
    """Raw output of the network: two branches over the same features, and the grid they refer to.

    Attributes:
        one_to_many: What the branch says that only trains.
        one_to_one: What the branch says that is deployed.
        anchors: The grid of the canvas.
        prototypes: Of the task ``segment``: ``(B, 32, H/4, W/4)``, unbounded. The mask of an anchor is where their sum
            by its coefficients is positive.
        semantic: Of the task ``segment``, in training mode alone: ``(B, C, H/8, W/8)`` logits of the classes of a cell.
    """

    one_to_many: BranchOutput
    one_to_one: BranchOutput
    anchors: Anchors
    prototypes: Tensor | None = None
    semantic: Tensor | None = None


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


class OrientedTerms(NamedTuple):
    """The four terms of one branch over oriented boxes, before their gains; 0-d float32 tensors."""

    rbox: Tensor
    cls: Tensor
    rl1: Tensor
    angle: Tensor


class NoTerms(NamedTuple):
    """What a task adds whose terms are those of the branches."""


class MaskTerms(NamedTuple):
    """What segmentation adds, before gains; 0-d float32 tensors. The mask term is that of both branches, blended.

    The semantic term is ``None`` in evaluation mode, which predicts no classes of cells: a loss of evaluation lacks it.
    """

    mask: Tensor
    semantic: Tensor | None = None


class PointTerms(NamedTuple):
    """What key points add, before gains; 0-d float32 tensors, each that of both branches, blended."""

    keypoint: Tensor
    oks: Tensor


class Losses(NamedTuple):
    """What the objective returns.

    Attributes:
        total: 0-d float32, what backward starts from.
        one_to_many: Terms of that branch.
        one_to_one: Terms of that branch.
        task: Terms that the task adds.
    """

    total: Tensor
    one_to_many: Terms | OrientedTerms
    one_to_one: Terms | OrientedTerms
    task: NoTerms | MaskTerms | PointTerms = NoTerms()

    def scalars(self) -> dict[str, Tensor]:
        """Name every loss for the logger. The tensors are detached and owned by the caller."""
        named = {"loss": self.total}
        named |= {f"o2m_{name}": term for name, term in self.one_to_many._asdict().items()}
        named |= {f"o2o_{name}": term for name, term in self.one_to_one._asdict().items()}
        named |= {name: term for name, term in self.task._asdict().items() if term is not None}
        return dict(zip(named, torch.stack(list(named.values())).detach().unbind(), strict=True))


class Detections(NamedTuple):
    """Decoded boxes of a batch in a fixed layout, best first; rows that hold nothing have score 0 and anchor -1.

    Masks stay factors and prototypes until one is needed: all of them would be ``D`` pictures for each picture.

    Attributes:
        boxes: ``(B, D, 4)`` float32, pixels of the canvas. Where there are oriented boxes, what encloses them.
        scores: ``(B, D)`` float32, in ``[0, 1]``.
        labels: ``(B, D)`` int64.
        anchors: ``(B, D)`` int64, the anchor each row was decoded from.
        coefficients: Of the task ``segment``: ``(B, D, 32)`` float32, factors of the prototypes.
        prototypes: Of the task ``segment``: ``(B, 32, S/4, S/4)`` float32. A mask is where their sum by a row's
            coefficients is positive, within its box.
        rboxes: Of the task ``obb``: ``(B, D, 5)`` float32, oriented boxes in canonical form, pixels of the canvas and
            radians.
        points: Of the task ``keypoints``: ``(B, D, K, 2)`` float32, ``(x, y)`` in pixels of the canvas.
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor
    anchors: Tensor
    coefficients: Tensor | None = None
    prototypes: Tensor | None = None
    rboxes: Tensor | None = None
    points: Tensor | None = None

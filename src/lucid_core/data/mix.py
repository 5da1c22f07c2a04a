"""Two samples in one: mixup and copy-paste."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.geometry import concatenate, select
from lucid_core.data.masks import rasterise
from lucid_core.data.types import Float32, Instances

__all__ = ["copy_paste", "mixup"]

#: A pasted object may hide less than this share of the box of any object.
MAX_HIDDEN = 0.3

Labelled = tuple[NDArray[np.uint8], Instances]


def mixup(first: Labelled, second: Labelled, share: float) -> Labelled:
    """Blend two samples and keep the objects of both (Zhang et al. 2018, https://arxiv.org/abs/1710.09412).

    Args:
        first: Image ``(S, S, 3)`` uint8 and labels.
        second: The same of another sample.
        share: Of the first image, in ``[0, 1]``; used in steps of 1/256.

    Returns:
        A new image, rounded half up, and the labels of both, unweighted.
    """
    weight = round(256 * share)
    blend = first[0].astype(np.uint16) * weight
    blend += second[0].astype(np.uint16) * (256 - weight)
    blend += 128
    blend >>= 8
    return blend.astype(np.uint8), concatenate([first[1], second[1]])


def copy_paste(receiver: Labelled, donor: Labelled) -> Labelled:
    """Paste the outlined objects of one sample onto another (Ghiasi et al. 2021, https://arxiv.org/abs/2012.07177).

    An object is pasted at its own place, unless its box would hide 30 % or more of the box of an object already there.
    Its pixels are those with their centre in any of its rings.

    Args:
        receiver: Image ``(S, S, 3)`` uint8 and labels.
        donor: The same of another sample of that size. Objects without a polygon are ignored.

    Returns:
        A new image and the labels of the receiver followed by those pasted.
    """
    image, instances = receiver[0].copy(), receiver[1]
    pixels, donated = donor
    taken = instances.boxes
    pasted = []
    for row, rings in enumerate(donated.polygons):
        box = donated.boxes[row]
        if not rings or (_hidden(taken, box) >= MAX_HIDDEN).any():
            continue
        left, top = np.maximum(np.floor(box[:2]).astype(int), 0)
        right, bottom = np.ceil(box[2:]).astype(int)
        part = slice(top, bottom), slice(left, right)
        height, width = image[part].shape[:2]
        corner = np.array((left, top), np.float32)
        # Filled as targets are: OpenCV would also paint the pixels that an outline touches.
        mask = rasterise([tuple(ring - corner for ring in rings)], max(height, width), 1)[0, :height, :width]
        np.copyto(image[part], pixels[part], where=mask[..., None])
        taken = np.concatenate([taken, box[None]])
        pasted.append(row)
    return image, concatenate([instances, select(donated, np.array(pasted, np.intp))])


def _hidden(boxes: Float32, cover: Float32) -> Float32:
    sides = np.minimum(boxes[:, 2:], cover[2:]) - np.maximum(boxes[:, :2], cover[:2])
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    share: Float32 = np.clip(sides, 0, None).prod(1) / area
    return share

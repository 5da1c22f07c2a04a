"""Detections in COCO's result format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from lucid_core.data.geometry import corners
from lucid_core.evaluation.found import Collected, Found

__all__ = ["Part", "coco_rows", "results_json"]

Part = Literal["bbox", "segmentation", "keypoints"]


def coco_rows(found: Found, image_id: int | str, category_ids: Sequence[int]) -> list[dict[str, Any]]:
    """List the detections of one image, ready for ``json.dump``.

    Args:
        found: In pixels of the original.
        image_id: Id of the image in the annotations.
        category_ids: Id of each class there, in label order.

    Returns:
        For each ``image_id``, ``category_id``, ``bbox`` as ``x, y, width, height``, and ``score``. By task besides:
        ``segmentation`` in compressed run lengths; ``segmentation`` as the polygon of an oriented box, and ``rbox`` as
        ``cx, cy, w, h, angle``; ``keypoints`` as ``x, y, 1`` of each point.
    """
    rows: list[dict[str, Any]] = [
        {
            "image_id": image_id,
            "category_id": category_ids[label],
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "score": score,
        }
        for (x1, y1, x2, y2), score, label in zip(
            found.boxes.tolist(), found.scores.tolist(), found.labels.tolist(), strict=True
        )
    ]
    # Of many detections, the last ones may have no mask.
    for row, mask in zip(rows, found.masks or (), strict=False):
        row["segmentation"] = {"size": mask["size"], "counts": mask["counts"].decode()}
    if found.rboxes is not None:
        quads = corners(found.rboxes).reshape(-1, 8).tolist()
        for row, rbox, quad in zip(rows, found.rboxes.tolist(), quads, strict=True):
            row |= {"segmentation": [quad], "rbox": rbox}
    if found.points is not None:
        for row, points in zip(rows, found.points.tolist(), strict=True):
            row["keypoints"] = [value for (x, y) in points for value in (x, y, 1)]
    return rows


def results_json(evaluation: Collected, part: Part | None = None) -> list[dict[str, Any]]:
    """List every detection of an evaluation in COCO's result format; see :func:`coco_rows`.

    Args:
        evaluation: After its updates (and :meth:`Collected.gather` in a distributed run).
        part: What the rows are to be about, instead of all that there is: those without it are left out, and of
            ``bbox``, ``segmentation`` and ``keypoints`` it is the only one. pycocotools takes the box for the mask of a
            row that has none, and areas from boxes wherever the first row has one.

    Returns:
        ``image_id`` and ``category_id`` as in the annotation file (the file name where the data set has no ids).
    """
    data = evaluation.data
    rows = [
        row
        for image, found in evaluation.detections()
        for row in coco_rows(found, data.records[image].image_id, data.category_ids)
    ]
    if part is None:
        return rows
    others = {*get_args(Part)} - {part}
    return [{key: value for key, value in row.items() if key not in others} for row in rows if part in row]

"""What was found in one picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucid_core.data.geometry import corners
from lucid_core.data.points import PointTable
from lucid_core.data.types import Rle
from lucid_core.prediction.inputs import Picture, pixels_of

__all__ = ["ImageDetections"]


@dataclass(frozen=True, slots=True, eq=False)
class ImageDetections:
    """The objects found in one picture, best first, in pixels of the upright original. Arrays are read-only.

    Attributes:
        boxes: ``(N, 4)`` float32 ``x1, y1, x2, y2``, within the picture.
        scores: ``(N,)`` float32 in ``[0, 1]``, falling.
        labels: ``(N,)`` int64, indices into ``class_names``.
        class_names: Every class of the detector, in label order.
        category_ids: Id of each class in result files, in label order: those of the data set it was trained on.
        width: Of the picture, pixels.
        height: Of the picture, pixels.
        index: Place of the picture among those that were given.
        path: Its file; ``None`` where it was given as pixels.
        masks: Of the task ``segment``: ``N`` masks in compressed run lengths, as pycocotools takes them. :meth:`mask`
            unpacks one.
        rboxes: Of the task ``obb``: ``(N, 5)`` float32 ``cx, cy, w, h, angle``, see :mod:`lucid_core.types`; ``boxes``
            enclose them, as far as they are within the picture.
        points: Of the task ``keypoints``: ``(N, K, 2)`` float32 ``x, y``, perhaps outside of the picture.
        point_table: Of the task ``keypoints``: names of the points, and which are joined in drawings.
    """

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    category_ids: tuple[int, ...]
    width: int
    height: int
    index: int = 0
    path: Path | None = None
    masks: tuple[Rle, ...] | None = None
    rboxes: NDArray[np.float32] | None = None
    points: NDArray[np.float32] | None = None
    point_table: PointTable | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def names(self) -> list[str]:
        """The name of the class of each object."""
        return [self.class_names[label] for label in self.labels.tolist()]

    @property
    def quads(self) -> NDArray[np.float32] | None:
        """The corners of the oriented boxes, ``(N, 4, 2)`` float32, along the long side first."""
        return None if self.rboxes is None else corners(self.rboxes)

    def mask(self, index: int) -> NDArray[np.bool_]:
        """Return the mask of one object, ``(height, width)`` bool.

        Args:
            index: Of the object.

        Raises:
            ValueError: The detector finds no masks.
        """
        from lucid_core.pictures.objects import unpacked

        if self.masks is None:
            raise ValueError("these objects have no masks; a detector of the task segment finds them")
        return next(unpacked([self.masks[index]]))

    def draw(self, image: Picture | None = None, scale: int = 1) -> NDArray[np.uint8]:
        """Draw the objects on their picture.

        Args:
            image: The picture; read from ``path`` if it is left out.
            scale: Enlarge the picture so many times first, for small ones on which captions would hide everything.

        Returns:
            ``(scale * height, scale * width, 3)`` uint8 RGB.

        Raises:
            ValueError: There is no picture to draw on, or it is of another size.
        """
        from lucid_core.pictures.objects import Objects, draw_objects, links_of, unpacked

        if image is None and self.path is None:
            raise ValueError("these objects were found in pixels, not in a file: give draw() the picture")
        pixels = pixels_of(self.path if image is None else image, "the picture to draw on")  # type: ignore[arg-type]
        if pixels.shape[:2] != (self.height, self.width):
            raise ValueError(
                f"the picture to draw on is {pixels.shape[1]} x {pixels.shape[0]} pixels, but the objects were found "
                f"in one of {self.width} x {self.height}"
            )
        if scale > 1:
            pixels = pixels.repeat(scale, axis=0).repeat(scale, axis=1)
        captions = [f"{name} {score:.2f}" for name, score in zip(self.names, self.scores.tolist(), strict=True)]
        labels, masks, links = self.labels.tolist(), unpacked(self.masks or ()), links_of(self.point_table)
        objects = Objects(self.boxes, labels, captions, masks, self.quads, self.points, links)
        return draw_objects(pixels, objects.scaled(scale))

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """List the objects in COCO's result format, ready for ``json.dump``.

        Args:
            image_id: Id of the picture in the annotations that they will be compared with.

        Returns:
            For each object ``image_id``, ``category_id``, ``bbox`` as ``x, y, width, height``, and ``score``; by task
            also ``segmentation`` (run lengths, or the polygon of an oriented box), ``rbox``, ``keypoints``. See
            :func:`lucid_core.evaluation.results.coco_rows`.
        """
        from lucid_core.evaluation.found import Found
        from lucid_core.evaluation.results import coco_rows

        rboxes, points = (None if part is None else part.astype(np.float64) for part in (self.rboxes, self.points))
        scores = self.scores.astype(np.float64)
        found = Found(self.boxes.astype(np.float64), scores, self.labels, self.masks, rboxes, points)
        return coco_rows(found, image_id, self.category_ids)

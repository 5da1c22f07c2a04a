"""What was found in one picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def names(self) -> list[str]:
        """The name of the class of each object."""
        return [self.class_names[label] for label in self.labels.tolist()]

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
        from lucid_core.pictures.draw import colour_of, draw_boxes

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
        return draw_boxes(pixels, self.boxes * scale, captions, [colour_of(label) for label in self.labels.tolist()])

    def to_coco(self, image_id: int | str) -> list[dict[str, Any]]:
        """List the objects in COCO's result format, ready for ``json.dump``.

        Args:
            image_id: Id of the picture in the annotations that they will be compared with.

        Returns:
            For each object ``image_id``, ``category_id``, ``bbox`` as ``x, y, width, height``, and ``score``.
        """
        rows = zip(self.boxes.astype(np.float64).tolist(), self.scores.tolist(), self.labels.tolist(), strict=True)
        return [
            {
                "image_id": image_id,
                "category_id": self.category_ids[label],
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "score": score,
            }
            for (x1, y1, x2, y2), score, label in rows
        ]

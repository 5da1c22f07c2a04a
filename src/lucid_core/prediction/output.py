"""What a prediction leaves on disk: drawn pictures, and their objects in COCO's result format."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from PIL import Image

from lucid_core.data.points import PointTable
from lucid_core.prediction.results import ImageDetections
from lucid_core.prediction.sources import PictureFile

__all__ = ["Output", "new_folder"]

#: Pictures whose long side is below this are drawn enlarged, or captions would hide what they name.
LEGIBLE = 400
#: A JPEG cannot be larger.
JPEG_SIDE = 65_500


class Output:
    """Collects results, and draws pictures as they come.

    Args:
        folder: Where to write; ``None`` writes nothing.
        draw: Draw the pictures.
        sources: Files that must not be written over.

    Attributes:
        results: Every object so far, in COCO's result format with the file's name added.
        skipped: File and reason of each picture that could not be read.
        objects: How many there are of each class.
    """

    def __init__(self, folder: Path | None, draw: bool = True, sources: Iterable[PictureFile] = ()) -> None:
        self.folder = folder
        self.draw = draw and folder is not None
        self.results: list[dict[str, Any]] = []
        self.skipped: list[tuple[str, str]] = []
        self.objects: Counter[str] = Counter()
        self._images: list[dict[str, Any]] = []
        self._taken: set[str] = set()
        self._sources = {os.path.realpath(file.path) for file in sources}

    def add(self, file: PictureFile, found: ImageDetections) -> None:
        """Add the objects of one picture, under the next image id."""
        name = str(file.path)
        image: dict[str, Any] = {"id": len(self._images) + 1, "file_name": name}
        image |= {"width": found.width, "height": found.height}
        if self.draw:
            image["picture"] = self._draw(file, found)
        self._images.append(image)
        self.results += [{**row, "file_name": name} for row in found.to_coco(image["id"])]
        self.objects.update(found.names)

    def skip(self, file: PictureFile, reason: str) -> None:
        """Note a picture that cannot be read."""
        self.skipped.append((str(file.path), reason))

    def write(self, categories: dict[int, str], info: dict[str, Any], points: PointTable | None = None) -> None:
        """Write ``predictions.json`` and ``images.json``.

        Args:
            categories: Names by id.
            info: How the prediction was made.
            points: The key points of every object; categories have their names, and what a drawing joins.
        """
        if self.folder is None:
            return
        # COCO counts key points from 1 here.
        joined = [] if points is None else [[start + 1, end + 1] for start, end in points.skeleton]
        named = {} if points is None or not points.names else {"keypoints": list(points.names), "skeleton": joined}
        table = {
            "info": info,
            "images": self._images,
            "categories": [{"id": number, "name": name, **named} for number, name in categories.items()],
            # pycocotools wants the key, and there is no ground truth.
            "annotations": [],
            "skipped": [{"file_name": name, "reason": reason} for name, reason in self.skipped],
        }
        (self.folder / "predictions.json").write_text(json.dumps(self.results))
        (self.folder / "images.json").write_text(json.dumps(table, indent=1))

    def _draw(self, file: PictureFile, found: ImageDetections) -> str:
        """Write the drawn picture, and return its place in the folder."""
        assert self.folder is not None
        drawn = found.draw(scale=-(-LEGIBLE // max(found.width, found.height)))
        suffix = ".jpg" if max(drawn.shape) <= JPEG_SIDE else ".png"
        place = self._free(Path("pictures") / file.place.with_suffix(suffix))
        target = self.folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        # Settings of JPEG; PNG has none of that name.
        Image.fromarray(drawn).save(target, quality=92, subsampling=0)
        return place.as_posix()

    def _free(self, place: Path) -> Path:
        """The place itself, or one beside it where that is another picture's, or the original that was read."""
        assert self.folder is not None
        for number in count(1):
            name = place if number == 1 else place.with_stem(f"{place.stem}-{number}")
            # Some file systems do not tell upper from lower case.
            key = str(name).casefold()
            if key not in self._taken and os.path.realpath(self.folder / name) not in self._sources:
                self._taken.add(key)
                return name
        raise AssertionError("there is always a next number")


def new_folder(root: Path) -> Path:
    """Make the next free ``predict_N`` below ``root``, so that commands that start together get different ones."""
    for number in count():
        folder = root / f"predict_{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise AssertionError("there is always a next number")

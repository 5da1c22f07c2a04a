"""Finds out how a data set is laid out on disk, and reads a split of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from lucid_core.data.coco import read_coco, read_coco_classes
from lucid_core.data.dota import DotaPlace, dota_places, read_dota, read_dota_classes
from lucid_core.data.records import DataSet
from lucid_core.data.scan import PictureScan
from lucid_core.data.types import DataError, NoSplit, Task
from lucid_core.data.yolo import read_yolo, read_yolo_classes

__all__ = ["Layout", "Split", "open_classes", "open_split"]

Split = Literal["train", "val", "test"]
Layout = Literal["auto", "coco", "yolo", "dota"]

_OBB = "check it with --task obb, train with --config task-obb"
_YAMLS = ("data.yaml", "data.yml", "dataset.yaml")


def open_split(
    root: str | Path,
    split: Split,
    layout: Layout = "auto",
    images: str | Path | None = None,
    annotations: str | Path | None = None,
    scan: PictureScan | None = None,
    task: Task = "detect",
) -> DataSet:
    """Read one split of the data set under ``root``.

    Known are, with ``2017`` or without, and with ``valid`` for ``val``:

    - COCO: ``annotations/instances_{split}.json``, the pictures in ``{split}/``, ``images/{split}/`` or ``images/``;
    - COCO as some tools export it: ``{split}/_annotations.coco.json`` beside its pictures;
    - YOLO: ``data.yaml``;
    - DOTA text, of oriented boxes: ``{split}/images/`` with ``{split}/labelTxt/``, ``images/{split}/`` with
      ``labelTxt/{split}/``, or ``{split}.txt``, a list of pictures, with ``labelTxt/`` or ``labels/``.

    Args:
        root: The folder, or a YOLO yaml file itself.
        split: Which part.
        layout: Which kind to look for; ``auto`` takes the one that is there.
        images: Folder of the pictures, absolute or under ``root``; goes with ``annotations``.
        annotations: COCO json of the split, absolute or under ``root``; goes with ``images``.
        scan: Looks at the pictures.
        task: What is learnt, and so what an object must have.

    Returns:
        The split.

    Raises:
        NoSplit: The data set has no such split; the message lists what was looked for.
        DataError: The split is there more than once, or cannot be used.
    """
    place = _find(Path(root), split, layout, images, annotations, task)
    if isinstance(place, DotaPlace):
        return read_dota(place, scan)
    return read_yolo(place, split, scan, task) if isinstance(place, Path) else read_coco(*place, scan, task)


def open_classes(
    root: str | Path,
    split: Split,
    layout: Layout = "auto",
    images: str | Path | None = None,
    annotations: str | Path | None = None,
    task: Task = "detect",
) -> DataSet:
    """Read the tables of classes and key points of a split, without looking at a picture.

    Takes and raises what :func:`open_split` does.

    Returns:
        The split without its images and problems.
    """
    place = _find(Path(root), split, layout, images, annotations, task)
    if isinstance(place, DotaPlace):
        return read_dota_classes(place)
    return read_yolo_classes(place, task) if isinstance(place, Path) else read_coco_classes(place[1], task)


def _find(
    root: Path, split: Split, layout: Layout, images: str | Path | None, annotations: str | Path | None, task: Task
) -> Path | tuple[Path, Path] | DotaPlace:
    """Find the yaml of a YOLO data set, the pictures folder and json of a COCO split, or the folders of DOTA text."""
    for given, known in ((split, Split), (layout, Layout), (task, Task)):
        if given not in get_args(known):
            raise DataError(f"split {split!r}, layout {layout!r}, task {task!r}: {given!r} is none of {_listed(known)}")
    if images is not None or annotations is not None:
        if images is None or annotations is None or layout not in ("auto", "coco"):
            raise DataError(f"{root}: give images and annotations of split {split!r} together, for a COCO data set")
        return root / images, root / annotations
    if root.is_file() and root.suffix.lower() in (".yaml", ".yml") and layout in ("auto", "yolo"):
        return root
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; name the root of a COCO or YOLO data set, or its data.yaml")

    looked = list(_coco_places(root, split)) if layout in ("auto", "coco") else []
    # One json is one candidate, with the first of its folders that exists: images/ is there wherever images/train is.
    there = {file: folder for folder, file in reversed(looked) if folder.is_dir() and file.is_file()}
    pairs = [(folder, file) for file, folder in there.items()]
    yamls = [root / name for name in _YAMLS if (root / name).is_file()] if layout in ("auto", "yolo") else []
    dota = [place for place in dota_places(root, split) if place.images.exists() and place.labels.is_dir()]
    beside = dota[:1] if task != "obb" and layout == "auto" else []
    dota = dota if layout == "dota" or (task == "obb" and layout == "auto") else []

    found = [f"COCO {file} with {folder}" for folder, file in pairs] + [f"YOLO {file}" for file in yamls]
    found += [f"DOTA {place.labels} with {place.images}" for place in dota]
    if len(found) > 1:
        raise DataError(
            f"{root}: split {split!r} is there more than once: {'; '.join(found)}. Say which: set layout to coco, yolo "
            f"or dota, give images and annotations, or name the yaml file itself as root"
        )
    if pairs:
        return pairs[0]
    if yamls:
        return yamls[0]
    if dota:
        if task != "obb":
            raise DataError(f"{root}: DOTA text holds oriented boxes: its task is obb, not {task}; {_OBB}")
        return dota[0]
    places = [f"{file.relative_to(root)} with {folder.relative_to(root)}/" for folder, file in looked]
    places += _YAMLS if layout in ("auto", "yolo") else ()
    if layout == "dota" or task == "obb":
        pairs_of = (
            (place.images.relative_to(root), place.labels.relative_to(root)) for place in dota_places(root, split)
        )
        places += [f"{images} with {labels}/" for images, labels in pairs_of]
    hint = "Give images and annotations, or the yaml file, if they are called otherwise"
    if beside:
        hint = f"{beside[0].labels} with {beside[0].images} is DOTA text, whose task is obb, not {task}; {_OBB}"
    # Annotations without their pictures are a broken split, not a missing one.
    missing = DataError if any(file.is_file() for _, file in looked) else NoSplit
    raise missing(f"{root}: no split {split!r} found; looked for {'; '.join(places)}. {hint}")


def _listed(known: object) -> str:
    return ", ".join(get_args(known))


def _coco_places(root: Path, split: Split) -> Iterator[tuple[Path, Path]]:
    """List every pair of pictures folder and json that this package knows, for each json the closest folder first."""
    for name in (f"{split}2017", split, *(("valid",) if split == "val" else ())):
        file = root / "annotations" / f"instances_{name}.json"
        yield root / name, file
        yield root / "images" / name, file
        yield root / "images", file
        yield root / name, root / name / "_annotations.coco.json"

"""Reader of YOLO folders: a ``data.yaml``, pictures, and one text file of labels per picture."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lucid_core.data.images import ImageReader
from lucid_core.data.records import DataSet, Fault, Listing, make_instances, make_truth
from lucid_core.data.types import DataError, Float32, NoSplit, Record

__all__ = ["SUFFIXES", "TOLERANCE", "read_yolo"]

#: Files of a folder that count as pictures, in any case of letters.
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".avif", ".jp2", ".ppm", ".pgm", ".mpo")
)

#: Coordinates are shares of the picture in [0, 1]; tools that round write a little more, and that much is clamped.
TOLERANCE = 1e-3

_ALIASES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


def read_yolo(data_yaml: Path, split: str) -> DataSet:
    """Read one split of a YOLO data set.

    The yaml has ``names`` (a list, or a mapping from 0 on) and an entry for each split: a folder, searched with all
    its sub-folders, or a ``.txt`` list of pictures, or several of these. Entries are relative to ``path`` if the yaml
    has one, and to the yaml itself; leading ``..`` that lead nowhere are dropped.

    The labels of ``images/x/a.jpg`` are in ``labels/x/a.txt`` (the last folder called ``images`` counts), or beside
    the picture where no folder is called so. A picture without label file is background, and so is one with an empty
    file. Rows are

    - ``class cx cy w h``, shares of the picture; or
    - ``class x1 y1 x2 y2 x3 y3 ...``, a polygon of three or more points, whose envelope is the box;
    - with ``kpt_shape`` in the yaml, ``class cx cy w h`` followed by key points, which are not read.

    Values up to :data:`TOLERANCE` outside [0, 1] are clamped, boxes are clamped to the picture. Other rows are left
    out and told; a picture none of whose rows is usable is left out whole, as is one that cannot be opened.

    Args:
        data_yaml: The yaml file.
        split: ``train``, ``val`` or ``test``.

    Returns:
        The split, folders in path order and lists in their own; whatever was left out is in its ``problems``.

    Raises:
        NoSplit: The yaml has no entry for the split.
        DataError: The yaml is not usable, an entry leads nowhere, or no picture is usable.
    """
    config = _load(data_yaml)
    names = _names(config, data_yaml)
    problems: list[str] = []
    listing = Listing()
    images = _images(data_yaml, config, split, listing, problems)
    ids = _ids(images)
    reader = ImageReader()
    shares: dict[Path, Path] = {}
    records: list[Record] = []
    for image, image_id in zip(images, ids, strict=True):
        label_file = _label_file(image, listing)
        if label_file is not None:
            if label_file in shares:
                problems.append(f"{label_file}: is the label file of {shares[label_file].name} and of {image.name}")
            shares[label_file] = image
        try:
            width, height = reader.probe(image)
            lines = [] if label_file is None else _lines(label_file)
        except DataError as error:
            problems.append(f"{error}; left out")
            continue
        boxes, labels, polygons = [], [], []
        for number, line in lines:
            try:
                label, box, polygon = _row(line.split(), len(names), width, height, "kpt_shape" in config)
            except Fault as fault:
                problems.append(f"{label_file}:{number}: {fault}; left out")
                continue
            boxes.append(box)
            labels.append(label)
            polygons.append(polygon)
        if lines and not boxes:
            problems.append(f"{image}: none of its label rows is usable; left out")
            continue
        areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in boxes]
        records.append(
            Record(
                image=image,
                image_id=image_id,
                width=width,
                height=height,
                instances=make_instances(boxes, labels, polygons),
                truth=make_truth(boxes, labels, areas, [False] * len(boxes)),
            )
        )
    if not records:
        raise DataError(f"{data_yaml}: no picture of split {split!r} is usable; {problems[0]}")
    if not shares:
        problems.append(
            f"{data_yaml}: none of the {len(images)} pictures of split {split!r} has a label file, so all are "
            f"background; looked for {_label_path(images[0])}"
        )
    return DataSet(tuple(records), names, tuple(range(len(names))), tuple(problems))


def _load(file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DataError(f"{file}: cannot be read as yaml ({' '.join(str(error).split())})") from None
    if not isinstance(content, dict) or "names" not in content:
        raise DataError(f"{file}: has no 'names', the list of classes that a YOLO data.yaml has")
    return content


def _names(config: dict[str, Any], file: Path) -> tuple[str, ...]:
    stated = config["names"]
    if isinstance(stated, dict):
        keys = {str(key): name for key, name in stated.items()}
        if set(keys) != {str(label) for label in range(len(stated))}:
            raise DataError(f"{file}: the keys of 'names' are {list(stated)}, not 0 to {len(stated) - 1}")
        stated = [keys[str(label)] for label in range(len(stated))]
    if not isinstance(stated, list) or not stated:
        raise DataError(f"{file}: 'names' is {stated!r}, not a list of class names")
    for name in stated:
        # YAML reads a bare yes, no, on or off as a truth value.
        if isinstance(name, bool) or not isinstance(name, str | int | float):
            raise DataError(f"{file}: class name {name!r} is not text; put it in quotes")
    if "nc" in config and config["nc"] != len(stated):
        raise DataError(f"{file}: nc is {config['nc']}, but 'names' has {len(stated)} entries; make them agree")
    return tuple(str(name) for name in stated)


def _images(file: Path, config: dict[str, Any], split: str, listing: Listing, problems: list[str]) -> list[Path]:
    """List the pictures of a split, each once."""
    entry = next((config[key] for key in _ALIASES.get(split, (split,)) if config.get(key)), None)
    if entry is None:
        raise NoSplit(f"{file}: has no entry {split!r}; its keys are {', '.join(map(str, config))}")
    images: dict[Path, None] = {}
    for part in entry if isinstance(entry, list) else [entry]:
        place = _resolve(file, config, str(part))
        found = sorted(_walk(place)) if place.is_dir() else list(_listed(place, listing, problems))
        for image in found:
            if image in images and place.is_file():
                problems.append(f"{place}: {image} is listed more than once; it is taken once")
            images[image] = None
    if not images:
        seen = f"; {problems[0]}" if problems else ""
        raise DataError(f"{file}: entry {split!r}, {entry}, holds no pictures ({', '.join(sorted(SUFFIXES))}){seen}")
    return list(images)


def _resolve(file: Path, config: dict[str, Any], part: str) -> Path:
    bases = [file.parent / str(config["path"])] if config.get("path") else []
    bases.append(file.parent)
    inner = part
    while inner.startswith(("../", "..\\")):
        inner = inner[3:]
    tried = list(dict.fromkeys(Path(os.path.normpath(base / name)) for name in (part, inner) for base in bases))
    for place in tried:
        if place.exists():
            return place
    raise DataError(f"{file}: entry {part!r} leads nowhere; tried {', '.join(map(str, tried))}")


def _walk(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            if os.path.splitext(name)[1].lower() in SUFFIXES:
                yield Path(parent, name)


def _listed(file: Path, listing: Listing, problems: list[str]) -> Iterator[Path]:
    for number, line in _lines(file):
        image = Path(os.path.normpath(file.parent / line))
        found = listing.find(image.parent, image.name)
        if found is None:
            problems.append(f"{file}:{number}: no such picture, {image}; left out")
        else:
            yield found


def _lines(file: Path) -> list[tuple[int, str]]:
    """Read the non-blank lines of a text file, numbered from 1."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file}: cannot be read as UTF-8 text ({error})") from None
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def _ids(images: list[Path]) -> list[str]:
    """Name each picture by its file name, with as many folders as it takes to tell all apart."""
    names = [image.name for image in images]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([image.parent for image in images])
    return [Path(os.path.relpath(image, common)).as_posix() for image in images]


def _label_path(image: Path) -> Path:
    parts = list(image.parent.parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts, image.stem + ".txt")


def _label_file(image: Path, listing: Listing) -> Path | None:
    path = _label_path(image)
    return listing.find(path.parent, path.name) or listing.find(path.parent, path.stem + ".TXT")


def _row(
    fields: list[str], classes: int, width: int, height: int, keypoints: bool
) -> tuple[int, tuple[float, float, float, float], tuple[Float32, ...]]:
    """Read one row: label, box in pixels, rings in pixels."""
    if len(fields) == 1 and "," in fields[0]:
        raise Fault(f"{fields[0]!r} is separated by commas; separate the numbers by blanks")
    count = len(fields)
    is_box = count == 5 or (keypoints and count > 5)
    if not is_box and (count < 7 or count % 2 == 0):
        raise Fault(f"has {count} fields; a box has 5, a polygon has 7 or more, an odd number")
    label = _label(fields[0], classes)
    values = np.array([_share(field) for field in (fields[1:5] if is_box else fields[1:])])
    if is_box:
        cx, cy, w, h = values.tolist()
        shares = (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2)
        rings: tuple[Float32, ...] = ()
    else:
        ring = values.reshape(-1, 2)
        shares = (*ring.min(axis=0).tolist(), *ring.max(axis=0).tolist())
        rings = ((ring * (width, height)).astype(np.float32),)
    x1, x2 = (min(max(shares[i], 0.0), 1.0) * width for i in (0, 2))
    y1, y2 = (min(max(shares[i], 0.0), 1.0) * height for i in (1, 3))
    if not (np.float32(x1) < np.float32(x2) and np.float32(y1) < np.float32(y2)):
        raise Fault("the box has no area")
    return label, (x1, y1, x2, y2), rings


def _label(field: str, classes: int) -> int:
    try:
        value = float(field)
    except ValueError:
        raise Fault(f"class {field!r} is not a number; write its index in 'names'") from None
    if not value.is_integer() or not 0 <= value < classes:
        raise Fault(f"class {field} is not a whole number from 0 to {classes - 1}")
    return int(value)


def _share(field: str) -> float:
    try:
        value = float(field)
    except ValueError:
        raise Fault(f"{field!r} is not a number") from None
    # Written so that NaN fails, too.
    if not -TOLERANCE <= value <= 1 + TOLERANCE:
        pixels = "; divide pixels by the size of the picture" if math.isfinite(value) and value > 2 else ""
        raise Fault(f"{field} is not a share of the picture in [0, 1]{pixels}")
    return min(max(value, 0.0), 1.0)

"""The files of a YOLO folder: what its ``data.yaml`` says, which pictures a split has, and where their labels are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lucid_core.data.problems import Kind, Problem
from lucid_core.data.records import Listing
from lucid_core.data.text_labels import find_labels, read_lines
from lucid_core.data.types import DataError, NoSplit

__all__ = ["SUFFIXES", "YoloFiles"]

#: Files of a folder that count as pictures, in any case of letters.
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".avif", ".jp2", ".ppm", ".pgm", ".mpo")
)

_ALIASES = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}


class YoloFiles:
    """Finds the files of a data set that a ``data.yaml`` describes.

    All lie in the folder of the yaml or in the one that it calls ``path``; whatever names a place elsewhere is
    refused. That is judged by the name: symbolic links in there are followed wherever they lead.

    Args:
        data_yaml: The yaml file.

    Raises:
        DataError: It is no ``data.yaml``.
    """

    def __init__(self, data_yaml: Path) -> None:
        self.file = data_yaml
        self.config = _load(data_yaml)
        self.names = _names(self.config, data_yaml)
        self.problems: list[Problem] = []
        self.roots = [data_yaml.parent]
        if self.config.get("path"):
            self.roots.insert(0, data_yaml.parent / str(self.config["path"]))
        self._listing = Listing()

    def images(self, split: str) -> list[Path]:
        """List the pictures of a split, each once; what is listed and not there is in ``problems``.

        Raises:
            NoSplit: The yaml has no entry for the split.
            DataError: An entry leads nowhere or out of the data set, or there is no picture.
        """
        aliases = _ALIASES.get(split, (split,))
        entry = next((self.config[key] for key in aliases if self.config.get(key)), None)
        if entry is None:
            raise NoSplit(f"{self.file}: has no entry {split!r}; its keys are {', '.join(map(str, self.config))}")
        images: dict[Path, None] = {}
        for part in entry if isinstance(entry, list) else [entry]:
            place = self._resolve(str(part))
            found = sorted(self._walk(place)) if place.is_dir() else list(self._listed(place))
            for image in found:
                if image in images and place.is_file():
                    seen = f"{place}: {image} is listed more than once; it is taken once"
                    self.problems.append(Problem(Kind.REPEATED_IMAGE, seen, place))
                images[image] = None
        if not images:
            seen = f"; {self.problems[0]}" if self.problems else ""
            kinds = ", ".join(sorted(SUFFIXES))
            raise DataError(f"{self.file}: entry {split!r}, {entry}, holds no pictures ({kinds}){seen}")
        return list(images)

    def label_path(self, image: Path) -> Path:
        """Say where the labels of a picture belong."""
        parts = list(image.parent.parts)
        if "images" in parts:
            parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
        path = Path(*parts, image.stem + ".txt")
        # The whole data set may lie in a folder called images.
        return path if self._inside(path) else image.parent / path.name

    def labels(self, image: Path) -> Path | None:
        """Find the label file of a picture."""
        path = self.label_path(image)
        return find_labels(self._listing, path.parent, path.stem)

    def _inside(self, path: Path) -> bool:
        whole = Path(os.path.abspath(path))
        return any(whole.is_relative_to(os.path.abspath(root)) for root in self.roots)

    def _resolve(self, part: str) -> Path:
        inner = part
        while inner.startswith(("../", "..\\")):
            inner = inner[3:]
        tried = dict.fromkeys(Path(os.path.normpath(root / name)) for name in (part, inner) for root in self.roots)
        there = [place for place in tried if place.exists()]
        for place in there:
            if self._inside(place):
                return place
        if there:
            raise DataError(
                f"{self.file}: entry {part!r} leads out of the data set, to {there[0]}, which is refused; name the "
                f"folder that holds it as 'path' in the yaml"
            )
        raise DataError(f"{self.file}: entry {part!r} leads nowhere; tried {', '.join(map(str, tried))}")

    def _walk(self, folder: Path) -> Iterator[Path]:
        for parent, folders, names in os.walk(folder, followlinks=True):
            # A link to a folder above would be followed for ever.
            real = Path(parent).resolve()
            folders[:] = [one for one in folders if not real.is_relative_to(Path(parent, one).resolve())]
            for name in names:
                if os.path.splitext(name)[1].lower() not in SUFFIXES:
                    continue
                image = Path(parent, name)
                if self._listing.find(parent, name) is None:
                    seen = f"{image}: leads to no file; left out"
                    self.problems.append(Problem(Kind.PICTURE_MISSING, seen, image))
                else:
                    yield image

    def _listed(self, file: Path) -> Iterator[Path]:
        for number, line in read_lines(file):
            image, found = Path(), None
            # Tools on Windows write backslashes.
            for spelling in dict.fromkeys((line.replace("\\", "/"), line)):
                image = Path(os.path.normpath(file.parent / spelling))
                if found is None and self._inside(image):
                    found = self._listing.find(image.parent, image.name)
            if found is not None:
                yield found
                continue
            inside = self._inside(image)
            kind = Kind.PICTURE_MISSING if inside else Kind.PICTURE_OUTSIDE
            seen = "no such picture" if inside else "a picture out of the data set, which is refused"
            self.problems.append(Problem(kind, f"{file}:{number}: {seen}, {image}; left out", file, f"line {number}"))


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

"""Which picture files a command line means."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from glob import glob, has_magic
from pathlib import Path
from typing import NamedTuple

from lucid_core.data.yolo_files import SUFFIXES

__all__ = ["PictureFile", "SourceError", "find_pictures"]


class SourceError(ValueError):
    """A source that does not exist, or in which there is nothing to predict on."""


class PictureFile(NamedTuple):
    """A file to predict on.

    Attributes:
        path: As it was reached from the command line.
        place: Where its picture belongs under the output folder: below a folder that was named as in that folder, else
            its name alone. Several files may have the same.
    """

    path: Path
    place: Path


def find_pictures(sources: Sequence[str], leave_out: Path | None = None) -> list[PictureFile]:
    """Find the files of every source, in the order given, each file once.

    A file is taken whatever it is called. A folder stands for the files with a picture's suffix in it and in its
    folders, by name, without those whose names begin with a dot and without following links to folders. A pattern
    (``*``, ``?``, ``[...]``, ``**`` for any depth) stands for what it matches, as if the shell had written it out.

    Args:
        sources: Files, folders and patterns; what exists under its very name is no pattern.
        leave_out: A folder below which nothing is found: the one that results are written to.

    Raises:
        SourceError: A source does not exist, matches nothing, or is a folder without pictures.
    """
    ours = None if leave_out is None else os.path.realpath(leave_out)
    found: dict[str, PictureFile] = {}
    for source in sources:
        for file in _files(source, ours):
            found.setdefault(os.path.abspath(file.path), file)
    return list(found.values())


def _files(source: str, ours: str | None) -> Iterator[PictureFile]:
    path = Path(source)
    if path.is_dir():
        files = list(_below(path, ours))
        if not files:
            raise SourceError(
                f"{source}: no pictures in this folder or its folders; looked for {', '.join(sorted(SUFFIXES))}"
            )
        yield from files
    elif path.exists():
        yield PictureFile(path, Path(path.name))
    elif has_magic(source):
        files = list(_matching(source, ours))
        if not files:
            raise SourceError(f"{source}: no picture matches this pattern; it is relative to {Path.cwd()}")
        yield from files
    else:
        raise SourceError(f"{source}: no such file, folder or pattern{_nearest(path)}")


def _matching(pattern: str, ours: str | None) -> Iterator[PictureFile]:
    for match in sorted(glob(pattern, recursive=True)):
        if ours is not None and Path(os.path.realpath(match)).is_relative_to(ours):
            continue
        # Of folders that a pattern matches, some may well be without pictures.
        if os.path.isdir(match):
            yield from _below(Path(match), ours)
        else:
            yield PictureFile(Path(match), Path(os.path.basename(match)))


def _below(folder: Path, ours: str | None) -> Iterator[PictureFile]:
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and (ours is None or os.path.realpath(os.path.join(place, name)) != ours)
        )
        for name in sorted(names):
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES:
                path = Path(place, name)
                yield PictureFile(path, path.relative_to(folder))


def _nearest(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except OSError:
        return ""
    nearest = get_close_matches(path.name, names, n=1)
    return f"; did you mean {path.parent / nearest[0]}?" if nearest else ""

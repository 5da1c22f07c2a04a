"""Looking at every picture of a split."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lucid_core.data.images import ImageReader
from lucid_core.data.scan import SLICE, PictureScan, show_progress
from lucid_core.data.types import DataError, UnreadableNow

from .test_images import files_that_are_no_pictures


@pytest.mark.parametrize("workers", [1, 3])
def test_each_file_gets_its_size_or_its_fault(tmp_path: Path, workers: int) -> None:
    bad = files_that_are_no_pictures(tmp_path)
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    for i in range(20):
        Image.new("RGB", (10 + i, 9)).save(tmp_path / f"{i}.png")
    files = sorted(tmp_path.iterdir())
    seen = PictureScan(workers)([*files, *files, tmp_path / "gone.png"])
    faults = {path.name for path, found in seen.items() if isinstance(found, DataError)}
    assert faults == {*bad, "gone.png"} and len(seen) == len(files) + 1
    assert [seen[tmp_path / f"{i}.png"] for i in range(20)] == [(10 + i, 9) for i in range(20)]
    assert PictureScan(workers)([]) == {}


def test_a_changed_file_of_the_same_length_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("RGB", (64, 48)).save(path)
    whole, scan = path.read_bytes(), PictureScan()
    assert scan([path])[path] == (64, 48)
    path.write_bytes(bytes(len(whole)))
    assert isinstance(scan([path])[path], DataError)
    path.write_bytes(whole)
    assert scan([path])[path] == (64, 48)


def test_progress_is_shown_picture_by_picture(tmp_path: Path) -> None:
    for i in range(5):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{i}.png")
    steps: list[Any] = []

    def progress(seen: Iterable[Any], count: int) -> Iterable[Any]:
        for one in seen:
            steps.append(count)
            yield one

    assert len(PictureScan(2, progress=progress)(sorted(tmp_path.iterdir()))) == 5
    assert steps == [5] * 5
    assert list(show_progress([(1, 1)], 1)) == [(1, 1)]


def test_an_interrupt_does_not_wait_for_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []

    def look(self: ImageReader, path: Path, decode: bool = False) -> tuple[int, int]:
        looked.append(path)
        time.sleep(0.001)
        return 1, 1

    def interrupted(seen: Iterable[Any], count: int) -> Iterable[Any]:
        yield next(iter(seen))
        raise KeyboardInterrupt

    monkeypatch.setattr(ImageReader, "inspect", look)
    with pytest.raises(KeyboardInterrupt):
        PictureScan(1, progress=interrupted)([tmp_path / str(i) for i in range(3000)])
    assert len(looked) < 3000


def test_a_file_that_cannot_be_read_now_ends_the_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{i}.png")
    opened = Image.open

    def few_files(path: Path, **options: Any) -> Any:
        if path.name == "1.png":
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, **options)

    monkeypatch.setattr(Image, "open", few_files)
    with pytest.raises(UnreadableNow, match=r"1\.png: could not be read now .*Too many open files"):
        PictureScan(2)(sorted(tmp_path.iterdir()))


def test_only_a_slice_of_the_files_waits_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, waiting, most = ThreadPoolExecutor.submit, 0, 0

    def counted(self: ThreadPoolExecutor, *args: Any) -> Any:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        return submit(self, *args)

    def progress(seen: Iterable[Any], count: int) -> Iterable[Any]:
        nonlocal waiting
        for one in seen:
            waiting -= 1
            yield one

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
    monkeypatch.setattr(ImageReader, "inspect", lambda self, path, decode: (1, 1))
    files = [tmp_path / str(i) for i in range(3 * SLICE + 1)]
    assert list(PictureScan(2, progress=progress)(files)) == files
    assert most == SLICE

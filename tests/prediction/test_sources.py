"""Which files a command line means; the files hold nothing, since nothing is read yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lucid_core.prediction.sources import SourceError, find_pictures


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str) -> None:
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()


def paths(*sources: str) -> list[str]:
    return [file.path.as_posix() for file in find_pictures(sources)]


def test_a_folder_is_searched_to_its_depth_in_order() -> None:
    touch("in/b.png", "in/a.JPG", "in/deep/er/c.webp", "in/notes.txt", "in/a.txt", "in/.hidden.png", "in/.git/d.png")
    assert paths("in") == ["in/a.JPG", "in/b.png", "in/deep/er/c.webp"]
    assert [file.place.as_posix() for file in find_pictures(["in"])] == ["a.JPG", "b.png", "deep/er/c.webp"]


def test_links_to_folders_are_not_followed() -> None:
    touch("in/a.png")
    os.symlink("..", "in/up")
    assert paths("in") == ["in/a.png"]


def test_a_file_is_taken_whatever_it_is_called() -> None:
    touch("scan", "photo.data", ".hidden.png")
    assert paths("scan", "photo.data", ".hidden.png") == ["scan", "photo.data", ".hidden.png"]


def test_a_pattern_stands_for_what_it_matches() -> None:
    touch("in/b.png", "in/a.png", "in/c.jpg", "in/deep/d.png", "in/deep/notes.txt", "bare/readme.txt")
    assert paths("in/*.png") == ["in/a.png", "in/b.png"]
    assert paths("in/**/*.png") == ["in/a.png", "in/b.png", "in/deep/d.png"]
    assert paths("in/[bc].*") == ["in/b.png", "in/c.jpg"]
    assert paths("*") == ["in/a.png", "in/b.png", "in/c.jpg", "in/deep/d.png"]


def test_a_file_with_the_marks_of_a_pattern_is_that_file() -> None:
    touch("photo [1].png", "photo 1.png")
    assert paths("photo [1].png") == ["photo [1].png"]


def test_each_file_is_taken_once() -> None:
    touch("in/a.png", "in/b.png")
    assert paths("in/b.png", "in", "./in/a.png", "in/*.png") == ["in/b.png", "in/a.png"]


@pytest.mark.parametrize("name", ["изображения/缺陷 0001é.JPG", "a b/ü.png", "🦆.png"])
def test_names_in_any_script(name: str) -> None:
    touch(f"in/{name}")
    assert paths("in") == [f"in/{name}"]


def test_the_output_folder_is_no_source() -> None:
    touch("in/a.png", "in/found/pictures/a.jpg")
    assert [file.path.as_posix() for file in find_pictures(["in"], Path("in/found"))] == ["in/a.png"]
    matched = find_pictures(["in/**/*.*"], Path("in/found"))
    assert [file.path.as_posix() for file in matched] == ["in/a.png"], "neither by a pattern"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("in/nothing.png", "in/nothing.png: no such file, folder or pattern"),
        ("in/phoot.png", "did you mean in/photo.png?"),
        ("in/*.gif", r"in/\*.gif: no picture matches this pattern"),
        ("emp*", r"emp\*: no picture matches this pattern"),
        ("empty", "empty: no pictures in this folder or its folders; looked for .avif, .bmp"),
    ],
)
def test_what_is_not_there_is_told(source: str, told: str) -> None:
    touch("in/photo.png", "empty/notes.txt")
    with pytest.raises(SourceError, match=told):
        find_pictures(["in", source])


def test_sources_are_found_without_torch() -> None:
    code = "import sys; import lucid_core.prediction.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2] / "src").returncode == 0

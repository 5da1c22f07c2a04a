"""Command lines with lucid-accel installed beside its sources, on stand-ins for the detector and its data."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lucid_core.cli
from lucid_accel import AccelerationWarning
from lucid_accel.testing import isolated
from lucid_core.cli import LucidCLI
from tests.cli.standin import Data, Model

REPOSITORY = Path(__file__).parents[3]
Run = Callable[..., LucidCLI]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Commands run in this process, and their Trainers change settings of torch."""
    with isolated():
        yield


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pip installs of lucid-accel, but for the code: that is the tree's."""
    source, target = tmp_path_factory.mktemp("source") / "lucid_accel", tmp_path_factory.mktemp("site")
    litter = shutil.ignore_patterns("*.egg-info", "__pycache__", "build")
    shutil.copytree(REPOSITORY / "src/lucid_accel", source, ignore=litter)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-compile", "--target"]
    done = subprocess.run([*command, str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(target / "lucid_accel")
    return target


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Lucid-accel installed, and an empty folder to work in."""
    monkeypatch.delenv("LUCID_DISABLE_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lucid(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command of ``lucid``, as typed, on the stand-ins; ``main`` takes them too."""
    real = lucid_core.cli.run
    monkeypatch.setattr(lucid_core.cli, "run", lambda argv, model, data, cli=None: real(argv, Model, Data, cli))

    def command(line: str) -> LucidCLI:
        return real(line.split(), Model, Data)

    return command


@pytest.fixture
def stranger(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a stranger's distribution of one module and its entry points, by group (``__`` is its dot)."""
    names = []

    def install(name: str, code: str, **groups: str) -> None:
        site = installed / f"site-{name}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        points = [f"[{group}]\n{name} = {target}\n" for group, target in groups.items()]
        (info / "entry_points.txt").write_text("\n".join(points).replace("__", "."))
        monkeypatch.syspath_prepend(site)
        names.append(name)

    yield install
    for name in names:
        sys.modules.pop(name, None)


@contextmanager
def warned(category: type[Warning] = AccelerationWarning) -> Iterator[list[str]]:
    """Collect the warnings of one category."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += [str(item.message) for item in caught if issubclass(item.category, category)]


def callbacks(config: dict[str, Any]) -> list[str]:
    """The names of the callbacks of a configuration."""
    return [item["class_path"].rpartition(".")[2] for item in config["trainer"]["callbacks"] or []]

"""Two distributions from one checkout, each with its own files only, and a stranger's plugin beside them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import lucid_core

from .floor import floors

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that builds may litter."""
    if not (REPOSITORY / "setup.py").is_file():
        pytest.skip("not in a checkout")
    folder = tmp_path_factory.mktemp("with a space") / "checkout"
    folder.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, folder)
    litter = shutil.ignore_patterns("*.egg-info", "__pycache__", "build")
    shutil.copytree(REPOSITORY / "src", folder / "src", ignore=litter)
    return folder


def build(folder: Path, out: Path) -> zipfile.ZipFile:
    """Build as a release is built: an sdist, and the wheel from it."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = out.glob("*.whl")
    return zipfile.ZipFile(wheel)


def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith("dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def own_files(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def core(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(checkout, tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def accel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(checkout / "src" / "lucid_accel", tmp_path_factory.mktemp("accel"))


@pytest.mark.slow
def test_the_core_wheel_holds_core_alone(core: zipfile.ZipFile) -> None:
    wheel = core
    files = own_files(wheel)
    assert {name.partition("/")[0] for name in files} == {"lucid_core"}
    expected = {str(path.relative_to(REPOSITORY / "src")) for path in (REPOSITORY / "src/lucid_core").rglob("*.py")}
    assert {name for name in files if name.endswith(".py")} == expected
    assert {f"lucid_core/configs/{name}.yaml" for name in ("demo", "detect", "overfit")} <= files
    assert "lucid_core/py.typed" in files

    data = metadata(wheel)
    requirements = data.get_all("Requires-Dist", [])
    assert data["Version"] == lucid_core.__version__
    assert not [text for text in requirements if "@" in text]
    assert f'lucid-accel=={lucid_core.__version__}; extra == "lucid-accel"' in requirements
    assert set(data.get_all("Provides-Extra", [])) == {"lucid-accel", "test", "dev"}
    assert "TERMS AND CONDITIONS" in wheel.read(next(n for n in wheel.namelist() if n.endswith("LICENSE"))).decode()


@pytest.mark.slow
def test_the_accel_wheel_holds_accel_alone(accel: zipfile.ZipFile) -> None:
    package = REPOSITORY / "src/lucid_accel"
    kept = [*package.rglob("*.py"), *package.glob("configs/*.yaml"), package / "py.typed"]
    built = [path for path in kept if "build" not in path.relative_to(package).parts]
    assert own_files(accel) == {f"lucid_accel/{path.relative_to(package)}" for path in built}
    data = metadata(accel)
    assert data.get_all("Requires-Dist", []) == [
        "lucid-core<0.2,>=0.1",
        'triton>=3.5; sys_platform == "linux" and extra == "triton"',
    ]
    assert data.get_all("Provides-Extra", []) == ["triton"]
    assert "TERMS AND CONDITIONS" in accel.read(next(n for n in accel.namelist() if n.endswith("LICENSE"))).decode()


@pytest.mark.slow
def test_both_wheels_installed_elsewhere_work_together_and_core_alone(
    core: zipfile.ZipFile, accel: zipfile.ZipFile, tmp_path: Path
) -> None:
    for wheels in ([core], [core, accel]):
        site = tmp_path / f"site of {len(wheels)}"
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site)]
        done = subprocess.run([*command, *(str(wheel.filename) for wheel in wheels)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    alone, both = tmp_path / "site of 1", tmp_path / "site of 2"
    assert not (alone / "lucid_accel").exists()

    def call(site: Path, script: str, *argv: str) -> str:
        variables = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
        done = subprocess.run([site / "bin" / script, *argv], capture_output=True, text=True, env=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "accel  lucid-accel" in call(both, "lucid", "plugins")
    listed = call(both, "lucid-accel", "list")
    assert re.findall(r"^(\w+) +lucid-accel 0", listed, re.MULTILINE) == [
        "AutoAccelerate",
        "GradientNormReplay",
        "LossReplay",
        "NetworkReplay",
        "OrthogonalizationReplay",
        "StepReplay",
        "UpdateReplay",
    ]


def test_every_package_of_accel_is_listed_for_its_wheel() -> None:
    package = REPOSITORY / "src/lucid_accel"
    listed = tomllib.loads((package / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [path.parent.relative_to(package.parent) for path in package.rglob("__init__.py")]
    assert sorted(listed) == sorted(".".join(path.parts) for path in found if "build" not in path.parts)


def test_each_version_stands_in_one_place_and_the_pin_equals_both() -> None:
    accel = re.search(r'__version__ = "(.+)"', (REPOSITORY / "src/lucid_accel/__init__.py").read_text())
    pin = re.search(r'"lucid-accel==(.+?)"', (REPOSITORY / "setup.py").read_text())
    assert accel is not None
    assert pin is not None
    assert accel[1] == pin[1] == lucid_core.__version__
    for pyproject in (REPOSITORY / "pyproject.toml", REPOSITORY / "src/lucid_accel/pyproject.toml"):
        assert "version" in tomllib.loads(pyproject.read_text())["project"]["dynamic"]


def test_every_dependency_has_a_floor_that_can_be_installed_alone() -> None:
    for floor in floors(REPOSITORY / "pyproject.toml"):
        assert re.fullmatch(r"[a-z-]+(\[signatures\])?==[\d.]+", floor), floor


PLUGIN = {
    "pyproject.toml": """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"
[project]
name = "lucid-warp"
version = "0.0.1"
dependencies = ["lucid-core>=0.1,<0.2"]
[project.entry-points."lucid_core.plugins"]
warp = "lucid_warp"
[tool.setuptools]
py-modules = ["lucid_warp", "lucid_warp_steps"]
""",
    "lucid_warp.py": """
from lucid_core.plugins import hookimpl

@hookimpl
def lucid_components():
    from lucid_warp_steps import WarpSteps
    return [WarpSteps]
""",
    "lucid_warp_steps.py": """
from lightning.pytorch import Callback

class WarpSteps(Callback):
    '''Warps.

    Args:
        k: How far.
    '''

    def __init__(self, k: int = 3) -> None:
        self.k = k
""",
}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stranger's plugin, installed by pip into a folder of its own."""
    source, target = tmp_path_factory.mktemp("warp"), tmp_path_factory.mktemp("site")
    for name, text in PLUGIN.items():
        (source / name).write_text(text)
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*command, str(target), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def lucid(plugin: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(REPOSITORY / "src"), str(plugin)])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([sys.executable, "-m", "lucid_core", *argv], capture_output=True, text=True, env=variables)


def test_an_installed_plugin_is_listed(plugin: Path) -> None:
    assert "warp  lucid-warp 0.0.1  (lucid_warp)  installed\n" in lucid(plugin, "plugins").stdout
    assert "(lucid_warp)  disabled\n" in lucid(plugin, "plugins", LUCID_DISABLE_PLUGINS="warp").stdout


@pytest.mark.slow
def test_its_class_resolves_by_bare_name_and_can_be_kept_out(plugin: Path) -> None:
    argv = ("fit", "--trainer.callbacks+=WarpSteps", "--trainer.callbacks.k=5", "--print_config")
    done = lucid(plugin, *argv)
    assert re.search(r"class_path: lucid_warp_steps\.WarpSteps\s+init_args:\s+k: 5", done.stdout), done.stderr
    done = lucid(plugin, *argv, LUCID_DISABLE_PLUGINS="*")
    assert done.returncode == 2
    assert done.stderr.startswith("lucid: error: no callback is called 'WarpSteps'")

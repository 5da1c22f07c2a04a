"""A stranger's package, installed by pip, and the tutorial that goes through it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pluggy
import pytest
import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from lucid_accel import NetworkReplay, PartReplay, adapters
from lucid_accel.hookspecs import PROJECT, Specs, hookimpl
from lucid_accel.site import Site
from lucid_accel.testing import cpu_engine
from lucid_core.plugins import PluginWarning
from lucid_core.seams import seam

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "tests" / "plugins" / "lucid-example"
TUTORIAL = REPOSITORY / "docs" / "writing-an-acceleration.md"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with core, accel and the package in it; what they depend on is borrowed from this one."""
    folder = tmp_path_factory.mktemp("fresh")
    litter = shutil.ignore_patterns("__pycache__", ".*_cache", "*.egg-info", "build")
    checkout, package = folder / "checkout", folder / "lucid-example"
    shutil.copytree(REPOSITORY / "src", checkout / "src", ignore=litter)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, checkout)
    shutil.copytree(PACKAGE, package, ignore=litter)
    venv.create(folder / "env", symlinks=True)
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(folder / "env"),
        "install",
        "--no-deps",
        "--no-build-isolation",
    ]
    sources = [str(checkout), str(checkout / "src" / "lucid_accel"), str(package)]
    done = subprocess.run([*command, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return packages


def python(site: Path, *argv: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("LUCID_DISABLE_PLUGINS", "PYTHONPATH"):
        variables.pop(name, None)
    executable = site.parents[2] / "bin" / "python"
    return subprocess.run(
        [executable, *argv], capture_output=True, text=True, env=variables, cwd=cwd or site.parents[2]
    )


def test_the_package_is_listed(site: Path) -> None:
    listed = python(site, "-m", "lucid_core", "plugins").stdout
    assert "example  lucid-example 0.1.0  (lucid_example.components)  installed\n" in listed


def test_only_the_package_itself_is_installed(site: Path) -> None:
    installed = {str(path.relative_to(site)) for path in site.rglob("lucid_example/**/*.py")}
    assert installed == {str(path.relative_to(PACKAGE)) for path in (PACKAGE / "lucid_example").glob("*.py")}


def test_everything_is_imported_from_the_fresh_environment(site: Path) -> None:
    names = ("lucid_core", "lucid_accel", "lucid_example")
    done = python(
        site, "-c", f"import {', '.join(names)}; print(*({', '.join(f'{n}.__file__' for n in names)}), sep=chr(10))"
    )
    assert [Path(line).parent for line in done.stdout.split()] == [site / name for name in names], done.stderr


@pytest.mark.slow
def test_its_own_tests_pass_where_it_is_installed(site: Path, tmp_path: Path) -> None:
    for path in (PACKAGE / "tests").glob("*.py"):
        shutil.copy(path, tmp_path)
    done = python(site, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path), cwd=tmp_path)
    assert re.search(r"^1\d passed", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.slow
def test_its_classes_go_by_their_bare_names_in_lucid_fit(site: Path, tmp_path: Path) -> None:
    words = """--trainer.callbacks+=ScheduledCollection --trainer.callbacks.every=7 --trainer.callbacks+=CriterionReplay
        --trainer.callbacks.strict=true --trainer.plugins+=PerTensorClip --print_config"""
    done = python(site, "-m", "lucid_core", "fit", *words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    trainer = yaml.safe_load(done.stdout)["trainer"]
    collection, criterion = trainer["callbacks"]
    assert collection["class_path"] == "lucid_example.collection.ScheduledCollection"
    assert collection["init_args"] == {"every": 7, "strict": False}
    assert criterion["class_path"] == "lucid_example.criterion.CriterionReplay"
    assert criterion["init_args"]["strict"] is True
    assert [plugin["class_path"] for plugin in trainer["plugins"]] == ["lucid_example.precision.PerTensorClip"]
    assert "warning" not in done.stderr


FIT = """
import sys

import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import DataLoader, TensorDataset

from lucid_accel.testing import cpu_engine
from lucid_core.cli import run
from lucid_example.classifier import Classifier


class Noise(LightningDataModule):
    class_names = ["cat", "dog"]

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.rand(32, 3, 8, 8), torch.arange(32) % 2), batch_size=4)


with cpu_engine():
    trainer = run(sys.argv[1:], Classifier, Noise).trainer
(optimizer,) = trainer.optimizers
print(type(optimizer).__name__, optimizer.param_groups[0]["momentum"], type(trainer.precision_plugin).__name__)
for callback in trainer.callbacks[:3]:
    print(callback.name, callback.state, callback.tally.replayed)
"""


@pytest.mark.slow
def test_one_command_line_trains_the_classifier_with_all_of_it(site: Path, tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(FIT)
    (tmp_path / "empty.yaml").write_text("")
    words = """fit --config empty.yaml --trainer.callbacks+=ScheduledCollection --trainer.callbacks+=CriterionReplay
        --trainer.callbacks+=lucid_accel.NetworkReplay --trainer.plugins+=PerTensorClip
        --model.optimizer=CentredSGD --model.optimizer.momentum=0.9 --trainer.accelerator=cpu --trainer.max_epochs=2
        --trainer.enable_checkpointing=false --trainer.enable_progress_bar=false"""
    done = python(site, "fit.py", *words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [
        "CentredSGD 0.9 PerTensorClip",
        "ScheduledCollection armed 16",
        "CriterionReplay recorded 12",
        "NetworkReplay recorded 12",
    ]


# Adapters


class Stranger(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(2, 2), nn.Linear(2, 2)


class Adapter:
    """A plugin that answers what it is given."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.answer = answer

    @hookimpl
    def lucid_seams(self, module: Any) -> Any:
        return self.answer(module)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Pretend that these adapters are installed, and no others."""
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Specs)
    monkeypatch.setattr(adapters, "_manager", lambda: manager)

    def add(**answers: Callable[[Any], Any]) -> None:
        for name, answer in answers.items():
            manager.register(Adapter(answer), name)

    yield add


def test_an_adapter_says_where_a_seam_is(install: Callable[..., None]) -> None:
    install(a=lambda module: None, b=lambda module: {"step.network": module.two})
    module = Stranger()
    assert adapters.find(module, "step.network") is module.two
    assert adapters.find(module, "step.objective") is None


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda module: {"step.network": module.three}, "AttributeError: .* 'three'"),
        (lambda module: {"step.netwrk": module.one}, "no seam is called 'step.netwrk'; seams are .*step.network"),
        (lambda module: {"step.network": nn.Linear(1, 1)}, "step.network must be a submodule of Stranger, got Linear"),
        (lambda module: {"step.network": module}, "step.network must be a submodule of Stranger, got Stranger"),
        (lambda module: [module.one], "must return a dictionary or None, got list"),
    ],
)
def test_a_broken_adapter_is_named_once_and_the_others_work(
    install: Callable[..., None], answer: Callable[[Any], Any], why: str
) -> None:
    install(broken=answer, sound=lambda module: {"step.network": module.two})
    module = Stranger()
    with pytest.warns(PluginWarning, match=f"lucid plugin broken skipped: its hook lucid_seams failed: .*{why}"):
        assert adapters.find(module, "step.network") is module.two
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert adapters.find(module, "step.network") is module.two


def test_adapters_that_contradict_each_other_are_named(install: Callable[..., None]) -> None:
    install(a=lambda module: {"step.network": module.one}, b=lambda module: {"step.network": module.two})
    with pytest.raises(ValueError, match=r"the plugins a, b offer different submodules of Stranger"):
        adapters.find(Stranger(), "step.network")


class Marked(nn.Module):
    @seam("step.network")
    def forward(self, x: Any) -> Any:
        return x


class Overriding(Marked):
    def forward(self, x: Any) -> Any:
        return x + 1


def test_a_seam_that_a_subclass_overrides_is_none(install: Callable[..., None]) -> None:
    module = Stranger()
    module.two = Overriding()  # type: ignore[assignment]
    assert adapters.find(module, "step.network") is None
    module.one = Marked()  # type: ignore[assignment]
    assert adapters.find(module, "step.network") is module.one


def test_of_several_marked_parts_none_is_taken_in_silence(install: Callable[..., None]) -> None:
    module = Stranger()
    module.one, module.two = Marked(), Marked()  # type: ignore[assignment]
    site = Site(Trainer(accelerator="cpu", logger=False, enable_checkpointing=False), module, started=False)
    needs = "it needs one part that is the seam step.network, but Stranger has 2: one, two. To get a yes: "
    with cpu_engine():
        assert str(NetworkReplay().eligible(site)) == f"{needs}name a submodule with module=; Stranger has one, two"
        assert NetworkReplay(module="two").eligible(site).ok
        assert str(AnyNetwork().eligible(site)) == f"{needs}offer it from a plugin (hook lucid_seams)"
        install(choice=lambda module: {"step.network": module.two})
        assert AnyNetwork().eligible(site).ok and AnyNetwork().part(site) is module.two


class AnyNetwork(PartReplay):
    claims = ("step.network",)


def test_a_forward_that_somebody_put_over_ours_stays_when_ours_goes() -> None:
    module, calls = Stranger(), []
    undo = adapters.take(module, "step.network", "A", module.one, lambda native, x: calls.append("A") or native(x))
    ours = module.one.forward
    theirs = module.one.forward = lambda x: calls.append("theirs") or ours(x)  # type: ignore[func-returns-value, method-assign]
    module.one(torch.ones(2))
    undo()
    assert module.one.forward is theirs
    module.one(torch.ones(2))
    assert calls == ["theirs", "A", "theirs"]
    adapters.take(module, "step.network", "B", module.two, lambda native, x: native(x))()


# The tutorial


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.fixture
def copied() -> dict[str, str]:
    """What comes of copying the blocks of the tutorial, by file."""
    files: dict[str, str] = {}
    block = re.compile(r"^(?:\*\*`(\S+)`\*\*\n\n)?```(?:python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    for name, code in block.findall(TUTORIAL.read_text()):
        files[name] = files.get(name, "") + code
    return files


def test_blocks_of_the_tutorial_make_whole_files_of_the_package(copied: dict[str, str]) -> None:
    assert [name for name, text in copied.items() if lines(text) != lines((PACKAGE / name).read_text())] == []


def test_the_tutorial_shows_every_file_of_the_package(copied: dict[str, str]) -> None:
    modules = {f"lucid_example/{path.name}" for path in PACKAGE.glob("lucid_example/[!_]*.py")}
    assert set(copied) == modules | {"pyproject.toml", "tests/test_accelerations.py"}

"""Where lines belong: who may import whom, how long a module is, what must be documented."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
CORE = SOURCE / "lucid_core"
MODULES = sorted(CORE.rglob("*.py"))
ACCEL = sorted((SOURCE / "lucid_accel").rglob("*.py"))
LONGEST = 300


def name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_core_does_not_know_the_accelerations(path: Path) -> None:
    assert not [module for module in imports(path) if module.partition(".")[0] == "lucid_accel"]


@pytest.mark.slow
def test_all_of_core_imports_without_them() -> None:
    code = """
import importlib, pkgutil, sys
sys.modules["lucid_accel"] = None
import lucid_core
for module in pkgutil.walk_packages(lucid_core.__path__, "lucid_core."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


LAYERS = {
    "types": set(),
    "oks": set(),
    "seams": set(),
    "plugins": set(),
    "network": {"types", "seams", "network"},
    "objective": {"types", "seams", "oks", "objective", "network"},
    "optim": {"types", "seams", "optim"},
    "data": {"arguments", "types", "seams", "data"},
    "evaluation": {"types", "seams", "oks", "evaluation", "data", "network", "objective"},
}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_data_flows_one_way(path: Path) -> None:
    part = path.relative_to(CORE).with_suffix("").parts[0]
    used = {module.split(".")[1] for module in imports(path) if module.startswith("lucid_core.")}
    if part in LAYERS:
        assert used <= LAYERS[part], f"{name(path)} imports {used - LAYERS[part]}"


def test_one_module_alone_opens_a_capture() -> None:
    assert [name(path) for path in ACCEL if "cuda.graph(" in path.read_text()] == ["lucid_accel.graphs.cuda"]


@pytest.mark.parametrize("path", [path for path in ACCEL if path.parent.name == "graphs"], ids=name)
def test_recording_knows_nothing_of_lightning(path: Path) -> None:
    allowed = ("lucid_accel.graphs", "lucid_accel.reasons")
    used = [module for module in imports(path) if module.startswith(("lucid_", "lightning"))]
    assert not [module for module in used if not module.startswith(allowed)]


@pytest.mark.parametrize("path", [*MODULES, *ACCEL], ids=name)
def test_a_module_is_no_longer_than_a_person_reads(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "misc", "common"}
    assert len(path.read_text().splitlines()) <= LONGEST


@pytest.mark.parametrize("path", [*MODULES, *ACCEL], ids=name)
def test_what_is_public_says_what_it_is(path: Path) -> None:
    silent = [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]
    assert not silent

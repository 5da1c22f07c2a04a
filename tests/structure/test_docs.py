"""Pages say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from lucid_core import cli

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


def test_pages_made_from_the_code_are_up_to_date() -> None:
    path = REPOSITORY / "docs" / "build.py"
    spec = importlib.util.spec_from_file_location("docs_build", path)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    stale = [str(page.relative_to(REPOSITORY)) for page, text in build.PAGES.items() if page.read_text() != text()]
    assert not stale, f"run `make docs` for {stale}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_configurations_named_in_commands_exist(page: Path) -> None:
    named = re.findall(r"--config ([a-z][\w-]*)(?=[\s`])", page.read_text())
    assert set(named) <= {path.stem for path in cli.CONFIGS.glob("*.yaml")}


def test_every_packaged_configuration_is_described() -> None:
    text = (REPOSITORY / "README.md").read_text()
    assert not [path.stem for path in cli.CONFIGS.glob("*.yaml") if f"`{path.stem}`" not in text]

"""Pages say what the code says."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lucid_core import cli

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def build() -> Any:
    """What makes pages from the code."""
    path = REPOSITORY / "docs" / "build.py"
    spec = importlib.util.spec_from_file_location("docs_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_options_that_are_refused_are_not_listed(build: Any) -> None:
    class Links:
        """Collects what the command line takes from elsewhere."""

        def __init__(self) -> None:
            self.targets: set[str] = set()

        def link_arguments(self, source: str, target: str, **_: str) -> None:
            self.targets.add(target)

    links = Links()
    cli.LucidCLI.add_arguments_to_parser(SimpleNamespace(_has_tasks=True), links)  # type: ignore[arg-type]
    assert links.targets == set(build.LINKED)
    page = build.configuration()
    assert "| `--model.task` |" in page and not [name for name in links.targets if f"`--{name}`" in page]


def test_pages_made_from_the_code_are_up_to_date(build: Any) -> None:
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

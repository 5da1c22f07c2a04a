"""The door for plugins: each is loaded alone, and one that is broken is named and left out."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from lucid_core import plugins
from lucid_core.plugins import PluginWarning, components, hookimpl, load


@dataclass
class Distribution:
    name: str = "lucid-some"
    version: str = "1.0"


class Widget:
    pass


class Gadget:
    pass


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Pretend that an entry point is installed that leads to a module with these contents."""
    points: list[EntryPoint] = []
    monkeypatch.setattr(plugins, "entry_points", lambda group: [p for p in points if p.group == group])
    monkeypatch.delenv("LUCID_DISABLE_PLUGINS", raising=False)

    def add(name: str, attribute: str = "", distribution: str = "lucid-some", **contents: Any) -> None:
        module = types.ModuleType(f"some_{name}{distribution.removeprefix('lucid-some').replace('-', '_')}")
        vars(module).update(contents)
        if contents:
            monkeypatch.setitem(sys.modules, module.__name__, module)
        value = f"{module.__name__}:{attribute}" if attribute else module.__name__
        point = EntryPoint(name, value, plugins.GROUP)
        vars(point)["dist"] = Distribution(distribution)
        points.append(point)

    yield add


def offered() -> list[type]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return components(load())


def warned() -> tuple[list[type], list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classes = components(load())
    assert all(item.category is PluginWarning for item in caught)
    return classes, [str(item.message) for item in caught]


@hookimpl
def lucid_components() -> list[type]:
    return [Widget]


class Plugin:
    @hookimpl
    def lucid_components(self) -> list[type]:
        return [Gadget]


def test_an_entry_point_may_lead_to_a_module_a_class_or_an_object(install: Callable[..., None]) -> None:
    install("module", lucid_components=lucid_components)
    install("class", "Plugin", Plugin=Plugin)
    assert offered() == [Gadget, Widget]


def test_an_object_and_its_class_give_the_same(install: Callable[..., None]) -> None:
    install("object", "plugin", plugin=Plugin())
    assert offered() == [Gadget]


def broken_hook() -> list[type]:
    raise RuntimeError("libcuda is missing")


def leaving_hook() -> list[type]:
    sys.exit(3)


def misspelt() -> list[type]:
    return [Widget]


def wrong_argument(nonsense: int) -> list[type]:
    return [Widget]


def instances() -> list[Any]:
    return [Widget()]


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ({}, "No module named 'some_bad'"),
        ({"lucid_components": hookimpl(broken_hook)}, "libcuda is missing"),
        ({"lucid_components": hookimpl(leaving_hook)}, "SystemExit: 3"),
        ({"lucid_componets": hookimpl(misspelt)}, "unknown hook 'lucid_componets'"),
        ({"lucid_components": hookimpl(wrong_argument)}, "nonsense"),
        ({"lucid_components": hookimpl(instances)}, "must return classes"),
        ({"lucid_components": lambda: [Widget]}, "implements no hook"),
        ({"something": 1}, "implements no hook"),
    ],
)
def test_a_broken_plugin_is_named_once_and_the_others_work(
    install: Callable[..., None], contents: dict[str, Any], reason: str
) -> None:
    install("bad", **contents)
    install("good", lucid_components=lucid_components)
    classes, messages = warned()
    assert classes == [Widget]
    assert len(messages) == 1
    assert "bad" in messages[0]
    assert reason in messages[0]
    assert "\n" not in messages[0]


def test_a_plugin_that_exits_when_it_is_imported_ends_nothing(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "some_leaving.py").write_text("import sys\nsys.exit('no licence was found')")
    monkeypatch.syspath_prepend(tmp_path)
    install("leaving")
    install("good", lucid_components=lucid_components)
    classes, messages = warned()
    assert classes == [Widget]
    (text,) = messages
    assert text.startswith("lucid plugin leaving (lucid-some 1.0: some_leaving) skipped: SystemExit: no licence")


def test_a_plugin_that_fails_half_way_keeps_none_of_its_hooks(install: Callable[..., None]) -> None:
    install("half", lucid_components=lucid_components, lucid_zzz=hookimpl(misspelt))
    with pytest.warns(PluginWarning, match="lucid_zzz"):
        manager = load()
    assert components(manager) == []
    assert manager.register(types.SimpleNamespace(), "half") == "half"


def test_one_name_from_two_distributions_is_loaded_once(install: Callable[..., None]) -> None:
    install("same", distribution="lucid-some-a", lucid_components=lucid_components)
    install("same", distribution="lucid-some-b", lucid_components=hookimpl(lambda: [Gadget]))
    classes, messages = warned()
    assert classes == [Widget]
    assert len(messages) == 1
    assert "lucid-some-b" in messages[0]


def test_one_object_under_two_names_is_loaded_once(install: Callable[..., None]) -> None:
    plugin = Plugin()
    install("a", "plugin", plugin=plugin)
    install("b", "plugin", plugin=plugin)
    classes, messages = warned()
    assert classes == [Gadget]
    assert len(messages) == 1
    assert "'a'" in messages[0]


@pytest.mark.parametrize(("switch", "left"), [("a", [Gadget]), (" a , b ", []), ("*", []), ("", [Widget, Gadget])])
def test_plugins_can_be_kept_out(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, switch: str, left: list[type]
) -> None:
    install("a", lucid_components=lucid_components)
    install("b", "Plugin", Plugin=Plugin)
    monkeypatch.setenv("LUCID_DISABLE_PLUGINS", switch)
    assert offered() == left


def test_the_list_says_what_is_disabled_or_gone(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("a", lucid_components=lucid_components)
    install("gone")
    install("unknown")
    monkeypatch.setenv("LUCID_DISABLE_PLUGINS", "a")
    monkeypatch.setattr(plugins, "find_spec", lambda name: None if name == "some_gone" else object())
    states = {item.name: item.state for item in plugins.installed()}
    assert states == {"a": "disabled", "gone": "broken: no module named 'some_gone'", "unknown": "installed"}


def test_folders_of_a_name_are_found_without_an_import(
    install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "some_warp" / "configs").mkdir(parents=True)
    (tmp_path / "some_warp" / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    install("warp")
    install("gone")
    assert plugins.folders("configs") == [("warp", tmp_path / "some_warp" / "configs")]
    assert plugins.folders("recipes") == []
    monkeypatch.setenv("LUCID_DISABLE_PLUGINS", "warp")
    assert plugins.folders("configs") == []


class Base:
    pass


class Twin(Base):
    pass


def test_a_name_that_two_classes_bear_is_found() -> None:
    other = type("Twin", (Base,), {"__module__": "elsewhere", "__qualname__": "Twin"})
    assert plugins.name_clashes(Base, [other]) == {"Twin": sorted(["elsewhere.Twin", f"{__name__}.Twin"])}
    assert plugins.name_clashes(Base, [Widget]) == {}

"""The door through which installed packages offer classes to the command line.

A plugin is an entry point of the group ``lucid_core.plugins`` that leads to a module, a class or an object with one
hook::

    from lucid_core.plugins import hookimpl


    @hookimpl
    def lucid_components() -> list[type]:
        from my_package.callbacks import MyCallback  # imported here, so that listing plugins stays cheap

        return [MyCallback]

The classes then resolve by bare name: ``lucid fit --trainer.callbacks+=MyCallback``. Installing a plugin switches
nothing on. ``LUCID_DISABLE_PLUGINS=name,name`` keeps plugins out, ``*`` all of them.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pluggy

__all__ = [
    "GROUP",
    "PluginInfo",
    "PluginWarning",
    "class_names",
    "components",
    "folders",
    "hookimpl",
    "installed",
    "load",
    "name_clashes",
]

GROUP = "lucid_core.plugins"

hookimpl = pluggy.HookimplMarker("lucid")
_hookspec = pluggy.HookspecMarker("lucid")


class PluginWarning(UserWarning):
    """A plugin was left out, or what it offers cannot be told apart."""


class _Specs:
    """The hooks a plugin may implement."""

    @_hookspec
    def lucid_components(self) -> list[type]:  # type: ignore[empty-body]
        """Offer classes (callbacks, precision plugins, optimizers, strategies, loggers) to be known by bare name."""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What is known of an installed plugin without importing it.

    Attributes:
        name: The entry point's name, which ``LUCID_DISABLE_PLUGINS`` takes.
        distribution: The installed package that brings it, and its version.
        target: What the entry point leads to.
        state: ``installed``, ``disabled``, or ``broken: <why>`` where that can be seen without an import.
    """

    name: str
    distribution: str
    target: str
    state: str


def installed() -> list[PluginInfo]:
    """List the installed plugins, by name, without importing any."""
    disabled = _disabled()
    return [
        PluginInfo(point.name, _distribution(point), point.value, _state(point, disabled))
        for point in _entry_points(GROUP)
    ]


def folders(name: str) -> list[tuple[str, Path]]:
    """List the folders of this name in the packages of installed plugins, with the plugin's name; imports none."""
    found = []
    for plugin in installed():
        package = re.split(r"[.:]", plugin.target)[0]
        spec = find_spec(package) if plugin.state == "installed" else None
        for place in (spec.submodule_search_locations if spec is not None else None) or ():
            if (folder := Path(place, name)).is_dir():
                found.append((plugin.name, folder))
    return found


def load(group: str = GROUP, project: str = "lucid", specs: type = _Specs) -> pluggy.PluginManager:
    """Load every installed plugin that is not disabled.

    Args:
        group: The group of their entry points.
        project: The project their hooks are marked for.
        specs: The hooks they may implement.

    One that cannot be imported, exits, misspells a hook or takes wrong arguments is named in one :class:`PluginWarning`
    and left out as a whole; the others are not affected.
    """
    manager = pluggy.PluginManager(project)
    manager.add_hookspecs(specs)
    disabled = _disabled()
    for point in _entry_points(group):
        if _is_disabled(point.name, disabled):
            continue
        if manager.has_plugin(point.name):
            _skip(point.name, point, "another distribution already brings a plugin of that name")
            continue
        try:
            plugin = point.load()
            plugin = plugin() if isinstance(plugin, type) else plugin
            if (known_as := manager.get_name(plugin)) is not None:
                raise ValueError(f"it is the same object as plugin {known_as!r}")
            _register(manager, plugin, point.name)
        except (Exception, SystemExit) as error:
            _skip(point.name, point, f"{type(error).__name__}: {error}")
    return manager


def components(manager: pluggy.PluginManager) -> list[type]:
    """Ask every plugin for its classes, each on its own: one that fails is named, warned of once, and left out."""
    offered: list[type] = []
    for implementation in list(manager.hook.lucid_components.get_hookimpls()):
        try:
            answer: Any = implementation.function()
            classes = list(answer)
            strangers = [item for item in classes if not isinstance(item, type)]
            if strangers:
                raise TypeError(f"lucid_components must return classes, got {strangers[0]!r}")
        except (Exception, SystemExit) as error:
            manager.unregister(implementation.plugin)
            _skip(implementation.plugin_name, None, f"{type(error).__name__}: {error}")
        else:
            offered += [item for item in classes if item not in offered]
    return offered


def class_names(base: type) -> dict[str, list[type]]:
    """Group the imported public subclasses of ``base`` by name: what a bare name on the command line can mean.

    Classes made inside functions and classes of private modules do not count, as the command line skips them too.
    """
    found: dict[str, list[type]] = {}
    for subclass in _subclasses(base):
        if "<locals>" not in subclass.__qualname__ and not subclass.__name__.startswith("_"):
            group = found.setdefault(subclass.__name__, [])
            if subclass not in group:
                group.append(subclass)
    return found


def name_clashes(base: type, offered: Iterable[type]) -> dict[str, list[str]]:
    """Find names of ``offered`` subclasses of ``base`` that another class bears too, with the full path of each.

    Such a name no longer works bare, for anybody, so the caller should say so.
    """
    mine = {item.__name__ for item in offered if issubclass(item, base)}
    return {
        name: sorted(f"{item.__module__}.{item.__qualname__}" for item in classes)
        for name, classes in class_names(base).items()
        if name in mine and len(classes) > 1
    }


def _register(manager: pluggy.PluginManager, plugin: object, name: str) -> None:
    try:
        manager.register(plugin, name)
        manager.check_pending()
        if not manager.get_hookcallers(plugin):
            raise ValueError(f"it implements no hook; mark one with pluggy.HookimplMarker({manager.project_name!r})")
    except Exception:
        # A plugin that fails validation half-way would keep the hooks that were seen before.
        if manager.has_plugin(name):
            manager.unregister(name=name)
        raise


def _entry_points(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda point: (point.name, _distribution(point)))


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"


def _state(point: EntryPoint, disabled: set[str]) -> str:
    if _is_disabled(point.name, disabled):
        return "disabled"
    package = point.module.partition(".")[0]
    return "installed" if find_spec(package) is not None else f"broken: no module named {package!r}"


def _disabled() -> set[str]:
    return {name.strip() for name in os.environ.get("LUCID_DISABLE_PLUGINS", "").split(",")} - {""}


def _is_disabled(name: str, disabled: set[str]) -> bool:
    return name in disabled or "*" in disabled


def _skip(name: str, point: EntryPoint | None, why: str) -> None:
    source = f" ({_distribution(point)}: {point.value})" if point is not None else ""
    # Reasons of pluggy have several lines.
    text = f"lucid plugin {name}{source} skipped: {' '.join(why.split())}"
    warnings.warn(text, PluginWarning, stacklevel=3)


def _subclasses(base: type) -> Iterator[type]:
    children: list[type] = type.__subclasses__(base)
    for subclass in children:
        yield subclass
        yield from _subclasses(subclass)

"""Where a seam is in a given module, and how a call of it is taken over."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from weakref import ref

import pluggy
from lightning.pytorch import LightningModule
from torch import nn

from lucid_accel.hookspecs import GROUP, PROJECT, Specs
from lucid_core import plugins
from lucid_core.seams import SEAMS, claim

__all__ = ["Replacement", "Undo", "find", "is_free", "marked", "marked_parts", "replace", "take"]

#: Called instead of the seam, as ``replacement(native, *args, **kwargs)``.
Replacement = Callable[..., Any]
Undo = Callable[[], None]


def find(module: LightningModule, path: str) -> nn.Module | None:
    """Return the submodule that is the seam ``path``: what a plugin says, else the one whose method is marked so.

    ``None`` where there is none, or several marked ones, between which only the user can choose. A plugin that fails,
    or offers what is no seam, is named in one warning and left out from then on.

    Raises:
        ValueError: Two plugins offer different submodules.
    """
    offers: dict[str, nn.Module] = {}
    manager = _manager()
    for implementation in list(manager.hook.lucid_seams.get_hookimpls()):
        name = implementation.plugin_name
        try:
            seams = _checked(module, implementation.function(module))
        except (Exception, SystemExit) as error:
            manager.unregister(implementation.plugin)
            text = f"lucid plugin {name} skipped: its hook lucid_seams failed: {type(error).__name__}: {error}"
            warnings.warn(" ".join(text.split()), plugins.PluginWarning, stacklevel=2)
        else:
            offers |= {name: seams[path]} if path in seams else {}
    if len({id(part) for part in offers.values()}) > 1:
        raise ValueError(
            f"the plugins {', '.join(offers)} offer different submodules of {type(module).__name__} as {path}; leave "
            "all but one out with LUCID_DISABLE_PLUGINS"
        )
    for part in offers.values():
        return part
    parts = list(marked_parts(module, path).values())
    return parts[0] if len(parts) == 1 else None


def marked_parts(module: LightningModule, path: str) -> dict[str, nn.Module]:
    """Return the submodules of which a method is marked as the seam ``path``, by name."""
    return {name: part for name, part in module.named_modules() if marked(part, path)}


def marked(part: object, path: str) -> bool:
    """Whether a method of ``part`` is the seam ``path``; one that a subclass overrides is none, unless marked again."""
    methods = {name: value for base in reversed(type(part).__mro__) for name, value in vars(base).items()}
    return any(getattr(method, "__seam__", None) == path for method in methods.values())


def is_free(part: object, method: str = "forward") -> bool:
    """Whether nobody replaced ``method`` of ``part``. What a copy keeps of a replaced original does not count."""
    own = vars(part).get(method)
    if own is None:
        return True
    function = getattr(own, "__func__", None)
    if isinstance(function, _Method):
        return function.part() is not part
    return function is getattr(type(part), method) and own.__self__ is part


def take(
    scope: LightningModule, path: str, owner: str, part: object, replacement: Replacement, method: str = "forward"
) -> Undo:
    """Let ``replacement`` be called instead of the seam that ``part`` has, until the returned function is called.

    A method that is marked as the seam is claimed. Any other part gets a ``method`` of its own, which is inert on
    copies of the part.

    Raises:
        SeamConflict: Somebody else holds the seam.
    """
    if marked(part, path):
        return claim(scope, path, owner, part, replacement).release
    held = claim(scope, path, owner)
    restore = replace(part, method, replacement)

    def undo() -> None:
        held.release()
        restore()

    return undo


def replace(part: object, method: str, replacement: Replacement) -> Undo:
    """Let ``replacement`` be called instead of a method of ``part``, within a seam that its owner holds already.

    Returns:
        What undoes it, if it is still there.
    """
    function = _Method(part, method, replacement)
    own = types.MethodType(function, part)
    vars(part)[method] = own

    def restore() -> None:
        function.replacement = None
        if vars(part).get(method) is own:
            del vars(part)[method]

    return restore


class _Method:
    """A replaced method of one object. A copy of the object that got it too runs the one of its class.

    It knows the object weakly, and its replacement until that is undone: a copy keeps neither alive.
    """

    # Without a dictionary, so that nothing of it counts as a setting of the part.
    __slots__ = ("__name__", "part", "replacement")

    def __init__(self, part: object, name: str, replacement: Replacement) -> None:
        # A pickled method is looked up by this on the unpickled object, and so becomes the one of the class.
        self.__name__ = name
        self.part = ref(part)
        self.replacement: Replacement | None = replacement

    def __call__(self, part: object, /, *args: Any, **kwargs: Any) -> Any:
        native = types.MethodType(getattr(type(part), self.__name__), part)
        if self.replacement is None or self.part() is not part:
            return native(*args, **kwargs)
        return self.replacement(native, *args, **kwargs)


def _checked(module: LightningModule, seams: Any) -> dict[str, nn.Module]:
    """Return what a plugin offers, if it is what the hook asks for.

    Raises:
        TypeError: It is not a dictionary from paths of seams to submodules.
    """
    if seams is None:
        return {}
    if not isinstance(seams, dict):
        raise TypeError(f"it must return a dictionary or None, got {type(seams).__name__}")
    parts = {id(part) for part in module.modules() if part is not module}
    for path, part in seams.items():
        if path not in SEAMS:
            raise TypeError(f"no seam is called {path!r}; seams are {', '.join(SEAMS)}")
        if id(part) not in parts:
            raise TypeError(f"{path} must be a submodule of {type(module).__name__}, got {type(part).__name__}")
    return seams


@lru_cache(maxsize=1)
def _manager() -> pluggy.PluginManager:
    return plugins.load(GROUP, PROJECT, Specs)

"""Where a seam is in a given module, and how a call of it is taken over."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pluggy
from lightning.pytorch import LightningModule
from torch import nn

from lucid_accel.hookspecs import GROUP, PROJECT, Specs
from lucid_core import plugins
from lucid_core.seams import claim

__all__ = ["Replacement", "Undo", "find", "marked", "take"]

#: Called instead of the seam, as ``replacement(native, *args, **kwargs)``.
Replacement = Callable[..., Any]
Undo = Callable[[], None]


def find(module: LightningModule, path: str) -> nn.Module | None:
    """Return the submodule that is the seam ``path``: what a plugin says, else the one whose method is marked so."""
    for implementation in _manager().hook.lucid_seams.get_hookimpls():
        seams: Any = implementation.function(module)
        if seams and path in seams:
            found: nn.Module = seams[path]
            return found
    return next((part for part in module.modules() if marked(part, path)), None)


def marked(part: nn.Module, path: str) -> bool:
    """Whether a method of ``part`` is the seam ``path``."""
    kind = type(part)
    return any(getattr(vars(base).get(name), "__seam__", None) == path for base in kind.__mro__ for name in vars(base))


def take(scope: LightningModule, path: str, owner: str, part: nn.Module, replacement: Replacement) -> Undo:
    """Let ``replacement`` be called instead of the seam that ``part`` is, until the returned function is called.

    A method that is marked as the seam is claimed. Any other part gets a ``forward`` of its own, which is inert on
    copies of the part.

    Raises:
        SeamConflict: Somebody else holds the seam.
    """
    if marked(part, path):
        return claim(scope, path, owner, part, replacement).release
    held = claim(scope, path, owner)
    native = type(part).forward.__get__(part)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self is not part:
            return type(self).forward(self, *args, **kwargs)
        return replacement(native, *args, **kwargs)

    shim = types.MethodType(forward, part)
    vars(part)["forward"] = shim

    def undo() -> None:
        held.release()
        if vars(part).get("forward") is shim:
            del vars(part)["forward"]

    return undo


@lru_cache(maxsize=1)
def _manager() -> pluggy.PluginManager:
    return plugins.load(GROUP, PROJECT, Specs)

"""``lucid-accel list``: every acceleration that an installed plugin offers, ours like a stranger's."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from lucid_accel.acceleration import Acceleration
from lucid_core import plugins

__all__ = ["Offer", "main", "offers"]


@dataclass(frozen=True, slots=True)
class Offer:
    """An acceleration, and where it is from.

    Attributes:
        kind: Its class.
        distribution: The installed package that brings it, and its version.
    """

    kind: type[Any]
    distribution: str

    @property
    def name(self) -> str:
        """The name it goes by on the command line."""
        return self.kind.__name__

    @property
    def card(self) -> str:
        """The first line of its docstring; an inherited one says nothing of it."""
        lines = inspect.cleandoc(vars(self.kind).get("__doc__") or "").splitlines()
        return lines[0] if lines else "(without a description)"


def offers(also: tuple[type, ...] = ()) -> list[Offer]:
    """Ask every installed plugin for its accelerations, by name; one that fails is warned of and left out.

    Args:
        also: Further classes, whose subclasses are wanted too.
    """
    manager = plugins.load()
    sources = {info.name: info.distribution for info in plugins.installed()}
    offered = plugins.components(manager)
    # Those left are sound; each is asked once more, because components does not say whose a class is.
    whose: dict[type, str] = {}
    for implementation in manager.hook.lucid_components.get_hookimpls():
        answer: Any = implementation.function()
        whose |= dict.fromkeys(answer, implementation.plugin_name)
    kinds = [kind for kind in offered if issubclass(kind, (Acceleration, *also)) and not inspect.isabstract(kind)]
    return sorted((Offer(kind, sources[whose[kind]]) for kind in kinds), key=lambda offer: offer.name)


def main() -> int:
    """Print the list and return the exit status."""
    from lucid_accel.auto import AutoAccelerate

    found = offers((AutoAccelerate,))
    if not found:
        print("no installed plugin offers an acceleration; `lucid plugins` lists the plugins")
    width = max((len(offer.name) for offer in found), default=0)
    for offer in found:
        loose = "" if offer.kind.numerics == "bitwise" else " (other bytes than a native run)"
        print(f"{offer.name:<{width}}  {offer.distribution}  {offer.card}{loose}")
    return 0

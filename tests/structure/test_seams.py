"""Every seam has its one binding, and every marked method is a seam."""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
from collections.abc import Iterator

import lucid_core
from lucid_core.seams import SEAMS

CORE_BINDING = re.compile(r"lucid_core[\w.]*:\w+\.\w+")


def marked() -> Iterator[tuple[str, str]]:
    """Each method marked as a seam, as ``(path, module:Class.method)``."""
    for info in pkgutil.walk_packages(lucid_core.__path__, "lucid_core."):
        if info.name.endswith("__main__"):
            continue
        for item in vars(importlib.import_module(info.name)).values():
            if isinstance(item, type) and item.__module__ == info.name:
                for name, method in vars(item).items():
                    if isinstance(method, types.FunctionType) and hasattr(method, "__seam__"):
                        yield method.__seam__, f"{info.name}:{item.__name__}.{name}"


def test_seams_and_marked_methods_are_the_same() -> None:
    named = {(path, core) for path, binding in SEAMS.items() for core in CORE_BINDING.findall(binding)}
    assert set(marked()) == named


def test_no_method_carries_two_seams_and_no_seam_two_methods() -> None:
    pairs = list(marked())
    assert len({path for path, _ in pairs}) == len(pairs) == len({method for _, method in pairs})

"""Names that Python code mentions as it runs, of what it may have read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

__all__ = ["Mentions"]

_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics")


class Mentions:
    """Collects the names in every function that is called while it listens, in this thread.

    Attributes, globals and methods are among them, and string constants, for ``getattr``. What a function does not
    come to is among them too.

    Attributes:
        names: All names.
        own: Those in code that is neither torch's nor Lightning's.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.own: set[str] = set()

    @staticmethod
    def can_listen() -> bool:
        """Whether nobody else listens: there is one place for a profiler in Python."""
        return sys.getprofile() is None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the context is open.

        Raises:
            RuntimeError: Somebody else listens.
        """
        if not self.can_listen():
            raise RuntimeError("a profiler is running")
        called: set[CodeType] = set()

        def note(frame: FrameType, event: str, _: Any) -> None:
            if event == "call":
                called.add(frame.f_code)

        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(None)
            for code in called:
                names = {*code.co_names, *_strings(code.co_consts)}
                self.names |= names
                if not code.co_filename.startswith(_places()):
                    self.own |= names


def _strings(constants: Iterable[Any]) -> Iterator[str]:
    """Yield the strings among constants, also those in tuples of them."""
    for value in constants:
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple | frozenset):
            yield from _strings(value)


@cache
def _places() -> tuple[str, ...]:
    """Folders of libraries, whose code reads the state of a run for its own purposes."""
    found = [spec.origin for name in _LIBRARIES if (spec := find_spec(name)) is not None and spec.origin is not None]
    # With the separator, or torchvision would count as torch.
    return tuple(f"{Path(origin).parent}{os.sep}" for origin in found)

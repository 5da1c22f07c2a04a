"""Where a record was made."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

import lightning
import torch

import lucid_accel
import lucid_core
from lucid_accel.driver import driver_version

__all__ = ["commit", "environment"]


def environment(card: str | None) -> dict[str, Any]:
    """Return commit, card, driver and versions.

    Args:
        card: Name of the GPU that was used, if one was. Who asks torch for it takes memory on it.
    """
    return {
        "commit": commit(),
        "card": card,
        "driver": driver_version() if card else None,
        "processor": platform.processor() or platform.machine(),
        "versions": {
            "lucid-core": lucid_core.__version__,
            "lucid-accel": lucid_accel.__version__,
            "torch": torch.__version__,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            "lightning": lightning.__version__,
            "python": platform.python_version(),
        },
    }


def commit() -> str | None:
    """Return the commit that this package is from; ``None`` where it is not from a checkout of its repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    # An environment may lie within a checkout of something else, which does not track its files.
    return _answer([*git, "rev-parse", "HEAD"]) if _answer([*git, "ls-files", "environment.py"]) else None


def _answer(command: list[str]) -> str | None:
    """What a command prints; ``None`` where it is not there, or refuses."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None

"""Reading checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

__all__ = ["read_saved"]


def read_saved(path: Path) -> Any:
    """Read what torch saved, on the CPU: tensors and plain values, never code.

    Raises:
        ValueError: It is no such file.
        OSError: It is not there, or not to be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (FileNotFoundError, PermissionError):
        raise
    # Foreign bytes raise whatever the reader stumbles on, and torch explains at length how to run their code.
    except Exception as error:
        raise ValueError(
            f"{path} is no checkpoint that can be read: torch did not save it, it is cut short, or it holds more than "
            "tensors and plain values"
        ) from error

"""The version of the NVIDIA driver, which torch does not tell."""

from __future__ import annotations

import subprocess

__all__ = ["driver_version"]


def driver_version() -> str | None:
    """Ask ``nvidia-smi``; ``None`` where it is not there, or does not answer. With several GPUs they share a driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return said.partition("\n")[0].strip() or None

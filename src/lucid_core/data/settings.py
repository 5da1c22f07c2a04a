"""Which settings of the data make sense."""

from __future__ import annotations

from typing import Literal, get_args

from lucid_core.data.types import Task

__all__ = ["check_settings"]


def check_settings(image_size: int, seed: int, task: Task, **counts: tuple[int | Literal["auto"], int]) -> None:
    """Refuse settings that are out of range.

    Args:
        image_size: Side of the canvas, pixels.
        seed: Of the run.
        task: What is learnt.
        counts: Others by name, each with the lowest value that it may have.

    Raises:
        ValueError: One is. The message names it and what it may be.
    """
    if image_size < 32 or image_size % 32:
        near = max(32, round(image_size / 32) * 32)
        raise ValueError(f"image_size is {image_size}; it must be a positive multiple of 32, such as {near}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}; it must lie in [0, 2**64)")
    if task not in get_args(Task):
        raise ValueError(f"no task is called {task!r}; tasks are {', '.join(get_args(Task))}")
    for name, (given, lowest) in counts.items():
        if given != "auto" and given < lowest:
            raise ValueError(f"{name} is {given}; it must be at least {lowest}")

"""Reading checkpoints, and telling those that a detector cannot be loaded from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch

__all__ = ["check_fits", "check_points", "read_checkpoint", "read_saved"]


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


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read the checkpoint of a detector: its ``state_dict``, its ``hyper_parameters`` and what else a run needs.

    Raises:
        ValueError: It cannot be read, or another program made it.
        OSError: It is not there, or not to be read.
    """
    held = read_saved(path)
    settings = held.get("hyper_parameters") if isinstance(held, dict) else None
    if not isinstance(settings, Mapping) or "class_names" not in settings or "state_dict" not in held:
        content = f"a {type(held).__name__}" if not isinstance(held, dict) else ", ".join(map(str, list(held)[:5]))
        raise ValueError(
            f"{path} is no checkpoint of lucid-core, but of another program: it holds {content or 'nothing'}"
        )
    return dict(held)


def check_fits(trained: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of a detector of another make, which torch would do with a line for every tensor.

    Args:
        trained: Hyperparameters of the checkpoint.
        given: Those of the detector that is to take its weights.

    Raises:
        ValueError: They differ in what decides which tensors there are, and what they mean.
    """
    for name in ("task", "variant", "flow"):
        then, now = (settings.get(name, given[name]) for settings in (trained, given))
        if then != now:
            raise ValueError(
                f"the checkpoint is of a model whose {name} is {then}, and here it is {now}: say "
                f"--model.{name}={then}, or start another model from what fits, with fit --model.weights"
            )
    then, now = (settings.get("points", given["points"]) for settings in (trained, given))
    if then != now:
        raise ValueError(
            f"the checkpoint was trained on objects of {then} key points, and these have {now}: name the data set it "
            f"was trained on"
        )
    # Lists or tuples: the command line passes on what the data module has.
    names, here = list(trained["class_names"]), list(given["class_names"])
    if names != here:
        raise ValueError(
            f"the checkpoint was trained on {len(names)} classes ({shorten(', '.join(names), 60)}), "
            f"and these are {len(here)} ({shorten(', '.join(here), 60)}): name the data set it was trained on"
        )


def check_points(trained: Sequence[str], given: Sequence[str]) -> None:
    """Refuse key points of other names or in another order, which a network cannot tell: it knows them by index.

    Args:
        trained: Names of the key points that the checkpoint was trained on; empty where they have none.
        given: Names of those of the data, likewise.

    Raises:
        ValueError: Both have names, and they differ.
    """
    if trained and given and list(trained) != list(given):
        place = next(place for place, pair in enumerate(zip(trained, given, strict=True)) if pair[0] != pair[1])
        raise ValueError(
            f"the checkpoint was trained on other key points, or in another order: key point {place + 1} was "
            f"{trained[place]}, and here it is {given[place]} ({shorten(', '.join(trained), 60)}; here "
            f"{shorten(', '.join(given), 60)}): name the data set it was trained on"
        )

"""Starting a network from the weights of another run, as far as they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lucid_core.checkpoint import read_saved
from lucid_core.network.head import Branch, Stem
from lucid_core.network.masks import MaskHead

__all__ = ["Weights", "fit_weights", "read_weights", "start_from"]

PREFIX, OBJECTIVE = "network.", "objective."
#: What does not fit is listed up to this many; the rest is counted.
LISTED = 12


class Weights(NamedTuple):
    """What a file holds for a network and its objective.

    Attributes:
        tensors: By their name in the network; averaged ones where the file has them.
        averaged: There were averaged ones.
        variant: Size of the network they are of, if the file says so.
        class_names: Classes they were trained on, in label order, if the file says so.
        point_names: Key points they were trained on, by index, likewise.
        objective: What an objective has learnt, by its name there.
    """

    tensors: dict[str, Tensor]
    averaged: bool = False
    variant: str | None = None
    class_names: tuple[str, ...] = ()
    point_names: tuple[str, ...] = ()
    objective: Mapping[str, Tensor] = {}


def start_from(file: str, network: nn.Module, objective: nn.Module, variant: str, class_names: Sequence[str]) -> None:
    """Load what fits of a file into a network and its objective, and tell in one message what did and what did not.

    Args:
        file: A checkpoint, or the state dict of a detector or of its network.
        network: To be changed.
        objective: To be changed: of key points it learns a density.
        variant: Its size.
        class_names: Its classes, in label order.

    Raises:
        ValueError: The file cannot be read, is of another variant, or nothing in it fits.
    """
    weights = read_weights(file)
    if weights.variant not in (None, variant):
        raise ValueError(
            f"model.weights {file} is of variant {weights.variant}, and this network of variant {variant}: add "
            f"--model.variant {weights.variant}, or name weights of variant {variant}"
        )
    loaded, unfit = fit_weights(network, weights, class_names)
    if not loaded:
        held = ", ".join(list(weights.tensors)[:3]) or "no tensors at all"
        raise ValueError(f"model.weights {file} holds nothing that fits this network: {held}")
    learnt, apart = _fit_objective(objective, weights.objective)
    loaded, unfit = loaded + learnt, apart + unfit
    if len(weights.point_names) == getattr(objective, "points", 0) > 0:
        unfit.insert(0, f"outputs by key point: kept by index, where the file has {', '.join(weights.point_names)}")
    which = "averaged weights" if weights.averaged else "weights"
    total = len(network.state_dict()) + len(objective.state_dict())
    lines = [f"{file}: {loaded} of {total} tensors loaded ({which})", *unfit[:LISTED]]
    if len(unfit) > LISTED:
        lines.append(f"and {len(unfit) - LISTED} more that do not fit")
    rank_zero_info("\n  ".join(lines))


def read_weights(file: str) -> Weights:
    """Read the weights of a network from a file.

    Raises:
        ValueError: There is no such file, or it holds no weights.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(
            f"model.weights: no file is called {file!r}; name a checkpoint, such as RUN/checkpoints/best.ckpt"
        )
    try:
        held = read_saved(path)
    except ValueError as error:
        raise ValueError(f"model.weights: {error}") from error
    if not isinstance(held, Mapping):
        raise ValueError(f"model.weights {file} holds a {type(held).__name__}, not a checkpoint or the weights of one")
    state = _tensors(held.get("state_dict", held))
    objective = {name.removeprefix(OBJECTIVE): t for name, t in state.items() if name.startswith(OBJECTIVE)}
    if any(name.startswith(PREFIX) for name in state):
        state = {name.removeprefix(PREFIX): t for name, t in state.items() if name.startswith(PREFIX)}
    average = _tensors(_mapping(held.get("ema")).get("tensors"))
    settings = _mapping(held.get("hyper_parameters"))
    tensors = state | average
    all_of_it = chain(tensors.items(), objective.items())
    broken = next((name for name, tensor in all_of_it if not bool(tensor.isfinite().all())), None)
    if broken is not None:
        raise ValueError(f"model.weights {file} holds values that are not finite, in {broken}: take an earlier one")
    points = _mapping(_mapping(held.get("trained_on")).get("points"))
    return Weights(
        tensors,
        bool(average),
        settings.get("variant"),
        tuple(settings.get("class_names") or ()),
        tuple(points.get("names") or ()),
        objective,
    )


def fit_weights(network: nn.Module, weights: Weights, class_names: Sequence[str]) -> tuple[int, list[str]]:
    """Copy into a network what fits by name and shape.

    Where the file names its classes, the outputs of a class go where the class of that name is; classes that the file
    does not know start anew.

    Args:
        network: To be changed.
        weights: What there is.
        class_names: Classes of the network, in label order.

    Returns:
        How many tensors took something, and a line for each fault: classes that start anew, tensors that the file has
        not, or in another shape, or that the network has not.
    """
    own = network.state_dict()
    by_class = _class_outputs(network) if weights.class_names else set()
    known = [
        (row, weights.class_names.index(name)) for row, name in enumerate(class_names) if name in weights.class_names
    ]
    loaded, unfit = 0, []
    if by_class and list(weights.class_names) != list(class_names):
        kept, new = [[n for n in class_names if (n in weights.class_names) is known] for known in (True, False)]
        unfit.append(f"outputs by class: kept of {', '.join(kept) or 'none'}; anew for {', '.join(new) or 'none'}")
    with torch.no_grad():
        for name, tensor in own.items():
            given = weights.tensors.get(name)
            if given is None:
                unfit.append(f"{name}: not in the file")
            elif name in by_class and given.shape == (len(weights.class_names), *tensor.shape[1:]):
                for row, old in known:
                    tensor[row].copy_(given[old])
                loaded += bool(known)
            elif given.shape == tensor.shape:
                tensor.copy_(given)
                loaded += 1
            else:
                unfit.append(f"{name}: {_shape(given)} in the file, {_shape(tensor)} here")
    unfit += [f"{name}: not in this network" for name in weights.tensors if name not in own]
    return loaded, unfit


def _fit_objective(objective: nn.Module, given: Mapping[str, Tensor]) -> tuple[int, list[str]]:
    """Load what an objective learns, as a whole or not at all: parts of a density are none.

    Returns:
        How many tensors were loaded, and a line where it is not in the file, or not in the objective, or of another
        make.
    """
    own = objective.state_dict()
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in (own, given)]
    if shapes[0] == shapes[1]:
        objective.load_state_dict(dict(given))
        return len(own), []
    return 0, [f"what the objective learns: {len(given)} tensors in the file, {len(own)} here"]


def _class_outputs(network: nn.Module) -> set[str]:
    """Names of the tensors that have one row for each class."""
    cells = {
        f"{name}.semantic.{tensor}"
        for name, head in network.named_modules()
        if isinstance(head, MaskHead)
        for tensor in head.semantic.state_dict()
    }
    return cells | {
        f"{branch_name}.classes.{level}.{len(stem) - 1}.{tensor}"
        for branch_name, branch in network.named_modules()
        if isinstance(branch, Branch)
        for level, stem in branch.get_submodule("classes").named_children()
        if isinstance(stem, Stem)
        for tensor in stem[-1].state_dict()
    }


def _tensors(held: Any) -> dict[str, Tensor]:
    return {name: value for name, value in _mapping(held).items() if isinstance(value, Tensor)}


def _mapping(held: Any) -> Mapping[Any, Any]:
    return held if isinstance(held, Mapping) else {}


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "a single value"

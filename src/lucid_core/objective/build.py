"""The objective of a task, with its gains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from lucid_core.objective.keypoints import KeypointGains, KeypointObjective
from lucid_core.objective.objective import Factors, Gains, Objective
from lucid_core.objective.oriented import OrientedGains, OrientedObjective
from lucid_core.objective.segment import SegmentGains, SegmentObjective
from lucid_core.types import Task

__all__ = ["build_objective"]

#: Of each task, the factors of its terms, and the objective that they belong to.
_OBJECTIVES: dict[Task, tuple[type[Factors], Callable[..., Objective]]] = {
    "detect": (Gains, Objective),
    "segment": (SegmentGains, SegmentObjective),
    "obb": (OrientedGains, OrientedObjective),
    "keypoints": (KeypointGains, KeypointObjective),
}


def build_objective(
    task: Task, gains: Mapping[str, float], points: int = 0, flow: bool = True, sigmas: Sequence[float] | None = None
) -> Objective:
    """Return the objective of ``task``.

    Args:
        task: What is found besides classes and boxes.
        gains: Factors of terms that differ from the task's own, by name.
        points: Key points of an object, of the task ``keypoints``.
        flow: Of the task ``keypoints``: learn the density of residuals.
        sigmas: Of the task ``keypoints``: spread of each point; see :func:`~lucid_core.oks.oks_sigmas`.

    Raises:
        ValueError: A gain belongs to no term of the task, or is negative or not finite; or what is of key points alone
            is named for another task, or out of range.
    """
    kind, make = _OBJECTIVES[task]
    known = [field.name for field in fields(kind)]
    for name in gains:
        if name not in known:
            raise ValueError(f"model.gains has {name!r}, no term of the task {task}; terms are {', '.join(known)}")
    own: dict[str, Any] = {}
    if task == "keypoints":
        own = {"points": points, "flow": flow, "sigmas": sigmas}
    elif sigmas is not None or not flow:
        name = "model.flow" if sigmas is None else "model.sigmas"
        raise ValueError(f"{name} is of the task keypoints, and the task is {task}: leave it out")
    return make(gains=kind(**gains), **own)

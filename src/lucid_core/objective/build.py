"""The objective of a task, with its gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from lucid_core.objective.keypoints import KeypointGains, KeypointObjective
from lucid_core.objective.objective import Factors, Gains, Objective
from lucid_core.objective.oriented import OrientedGains, OrientedObjective
from lucid_core.objective.segment import SegmentGains, SegmentObjective
from lucid_core.types import Task

__all__ = ["build_objective"]

_GAINS: dict[Task, type[Factors]] = {
    "detect": Gains,
    "segment": SegmentGains,
    "obb": OrientedGains,
    "keypoints": KeypointGains,
}


def build_objective(task: Task, gains: Mapping[str, float], points: int = 0) -> Objective:
    """Return the objective of ``task``.

    Args:
        task: What is found besides classes and boxes.
        gains: Factors of terms that differ from the task's own, by name.
        points: Key points of an object, of the task ``keypoints``.

    Raises:
        ValueError: A gain belongs to no term of the task, or is negative or not finite.
    """
    kind = _GAINS[task]
    known = [field.name for field in fields(kind)]
    for name in gains:
        if name not in known:
            raise ValueError(f"model.gains has {name!r}, no term of the task {task}; terms are {', '.join(known)}")
    made = kind(**gains)
    if isinstance(made, KeypointGains):
        return KeypointObjective(points, made)
    if isinstance(made, SegmentGains):
        return SegmentObjective(made)
    if isinstance(made, OrientedGains):
        return OrientedObjective(made)
    return Objective(made)

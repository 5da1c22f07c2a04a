"""A detector from its checkpoint, on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from lucid_core.checkpoint import check_points, read_checkpoint
from lucid_core.data.points import PointTable

if TYPE_CHECKING:
    from lucid_core.module import Detector

    AnyDetector = TypeVar("AnyDetector", bound=Detector)

__all__ = ["TrainedOn", "load_detector", "pick_device"]


class TrainedOn(NamedTuple):
    """What prediction has to know of the data that a detector was trained on.

    Attributes:
        image_size: Side of the network's input in pixels.
        category_ids: Ids of the classes in result files, in label order; none where the data have no ids.
        points: Of the task ``keypoints``: what the points are called, and which are joined in drawings.
    """

    image_size: int | None = None
    category_ids: tuple[int, ...] = ()
    points: PointTable | None = None

    def updated(self, data: object) -> TrainedOn:
        """Return what a data module says, and where it says nothing, what is known."""
        size = getattr(data, "image_size", self.image_size)
        ids = tuple(getattr(data, "category_ids", self.category_ids))
        return TrainedOn(size, ids, getattr(data, "points", self.points))

    def check_fits(self, data: object) -> None:
        """Refuse a data module whose key points have other names or another order, with a ``ValueError``."""
        given = TrainedOn().updated(data).points
        if self.points is not None and given is not None:
            check_points(self.points.names, given.names)

    def state_dict(self) -> dict[str, Any]:
        """Return it in plain types, for a checkpoint."""
        points = {} if self.points is None else {"points": asdict(self.points)}
        return {"image_size": self.image_size, "category_ids": list(self.category_ids), **points}

    @classmethod
    def of(cls, state: Mapping[str, Any] | None) -> TrainedOn:
        """Make it from what :meth:`state_dict` gave, or from nothing."""
        state = state or {}
        points = None if state.get("points") is None else PointTable(**state["points"])
        return cls(state.get("image_size"), tuple(state.get("category_ids", ())), points)


def load_detector(kind: type[AnyDetector], path: Path, device: str | torch.device) -> AnyDetector:
    """Make a detector from a checkpoint, ready to predict.

    Args:
        kind: Its class.
        path: The checkpoint. Only tensors and plain values are read from it, no code.
        device: See :func:`pick_device`.

    Raises:
        ValueError: The file is no checkpoint of a detector, or there is no such device. FileNotFoundError: No file.
    """
    where = pick_device(device)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such checkpoint; a run keeps its own in RUN/checkpoints")
    held = read_checkpoint(path)
    try:
        # What starts with an underscore is Lightning's own note.
        detector = kind(**{name: value for name, value in held["hyper_parameters"].items() if not name.startswith("_")})
        detector.on_load_checkpoint(held)
        detector.load_state_dict(held["state_dict"])
        detector.eval().to(where)
        if where.type == "cuda":
            detector.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        # Loads the averaged weights, where they do not fit, too.
        _ = detector.average
    except (TypeError, KeyError, AttributeError, RuntimeError) as error:
        # What a device says is no fault of the file; torch's own answer to what does not fit begins so.
        if not isinstance(error, RuntimeError) or "state_dict" in str(error):
            raise ValueError(
                f"{path} is a checkpoint of another version of lucid-core or of another model: {_cause(error)}"
            ) from error
        raise
    return detector


def pick_device(name: str | torch.device) -> torch.device:
    """Return the device of that name.

    Args:
        name: ``auto`` for the first GPU, else the CPU; ``cpu``, ``cuda``, ``cuda:1``, ``mps`` and what else torch has.

    Raises:
        ValueError: This machine has no such device.
    """
    if name == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    present = ["cpu"]
    if (accelerator := torch.accelerator.current_accelerator(check_available=True)) is not None:
        count = torch.accelerator.device_count()
        present += [accelerator.type, *(f"{accelerator.type}:{index}" for index in range(count))]
    if str(name) not in [*present, "cpu:0"]:
        raise ValueError(f"device {str(name)!r} is not on this machine; there are auto, {', '.join(present)}")
    return torch.device(name)


def _cause(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0].strip()
    return first[:120] or type(error).__name__

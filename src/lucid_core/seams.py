"""The training step and the places where an acceleration may take over a part of it.

A *seam* is a dotted name with exactly one binding, a method of this package marked :func:`seam` or a public touch point
of Lightning, that one owner at a time may wrap::

    for batch in loader:                              # workers: decode -> source -> augment -> colour -> collate
                                                      #   <data.decode> <data.source> <data.colour> <data.loader>
        images = unpack(batch)                        # after the transfer: uint8 -> float, channels_last  <data.unpack>
        # <step> ----------------------------------------------------------------- training_step and backward
        predictions = network(images)                 # <step.network>  (.features, .heads)
        losses = objective(predictions, targets)      # <step.objective>  (.detection)
        backward(losses.total)                        # precision_plugin.backward
        clip                                          # <update.norm>  precision_plugin.clip_grad_by_norm
        write_scalars()                               # host: this step's learning rate and decay, for the device
        # <update> --------------------------------------------------------------- MuSGD.update, in optimizer.step
        updates = prepare(group)                      # <update.prepare>  momentum, Nesterov, gains, decay
            orthogonalize(stacks)                     # <update.prepare.orthogonalize>  batched Newton-Schulz
        apply(updates)                                # parameters move by the current learning rate
        # <ema> ------------------------------------------------------------------
        ema.update()                                  # <ema>  the averaged copy follows
        count, schedule, log every n                  # host bookkeeping: never a seam

A seam's body is device work only: what replays it runs nothing else, so a counter or a ``self.log`` inside one would
silently stop. Host bookkeeping is the line after it. Values that change from step to step enter as 0-d device tensors,
written by the owner's ``write_scalars`` just before.

Claims live in a table beside the objects, keyed weakly, and never inside them: what sits in ``__dict__`` follows
``copy.deepcopy`` into the averaged copy and into pickles. Two claims conflict when one dotted path is the other or a
prefix of it; the second is refused, never ordered.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

__all__ = ["SEAMS", "Claim", "SeamConflict", "claim", "seam"]

Self = TypeVar("Self")
P = ParamSpec("P")
R = TypeVar("R")

#: Every seam and its one binding. Bindings outside this package are Lightning's public touch points.
SEAMS: dict[str, str] = {
    "data.decode": "lucid_core.data.images:ImageReader.decode",
    "data.source": "lucid_core.data.source:SourceReader.source",
    "data.colour": "lucid_core.data.augment:Augmenter.colour",
    "data.loader": "lucid_core.data.loader:TrainLoader.batches",
    "data.unpack": "lucid_core.module:Detector.unpack",
    "step": "Strategy.training_step and PrecisionPlugin.backward",
    "step.network": "lucid_core.network.detector:Network.forward",
    "step.network.features": "lucid_core.network.detector:Network.features",
    "step.network.heads": "lucid_core.network.detector:Network.heads",
    "step.objective": "lucid_core.objective.objective:Objective.forward",
    "step.objective.detection": "lucid_core.objective.objective:Objective.detection",
    "update": "lucid_core.optim.musgd:MuSGD.update",
    "update.norm": "PrecisionPlugin.clip_grad_by_norm",
    "update.prepare": "lucid_core.optim.musgd:MuSGD.prepare",
    "update.prepare.orthogonalize": "lucid_core.optim.musgd:MuSGD.orthogonalize",
    "ema": "lucid_core.optim.ema:AveragedNetwork.update",
}


class SeamConflict(RuntimeError):
    """Two accelerations want the same part of the step."""


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The hold of one owner on one seam, until :meth:`release`.

    It keeps neither its scope nor its target alive; a replacement that refers to them does.
    """

    scope: ReferenceType[Any]
    path: str
    owner: str
    target: ReferenceType[Any] | None
    replacement: Callable[..., Any] | None

    def release(self) -> None:
        """Give the seam back. May be called twice."""
        for table, reference in ((_held, self.scope), (_bound, self.target)):
            holder = None if reference is None else reference()
            if holder is not None and table.get(holder, {}).get(self.path) is self:
                del table[holder][self.path]


_held: WeakKeyDictionary[Any, dict[str, Claim]] = WeakKeyDictionary()
_bound: WeakKeyDictionary[Any, dict[str, Claim]] = WeakKeyDictionary()


def seam(path: str) -> Callable[[Callable[Concatenate[Self, P], R]], Callable[Concatenate[Self, P], R]]:
    """Mark a method as the binding of the seam ``path``.

    An unclaimed call costs one dictionary look-up. A claimed one runs ``replacement(native, *args, **kwargs)``, where
    ``native`` is the method bound to its object.
    """

    def mark(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
        def call(self: Self, /, *args: P.args, **kwargs: P.kwargs) -> R:
            taken = _bound.get(self, {}).get(path) if _bound else None
            if taken is None or taken.replacement is None:
                return method(self, *args, **kwargs)
            result: R = taken.replacement(functools.partial(method, self), *args, **kwargs)
            return result

        call.__seam__ = path  # type: ignore[attr-defined]
        functools.update_wrapper(call, method)
        return call

    return mark


def claim(
    scope: object,
    path: str,
    owner: str,
    target: object | None = None,
    replacement: Callable[..., Any] | None = None,
) -> Claim:
    """Take the seam ``path`` for ``owner`` within ``scope``.

    Args:
        scope: The object within which claims exclude each other: the run's LightningModule.
        path: A key of :data:`SEAMS`.
        owner: Name of the acceleration, for messages.
        target: The object whose method is the binding; ``None`` reserves the path alone (touch points of Lightning).
        replacement: Called instead of the method, as ``replacement(native, *args, **kwargs)``; goes with ``target``.

    Raises:
        KeyError: No such seam.
        TypeError: ``target`` has no method that is this seam, or one of ``target`` and ``replacement`` is missing.
        SeamConflict: The path, a prefix of it or an extension of it is held by another owner.
    """
    if path not in SEAMS:
        raise KeyError(f"no seam is called {path!r}; seams are {', '.join(SEAMS)}")
    if (target is None) is not (replacement is None):
        raise TypeError(f"{owner} claims {path} with only one of target and replacement: give both, or neither")
    methods = [] if target is None else [getattr(type(target), name, None) for name in dir(type(target))]
    if target is not None and path not in [getattr(method, "__seam__", None) for method in methods]:
        raise TypeError(f"{owner} claims {path}, which is {SEAMS[path]}, on a {type(target).__name__}")
    held = _held.setdefault(scope, {})
    for other in held.values():
        if path == other.path or path.startswith(other.path + ".") or other.path.startswith(path + "."):
            raise SeamConflict(
                f"{owner} wants {path}, and {other.owner} holds {other.path}: one part of the step has one owner. "
                f"Name only one of the two."
            )
    taken = Claim(ref(scope), path, owner, None if target is None else ref(target), replacement)
    held[path] = taken
    if target is not None:
        _bound.setdefault(target, {})[path] = taken
    return taken

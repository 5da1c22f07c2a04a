"""What recorded work relies on in a module, noted once and compared at every step."""

from __future__ import annotations

from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from lucid_accel.reasons import Reason

__all__ = ["Certificate", "Change"]

Change = tuple[Reason, str]

_INTERNAL = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Modules of up to this many parts are compared whole at every step.
_SMALL = 16

_training = attrgetter("training")
_requires_grad = attrgetter("requires_grad")
_data_ptr = Tensor.data_ptr


class Certificate:
    """The state of ``module`` as Python sees it: parts, addresses, modes, hooks, plain attributes.

    Args:
        module: The recorded part.

    Attributes:
        trained: The part as a whole is in training mode.
    """

    def __init__(self, module: nn.Module) -> None:
        self.trained = module.training
        self._names = {id(part): name for name, part in module.named_modules()}
        self._modules = list(module.modules())
        self._small = len(self._modules) <= _SMALL
        self._child_tables = [part._modules for part in self._modules]
        self._tensor_tables = [table for part in self._modules for table in (part._parameters, part._buffers)]
        self._hook_tables = [getattr(part, hook) for part in self._modules for hook in _HOOKS]
        self._children = _values(self._child_tables)
        self._held = _values(self._tensor_tables)
        self._tensors = [x for x in self._held if x is not None]
        self._pointers = list(map(_data_ptr, self._tensors))
        self._layouts = [(x.shape, x.stride(), x.dtype) for x in self._tensors]
        self._training = list(map(_training, self._modules))
        self._trainable = list(map(_requires_grad, self._tensors))
        self._spaces = [vars(part) for part in self._modules]
        self._sizes = list(map(len, self._spaces))
        self._places = [(space, name) for space in self._spaces for name in space if name not in _INTERNAL]
        self._settings = [space[name] for space, name in self._places]
        self._forwards = self._find_forwards()
        self._prints = [fingerprint(value) for value in self._settings]

    def change(self) -> Change | None:
        """Compare what costs little: returns what differs first, ``None`` if nothing does."""
        children, held = _values(self._child_tables), _values(self._tensor_tables)
        if not _same(children, self._children):
            return Reason.STRUCTURE, "a part of it was exchanged"
        if not _same(held, self._held) or list(map(_data_ptr, self._tensors)) != self._pointers:
            return Reason.STORAGE, "a parameter or buffer of it was exchanged or moved"
        if any(self._hook_tables) or _has_any_global_hook():  # type: ignore[no-untyped-call]
            return Reason.HOOKS, "a hook was registered, which a replay would not call"
        if list(map(_training, self._modules)) != self._training:
            return Reason.MODE, "a part of it was switched between training and evaluation"
        if list(map(_requires_grad, self._tensors)) != self._trainable:
            return Reason.FREEZE, "the set of trainable parameters changed"
        if list(map(len, self._spaces)) != self._sizes or not all(
            space.get(name, self) is value for (space, name), value in zip(self._places, self._settings, strict=True)
        ):
            return self._changed_setting()
        return self.whole_change() if self._small else None

    def whole_change(self) -> Change | None:
        """Compare everything, also what is inside attributes."""
        if self._find_forwards() != self._forwards:
            return Reason.STRUCTURE, "the forward of a part of it was exchanged"
        if [(x.shape, x.stride(), x.dtype) for x in self._tensors] != self._layouts:
            return Reason.STORAGE, "a parameter or buffer of it changed its layout"
        return self._changed_setting()

    def _changed_setting(self) -> Change | None:
        """Tell the first attribute whose value differs; one that was merely set again to the same value does not."""
        places = [(space, name) for space in self._spaces for name in space if name not in _INTERNAL]
        prints = [fingerprint(space[name]) for space, name in places]
        if [(id(space), name) for space, name in places] != [(id(space), name) for space, name in self._places]:
            return Reason.SCALARS, "an attribute came or went"
        for (space, name), old, new in zip(places, self._prints, prints, strict=True):
            if old != new:
                owner = next(part for part in self._modules if vars(part) is space)
                where = self._names[id(owner)]
                return Reason.SCALARS, f"the attribute {f'{where}.{name}' if where else name} changed"
        self._sizes = list(map(len, self._spaces))
        self._settings = [space[name] for space, name in self._places]
        return None

    def _find_forwards(self) -> list[Any]:
        return [(type(part).forward, vars(part).get("forward")) for part in self._modules[1:]]


def fingerprint(value: Any, depth: int = 4) -> Any:
    """Return something that compares unequal when the plain values in ``value`` differ, in type or in a bit."""
    if value is None or isinstance(value, bool | int | str | bytes | torch.dtype | torch.device):
        return type(value), value
    if isinstance(value, float | complex):
        return type(value), repr(value)
    if isinstance(value, Tensor):
        return id(value), value.data_ptr()
    if depth == 0 or isinstance(value, nn.Module | type):
        return id(value)
    if isinstance(value, dict):
        return type(value), [(fingerprint(k, depth - 1), fingerprint(v, depth - 1)) for k, v in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), [fingerprint(item, depth - 1) for item in value]
    return id(value), fingerprint(getattr(value, "__dict__", None), depth - 1)


def _values(tables: list[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(table.values() for table in tables))


def _same(now: list[Any], then: list[Any]) -> bool:
    """Compare by identity: comparing tensors with ``==`` would launch device work."""
    return len(now) == len(then) and all(map(is_, now, then))

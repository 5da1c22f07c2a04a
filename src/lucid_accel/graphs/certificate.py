"""What recorded work relies on in a module, noted once and compared at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._pytree import tree_leaves

from lucid_accel.graphs.fingerprint import fingerprint, is_plain
from lucid_accel.reasons import Reason

__all__ = ["HOOKS", "Certificate", "Change"]

Change = tuple[Reason, str]

_BASES = frozenset(nn.Module.__mro__)
_INTERNAL = frozenset(vars(nn.Module()))
#: Tables of hooks that a module calls in the middle of what it does.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
#: Modules of up to this many parts are compared whole at every step.
_SMALL = 16

_training = attrgetter("training")
_requires_grad = attrgetter("requires_grad")
_data_ptr = Tensor.data_ptr


class Certificate:
    """The state of ``module`` as Python sees it: parts, addresses, modes, hooks, plain attributes.

    Args:
        module: The recorded part.
        matters: Whether recorded work could read an attribute of this name that ``module`` itself has.

    Attributes:
        trained: The part as a whole is in training mode.
    """

    def __init__(self, module: nn.Module, matters: Callable[[str], bool] = lambda name: True) -> None:
        self.trained = module.training
        self._matters = matters
        self._names = {id(part): name for name, part in module.named_modules()}
        self._modules = list(module.modules())
        self._small = len(self._modules) <= _SMALL
        children: list[dict[str, Any]] = [part._modules for part in self._modules]
        tensors: list[dict[str, Any]] = [table for x in self._modules for table in (x._parameters, x._buffers)]
        # Views follow what happens to their tables, and one pass over many is a loop in C. Most tables are empty.
        self._child_views = [table.values() for table in children if table]
        self._tensor_views = [table.values() for table in tensors if table]
        self._empty_children = [table for table in children if not table]
        self._empty_tensors = [table for table in tensors if not table]
        self._hook_tables = [getattr(part, hook) for part in self._modules for hook in HOOKS]
        self._children = _flat(self._child_views)
        self._held = _flat(self._tensor_views)
        self._tensors = [x for x in self._held if x is not None]
        self._pointers = list(map(_data_ptr, self._tensors))
        self._parameters = [x for x in self._tensors if isinstance(x, nn.Parameter)]
        self._layouts = self._find_layouts()
        self._training = list(map(_training, self._modules))
        self._trainable = list(map(_requires_grad, self._parameters))
        self._spaces = [vars(part) for part in self._modules]
        self._places = self._find_places()
        self._holders = [space for space, _ in self._places]
        self._keys = [name for _, name in self._places]
        self._note_settings()
        self._forwards = self._find_forwards()
        self._prints = [fingerprint(value) for value in self._settings]

    def change(self) -> Change | None:
        """Compare what costs little: returns what differs first, ``None`` if nothing does."""
        if any(self._empty_children) or not _same(_flat(self._child_views), self._children):
            return Reason.STRUCTURE, "a part of it was exchanged"
        if any(self._empty_tensors) or not _same(_flat(self._tensor_views), self._held):
            return Reason.STORAGE, "a parameter or buffer of it was exchanged"
        if list(map(_data_ptr, self._tensors)) != self._pointers:
            return Reason.STORAGE, "a parameter or buffer of it was moved"
        if any(self._hook_tables) or _has_any_global_hook():  # type: ignore[no-untyped-call]
            return Reason.HOOKS, "a hook was registered, which a replay would not call"
        if list(map(_training, self._modules)) != self._training:
            return Reason.MODE, "a part of it was switched between training and evaluation"
        if list(map(_requires_grad, self._parameters)) != self._trainable:
            return Reason.FREEZE, "the set of trainable parameters changed"
        # Absent attributes read as None, so that the sizes have to agree too.
        if list(map(len, self._spaces)) != self._sizes or not all(
            map(is_, map(dict.get, self._holders, self._keys), self._settings)
        ):
            return self._changed_setting()
        return self.whole_change() if self._small else None

    def whole_change(self) -> Change | None:
        """Compare everything, also what is inside attributes."""
        if self._find_forwards() != self._forwards:
            return Reason.STRUCTURE, "the forward of a part of it was exchanged, or an attribute of its class"
        if self._find_layouts() != self._layouts:
            return Reason.STORAGE, "a parameter or buffer of it changed its layout"
        if any(fingerprint(self._settings[index]) != self._prints[index] for index in self._deep):
            return self._changed_setting()
        same = list(map(len, self._spaces)) == self._sizes
        return None if same and _same(self._values(), self._settings) else self._changed_setting()

    def versions(self) -> list[int]:
        """Return how often each parameter was written, and each tensor in an attribute; buffers may be written."""
        loose = tree_leaves([self._settings[index] for index in self._deep])
        return [x._version for x in [*self._parameters, *loose] if isinstance(x, Tensor) and not x.is_inference()]

    def _changed_setting(self) -> Change | None:
        """Tell the first attribute whose value differs; one that was merely set again to the same value does not."""
        places = self._find_places()
        if [(id(space), name) for space, name in places] != [(id(space), name) for space, name in self._places]:
            return Reason.SCALARS, "an attribute came or went"
        for (space, name), old in zip(places, self._prints, strict=True):
            if old != fingerprint(space[name]):
                owner = next(part for part in self._modules if vars(part) is space)
                where = self._names[id(owner)]
                return Reason.SCALARS, f"the attribute {f'{where}.{name}' if where else name} changed"
        self._note_settings()
        return None

    def _note_settings(self) -> None:
        self._sizes = list(map(len, self._spaces))
        self._settings = self._values()
        self._deep = [index for index, value in enumerate(self._settings) if not is_plain(value)]

    def _values(self) -> list[Any]:
        return list(map(dict.get, self._holders, self._keys))

    def _find_places(self) -> list[tuple[dict[str, Any], str]]:
        whole, *parts = self._spaces
        own = [(whole, name) for name in whole if name not in _INTERNAL and self._matters(name)]
        return own + [(space, name) for space in parts for name in space if name not in _INTERNAL]

    def _find_layouts(self) -> list[Any]:
        return [(x.shape, x.stride(), x.dtype, x.requires_grad) for x in self._tensors]

    def _find_forwards(self) -> list[Any]:
        # That of the part itself may be the one that routes to the recording.
        own = [
            (type(part).forward, part is not self._modules[0] and vars(part).get("forward")) for part in self._modules
        ]
        bases = {base: None for part in self._modules for base in type(part).__mro__ if base not in _BASES}
        named = [(name, value) for base in bases for name, value in vars(base).items() if not name.startswith("__")]
        return [*own, *((name, fingerprint(value) if is_plain(value) else id(value)) for name, value in named)]


def _flat(views: Iterable[Iterable[Any]]) -> list[Any]:
    return list(chain.from_iterable(views))


def _same(now: list[Any], then: list[Any]) -> bool:
    """Compare by identity: comparing tensors with ``==`` would launch device work."""
    return len(now) == len(then) and all(map(is_, now, then))

"""Whether a plain Python value is what it was."""

from __future__ import annotations

import functools
import pickle
import random
import types
from collections import deque
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["fingerprint", "is_plain"]

_LONG = 256
_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, Enum, *_TORCH)


def is_plain(value: Any) -> bool:
    """Whether ``value`` can only be replaced, never changed in place: a number, a string, or a tuple of these."""
    return isinstance(value, _PLAIN) or (type(value) in (tuple, torch.Size) and all(map(is_plain, value)))


def fingerprint(value: Any, depth: int = 4) -> Any:
    """Return something that compares unequal when the values in ``value`` differ, in type or in a bit.

    Tensors differ by identity and address, since what is read from the device is read at every replay; one on the CPU
    also differs when it was written, since a number that a kernel takes from there is frozen. Containers of more than
    256 items, such as a vocabulary, are known by identity and length alone.
    """
    if isinstance(value, float | complex):
        return type(value), repr(value)
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, Tensor):
        written = value._version if value.is_cpu and not value.is_inference() else 0
        address = (value.data_ptr(), value.stride()) if value.layout is torch.strided else 0
        return id(value), address, value.dtype, value.shape, written
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if (state := _drawn(value)) is not None:
        return id(value), pickle.dumps(state)
    if depth == 0 or isinstance(value, nn.Module | type):
        return id(value)
    if isinstance(value, types.MethodType):
        return type(value), id(value.__func__), fingerprint(value.__self__, depth - 1)
    if isinstance(value, types.FunctionType):
        cells = [fingerprint(cell.cell_contents, depth - 1) for cell in value.__closure__ or () if _is_filled(cell)]
        return id(value), cells, fingerprint(vars(value), depth - 1)
    if isinstance(value, functools.partial):
        return type(value), [fingerprint(x, depth - 1) for x in (value.func, value.args, value.keywords)]
    if isinstance(value, dict | list | tuple | set | frozenset | deque) and len(value) > _LONG:
        return id(value), len(value)
    if isinstance(value, dict):
        return type(value), [(fingerprint(k, depth - 1), fingerprint(v, depth - 1)) for k, v in value.items()]
    if isinstance(value, list | tuple | set | frozenset | deque):
        return type(value), [fingerprint(item, depth - 1) for item in value]
    slots = [name for kind in type(value).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    held = {name: getattr(value, name) for name in slots if name != "__dict__" and hasattr(value, name)}
    return id(value), fingerprint({**held, **getattr(value, "__dict__", {})}, depth - 1)


def _drawn(value: Any) -> Any:
    """The state of a random generator of the host, ``None`` for what is none."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, torch.Generator) and value.device.type == "cpu":
        return value.get_state().tolist()
    return None


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)

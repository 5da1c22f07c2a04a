"""What a recording may not read: what comes anew with each call and does not lie on the device."""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["Sealed"]


class Sealed:
    """Stands for a value among the arguments of a call while it is recorded. Whatever is done with it raises.

    ``isinstance`` alone answers as for the value, whose type belongs to the signature of the call.

    Args:
        what: The value, for the message.
        kind: Its type.
    """

    __slots__ = ("_kind", "_what")

    def __init__(self, what: str, kind: type) -> None:
        object.__setattr__(self, "_what", what)
        object.__setattr__(self, "_kind", kind)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "_kind") if name == "__class__" else _refuse(self)


def _refuse(sealed: Sealed, *_: Any) -> NoReturn:
    what = object.__getattribute__(sealed, "_what")
    raise TypeError(f"it reads {what}, which is no tensor on the device, so a recording would freeze it")


_READ = (
    "len iter next getitem contains bool int float complex index bytes str repr format hash eq ne lt le gt ge add radd "
    "sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod divmod rdivmod pow rpow matmul rmatmul and rand or "
    "ror xor rxor lshift rlshift rshift rrshift neg pos abs invert round trunc floor ceil enter exit call setattr "
    "delattr array fspath reduce_ex"
)
for _name in _READ.split():
    setattr(Sealed, f"__{_name}__", _refuse)

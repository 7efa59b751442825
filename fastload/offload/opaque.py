"""``Opaque``: stands for images whose transform is still to be done, and refuses to be computed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["Opaque"]

LATER = (
    "fl.offload does their transform on the device, later. Make this a step of the data set's transform, or give it to "
    "fl.offload(loader, transform=...)"
)
BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor")
OTHERS = ("lt", "le", "gt", "ge", "neg", "pos", "abs", "invert", "float", "int", "getitem", "setitem", "array")


class Opaque:
    """Has no operators and no attributes that images have; the errors say why.

    >>> Opaque() * 2
    Traceback (most recent call last):
        ...
    TypeError: __mul__ of images whose values are not there yet: fl.offload does ...
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(_told(name))


def _told(name: str) -> str:
    return f"{name} of images whose values are not there yet: {LATER}"


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise TypeError(_told(name))

    return refuse


for operator in (*BINARY, *(f"r{each}" for each in BINARY), *OTHERS):
    setattr(Opaque, f"__{operator}__", _refusing(f"__{operator}__"))

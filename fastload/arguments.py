"""Checks and conversions of arguments: a wrong type is a TypeError, a wrong value a ValueError, both name the argument.

NumPy's numbers are taken as Python's; ``True`` and ``False`` are no numbers, and NaN is out of every range.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import torch

__all__ = [
    "antialiased",
    "chosen",
    "device_of",
    "flag",
    "integer",
    "interpolation_name",
    "interval",
    "not_a_class",
    "not_in_place",
    "number",
    "numbers",
    "probability",
    "quoted",
    "resolved_device",
    "sides",
]

Choice = TypeVar("Choice")
LONGEST = 200  # characters of a value in an error


def quoted(value: Any) -> str:
    """A value for an error: as ``repr`` has it, unless that is long.

    >>> quoted("a"), quoted(torch.zeros(64, 3, 224, 224)), len(quoted("a" * 1000))
    ("'a'", 'Tensor torch.float32 (64, 3, 224, 224)', 203)
    """
    text = repr(value)
    if len(text) <= LONGEST:
        return text
    if isinstance(value, torch.Tensor | np.ndarray):
        return f"{type(value).__name__} {value.dtype} {tuple(value.shape)}"
    return f"{text[:LONGEST]}..."


def number(name: str, value: Any, least: float = -inf, most: float = inf) -> float:
    """A finite number from ``least`` to ``most``.

    >>> number("alpha", 1, least=0)
    1.0
    """
    if not _is_number(value):
        raise TypeError(f"{name} must be a number; got {quoted(value)}")
    if not (least <= value <= most and abs(value) < inf):
        allowed = f"from {least:g} to {most:g}" if most < inf else "finite" if least == -inf else f"at least {least:g}"
        raise ValueError(f"{name} must be {allowed}; got {quoted(value)}")
    return float(value)


def integer(name: str, value: Any, least: float = -inf, most: float = inf) -> int:
    """An integer from ``least`` to ``most``.

    >>> integer("num_ops", 2, least=1)
    2
    """
    if not _is_integer(value):
        raise TypeError(f"{name} must be an int; got {quoted(value)}")
    if not least <= value <= most:
        allowed = f"from {least} to {most}" if most < inf else f"of at least {least}"
        raise ValueError(f"{name} must be an int {allowed}; got {quoted(value)}")
    return int(value)


def probability(p: Any, name: str = "p") -> float:
    """A number from 0 to 1.

    >>> probability(0.5)
    0.5
    """
    if _is_number(p) and not 0 <= p <= 1:
        raise ValueError(f"{name} must be a probability in [0, 1]; got {quoted(p)}")
    return number(name, p)


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False; got {quoted(value)}")
    return value


def chosen(name: str, value: Choice, allowed: Iterable[Choice]) -> Choice:
    """One of ``allowed``.

    >>> chosen("on_error", "skip", ("raise", "skip"))
    'skip'
    """
    allowed = tuple(allowed)
    if not any(type(value) is type(each) and value == each for each in allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}; got {quoted(value)}")
    return value


def numbers(name: str, values: Any) -> list[float]:
    """Finite numbers, at least one: of a list, a tuple, an array or a tensor of one dimension.

    >>> numbers("mean", (0.5, 1))
    [0.5, 1.0]
    """
    listed = values.tolist() if hasattr(values, "tolist") else values
    if not _is_sequence(listed) or not listed or not all(map(_is_number, listed)):
        raise TypeError(f"{name} must be a sequence of numbers, one a channel; got {quoted(values)}")
    if not all(abs(value) < inf for value in listed):
        raise ValueError(f"{name} must have finite numbers; got {quoted(values)}")
    return [float(value) for value in listed]


def sides(name: str, size: Any) -> tuple[int, int]:
    """Height and width from an int, for a square, or from a sequence of one or two.

    >>> sides("size", 224)
    (224, 224)
    """
    given = [size] if _is_integer(size) else size
    if not _is_sequence(given) or not all(map(_is_integer, given)):
        raise TypeError(f"{name} must be an int, or (height, width) of two; got {quoted(size)}")
    if len(given) not in (1, 2) or not all(side > 0 for side in given):
        raise ValueError(f"{name} must be a positive int, or (height, width) of two; got {quoted(size)}")
    return int(given[0]), int(given[-1])


def interval(name: str, values: Any, least: float, most: float) -> tuple[float, float]:
    """A range (low, high) of random numbers, within ``least`` to ``most``.

    >>> interval("scale", (0.08, 1), 0, 1)
    (0.08, 1.0)
    """
    pair = values.tolist() if hasattr(values, "tolist") else values
    if not _is_sequence(pair) or len(pair) != len(("low", "high")) or not all(map(_is_number, pair)):
        raise TypeError(f"{name} must be two numbers (low, high); got {quoted(values)}")
    low, high = float(pair[0]), float(pair[1])
    if not (least <= low <= high <= most and high < inf):
        raise ValueError(f"{name} must be (low, high) with {least:g} <= low <= high <= {most:g}; got {quoted(values)}")
    return low, high


def interpolation_name(interpolation: Any, allowed: tuple[str, ...]) -> str:
    """The name of an interpolation, given as a name or as torchvision's ``InterpolationMode``.

    >>> interpolation_name("bicubic", ("bilinear", "bicubic"))
    'bicubic'
    """
    name = getattr(interpolation, "value", interpolation)
    if name not in allowed:
        raise ValueError(f"interpolation must be one of {', '.join(map(repr, allowed))}; got {quoted(interpolation)}")
    return str(name)


def device_of(device: Any) -> torch.device:
    """A device, from what ``torch.device`` takes.

    >>> device_of("cpu")
    device(type='cpu')
    """
    if not isinstance(device, torch.device | str | int) or isinstance(device, bool):
        raise TypeError(f"device must be a torch.device, its name such as 'cuda:0', or an index; got {quoted(device)}")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device must be one that PyTorch knows, such as 'cuda:0'; got {quoted(device)}") from error


def not_a_class(rule: str, value: Any) -> None:
    """Refuse a class, which is callable, where its instance is meant."""
    if isinstance(value, type):
        raise TypeError(f"{rule}; got the class {value.__name__}: write {value.__name__}()")


def antialiased(antialias: Any) -> None:
    """Refuse torchvision's ``antialias`` unless it is True, or None, which is True for tensors."""
    if antialias is not True and antialias is not None:
        raise ValueError(f"antialias must be True: images that shrink are always filtered; got {quoted(antialias)}")


def not_in_place(inplace: Any) -> None:
    """Refuse torchvision's ``inplace`` unless it is False."""
    if inplace is not False:
        raise ValueError(f"inplace must be False: the result is a new tensor; got {quoted(inplace)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_sequence(values: Any) -> bool:
    return isinstance(values, Sequence) and not isinstance(values, str | bytes)


def resolved_device(device: torch.device | str | int | None) -> torch.device:
    """The device with its index, as tensors on it name it."""
    here = torch.accelerator.current_accelerator(check_available=True)
    wanted = device_of(device) if device is not None else here or torch.device("cpu")
    if wanted.type == "cpu":
        return torch.device("cpu")
    if here is None or wanted.type != here.type:
        raise ValueError(
            f"device must be one that this machine has: cpu{f' or {here.type}' if here else ''}; got {quoted(device)}"
        )
    if wanted.index is None:
        return torch.device(wanted.type, torch.accelerator.current_device_index())
    return wanted

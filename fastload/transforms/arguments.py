"""Checks and conversions of the arguments of transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["interpolation_name", "interval", "probability", "sides"]


def probability(p: float, name: str = "p") -> float:
    """Return ``p`` if it is a probability.

    >>> probability(0.5)
    0.5
    """
    if not 0 <= p <= 1:
        raise ValueError(f"{name} must be a probability in [0, 1]; got {p}")
    return p


def sides(name: str, size: int | Sequence[int]) -> tuple[int, int]:
    """Height and width from an int, for a square, or from a sequence of one or two.

    >>> sides("size", 224)
    (224, 224)
    """
    given = [size] if isinstance(size, int) else list(size)
    if len(given) not in (1, 2) or not all(isinstance(side, int) and side > 0 for side in given):
        raise ValueError(f"{name} must be a positive int, or (height, width) of two; got {size!r}")
    return given[0], given[-1]


def interval(name: str, values: Sequence[float], least: float, most: float) -> tuple[float, float]:
    """A range (low, high) of random numbers, within ``least`` to ``most``.

    >>> interval("scale", (0.08, 1), 0, 1)
    (0.08, 1.0)
    """
    if not isinstance(values, Sequence) or len(values) != len(("low", "high")):
        raise TypeError(f"{name} must be two numbers (low, high); got {values!r}")
    low, high = float(values[0]), float(values[1])
    if not least <= low <= high <= most:
        raise ValueError(f"{name} must be (low, high) with {least:g} <= low <= high <= {most:g}; got {values!r}")
    return low, high


def interpolation_name(interpolation: Any, allowed: tuple[str, ...]) -> str:
    """The name of an interpolation, given as a name or as torchvision's ``InterpolationMode``.

    >>> interpolation_name("bicubic", ("bilinear", "bicubic"))
    'bicubic'
    """
    name = getattr(interpolation, "value", interpolation)
    if name not in allowed:
        raise ValueError(f"interpolation must be one of {allowed}; got {interpolation!r}")
    return str(name)

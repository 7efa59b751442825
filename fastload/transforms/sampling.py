"""Random boxes: what RandomResizedCrop keeps, and RandomErasing overwrites.

They are drawn in NumPy: PyTorch lets go of the interpreter's lock in every operation, however small, and waits for it
again beside the thread that trains (docs/decoding.md).
"""

from __future__ import annotations

from math import log
from typing import TypeVar

import numpy as np
import torch

__all__ = ["ATTEMPTS", "between", "corners", "draw_sides", "first"]

ATTEMPTS = 10  # as torchvision: boxes that are drawn before none is taken to fit
Numbers = TypeVar("Numbers", np.ndarray, torch.Tensor)


def between(numbers: Numbers, low: float, high: float) -> Numbers:
    """Numbers uniform in [0, 1), spread over ``low`` to ``high``.

    >>> between(torch.tensor([0.0, 0.5]), 2, 4)
    tensor([2., 3.])
    """
    return low + (high - low) * numbers


def draw_sides(
    sizes: np.ndarray, numbers: np.ndarray, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """For each image the two sides of ``ATTEMPTS`` rectangles, int64 (N, ATTEMPTS), the first over the second a ratio.

    Their area is uniform over ``scale`` as a share of the image's, their ratio log-uniform over ``ratio``. ``numbers``:
    (N, 2 * ATTEMPTS), uniform in [0, 1).
    """
    area = sizes.prod(1, keepdims=True, dtype=np.float64) * between(numbers[:, :ATTEMPTS], *scale)
    aspect = np.exp(between(numbers[:, ATTEMPTS:], log(ratio[0]), log(ratio[1])))
    return _rounded(np.sqrt(area * aspect)), _rounded(np.sqrt(area / aspect))


def first(accepted: np.ndarray, *values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What each of ``values``, (N, ATTEMPTS), is at the first accepted attempt, as columns, and whether there is one.

    >>> first(np.array([[False, True]]), np.array([[3, 4]]), np.array([[5, 6]]))
    (array([[4, 6]]), array([[ True]]))
    """
    rows, attempt = np.arange(len(accepted)), accepted.argmax(1)
    return np.stack([value[rows, attempt] for value in values], axis=1), accepted[rows, attempt, None]


def corners(numbers: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 to ``room``, both included, each as likely.

    >>> corners(np.array([0.0, 0.999]), np.array([2, 2]))
    array([0, 2])
    """
    places: np.ndarray = (numbers * (room + 1)).astype(np.int64)
    return places


def _rounded(values: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.rint(values).astype(np.int64)
    return rounded

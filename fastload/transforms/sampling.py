"""Random boxes, which RandomResizedCrop keeps and RandomErasing overwrites.

They are drawn in NumPy. Each PyTorch operation, however small, releases the interpreter's lock and then waits for the
training thread to release it (docs/notes/python-per-batch.md).
"""

from __future__ import annotations

from math import log
from typing import TypeVar

import numpy as np
import torch

__all__ = ["ATTEMPTS", "SMALLEST_RATIO", "between", "corners", "draw_sides", "first_accepted"]

ATTEMPTS = 10  # boxes drawn for each image, as torchvision: the first that fits is used
SMALLEST_RATIO = 1e-6  # of a box's sides; a smaller one is refused as a mistake
Numbers = TypeVar("Numbers", np.ndarray, torch.Tensor)


def between(numbers: Numbers, low: float, high: float) -> Numbers:
    """Map numbers from [0, 1) linearly to [``low``, ``high``).

    >>> between(torch.tensor([0.0, 0.5]), 2, 4)
    tensor([2., 3.])
    """
    return low + (high - low) * numbers


def draw_sides(
    sizes: np.ndarray, numbers: np.ndarray, scale: tuple[float, float], ratio: tuple[float, float]
) -> np.ndarray:
    """The two sides of ``ATTEMPTS`` random boxes for each image: whole numbers, float64 (2, ATTEMPTS, N).

    Args:
        sizes: height and width of the images, int64 (2, N).
        numbers: uniform in [0, 1), (2 * ATTEMPTS, N).
        scale: a box's area as a share of the image's is uniform over it.
        ratio: a box's first side over its second is log-uniform over it.
    """
    area = sizes[0] * sizes[1] * between(numbers[:ATTEMPTS], *scale)
    aspect = np.exp(between(numbers[ATTEMPTS:], log(ratio[0]), log(ratio[1])))
    sides = np.empty((2, *area.shape))
    np.multiply(area, aspect, out=sides[0])
    np.divide(area, aspect, out=sides[1])
    np.sqrt(sides, out=sides)
    return np.rint(sides, out=sides)


def first_accepted(accepted: np.ndarray, sides: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sides at the first accepted attempt, int64 (2, N), of (2, ATTEMPTS, N); and whether there is one, (N,).

    >>> first_accepted(np.array([[False], [True]]), np.array([[[3.0], [4.0]], [[5.0], [6.0]]]))
    (array([[4],
           [6]]), array([ True]))
    """
    images = accepted.shape[1]
    at = accepted.argmax(0) * images + np.arange(images)
    return sides.reshape(2, -1).take(at, axis=1).astype(np.int64), accepted.reshape(-1).take(at)


def corners(numbers: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Map numbers from [0, 1) to integers from 0 to ``room`` inclusive, each as likely.

    >>> corners(np.array([0.0, 0.999]), np.array([2, 2]))
    array([0, 2])
    """
    places: np.ndarray = (numbers * (room + 1)).astype(np.int64)
    return places

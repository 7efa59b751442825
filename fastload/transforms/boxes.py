"""Random boxes: what RandomResizedCrop keeps, and RandomErasing overwrites."""

from __future__ import annotations

from math import log

import torch

__all__ = ["ATTEMPTS", "between", "corners", "draw_sides", "first"]

ATTEMPTS = 10  # as torchvision: boxes that are drawn before none is taken to fit


def between(numbers: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Numbers uniform in [0, 1), spread over ``low`` to ``high``.

    >>> between(torch.tensor([0.0, 0.5]), 2, 4)
    tensor([2., 3.])
    """
    return low + (high - low) * numbers


def draw_sides(
    sizes: torch.Tensor, numbers: torch.Tensor, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """For each image the two sides of ``ATTEMPTS`` rectangles, int64 (N, ATTEMPTS), the first over the second a ratio.

    Their area is uniform over ``scale`` as a share of the image's, their ratio log-uniform over ``ratio``. ``numbers``:
    (N, 2 * ATTEMPTS), uniform in [0, 1).
    """
    area = sizes.double().prod(1, keepdim=True) * between(numbers[:, :ATTEMPTS], *scale)
    aspect = between(numbers[:, ATTEMPTS:], log(ratio[0]), log(ratio[1])).exp()
    return (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()


def first(accepted: torch.Tensor, *values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What each of ``values``, (N, ATTEMPTS), is at the first accepted attempt, as columns, and whether there is one.

    >>> first(torch.tensor([[False, True]]), torch.tensor([[3, 4]]), torch.tensor([[5, 6]]))
    (tensor([[4, 6]]), tensor([[True]]))
    """
    index = accepted.int().argmax(1, keepdim=True)
    return torch.cat([value.gather(1, index) for value in values], dim=1), accepted.any(1, keepdim=True)


def corners(numbers: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Whole numbers from 0 to ``room``, both included, each as likely.

    >>> corners(torch.tensor([0.0, 0.999]), torch.tensor([2, 2]))
    tensor([0, 2])
    """
    return (numbers * (room + 1)).floor().long()

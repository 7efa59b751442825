"""The batches in host memory that ``transfer`` brings to the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["HOST_BATCHES", "TransferSize"]


@dataclass(frozen=True)
class TransferSize:
    """How large images are, and so many batches that none is still in a cache when it is sent again."""

    height: int
    width: int
    images: int  # of a classification batch
    side: int
    batches: int
    calls: int


def _maskrcnn(size: TransferSize, generator: torch.Generator) -> Any:
    """16 images and their targets as COCO has them: 112 tensors, 1 to 14 objects an image."""

    def bytes_(*shape: int, most: int = 256) -> torch.Tensor:
        return torch.randint(0, most, shape, dtype=torch.uint8, generator=generator)

    images, targets = [], []
    for number in range(16):
        height, width, objects = size.height - number, size.width - 2 * number, 1 + number * 7 % 14
        images.append(bytes_(3, height, width))
        targets.append(
            {
                "boxes": torch.rand(objects, 4, generator=generator),
                "labels": torch.randint(1, 91, (objects,), generator=generator),
                "masks": bytes_(objects, height, width, most=2),
                "area": torch.rand(objects, generator=generator),
                "iscrowd": torch.zeros(objects, dtype=torch.int64),
                "image_id": torch.tensor([number]),
            }
        )
    return images, targets


def _classification(size: TransferSize, generator: torch.Generator) -> Any:
    shape = (size.images, 3, size.side, size.side)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 1000, (size.images,), generator=generator)


def _dict_of_100(_: TransferSize, generator: torch.Generator) -> Any:
    """100 small tensors of three dtypes, 4 bytes to 8 kB."""
    dtypes = (torch.float32, torch.int64, torch.bool)
    return {
        f"field_{number}": torch.rand(1 + number % 8, (number * 37) % 128, generator=generator).to(dtypes[number % 3])
        for number in range(100)
    }


HOST_BATCHES: dict[str, Callable[[TransferSize, torch.Generator], Any]] = {
    "maskrcnn_b16": _maskrcnn,
    "classification_b256": _classification,
    "dict_of_100": _dict_of_100,
}

"""The resize that detection begins with, as each subject of ``kernels`` does it.

Each function returns one of ``DetectionImages``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms import v2

from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.detection_images import DetectionImages, Images
from fastload.bench.subjects.kernel_case import OUT

__all__ = ["RESIZERS", "Resizer"]

Resizer = Callable[[DetectionImages], Images]


def fastload(bounds: tuple[int, int], _device: torch.device, memory_format: torch.memory_format) -> Resizer:
    short, longest = bounds
    transform = T.Compose(
        [
            T.Resize(short, max_size=longest),
            T.RandomHorizontalFlip(),
            T.Normalize(MEAN, STD, dtype=OUT, memory_format=memory_format),
        ]
    )
    return lambda given: transform(given.images, given.key)


def torchvision(_bounds: tuple[int, int], _device: torch.device, memory_format: torch.memory_format) -> Resizer:
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return lambda given: [_stored(normalize(image), memory_format) for image in given.resized()]


def kornia(_bounds: tuple[int, int], device: torch.device, memory_format: torch.memory_format) -> Resizer:
    """Resize image by image, as batches of one, since kornia's augmentations take images of one size."""
    from kornia import enhance, geometry  # noqa: PLC0415  (a peer that may be missing)

    mean, std = (torch.tensor(values, device=device) for values in (MEAN, STD))

    def resized(image: Tensor, size: list[int], flip: bool) -> Tensor:
        out = geometry.resize(image[None] / 255, (size[0], size[1]), antialias=True)
        out = enhance.normalize(geometry.hflip(out) if flip else out, mean, std)
        return _stored(out[0], memory_format)

    return lambda given: [resized(*each) for each in zip(given.images, given.sizes, given.flips, strict=True)]


def _stored(image: Tensor, memory_format: torch.memory_format) -> Tensor:
    return image[None].to(OUT, memory_format=memory_format)[0]


RESIZERS = {"fastload": fastload, "torchvision": torchvision, "kornia": kornia}

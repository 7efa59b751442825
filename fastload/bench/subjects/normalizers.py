"""A batch of uint8 images normalised and mirrored, as each subject of ``kernels`` does it.

Each function returns one of the images and of a mask of those to mirror, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torchvision.transforms import v2

from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.kernel_case import OUT
from fastload.kernels import flip_normalize

__all__ = ["ARITHMETIC", "NORMALIZERS", "Normalizer"]

Normalizer = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def fastload(_device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    return lambda images, flip: flip_normalize(images, MEAN, STD, flip, dtype=OUT, memory_format=memory_format)


def compiled(device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    mean, std = _channels(device)
    scale, bias = 1 / (255 * std), -mean / std
    expression = _compiled_expression()
    return lambda images, flip: expression(images, flip, scale, bias, memory_format)


def timm(device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    """Do as timm's ``PrefetchLoader`` does, then change the memory format as its training script does."""
    mean, std = (values.mul(255).to(OUT) for values in _channels(device))

    def normalize(images: torch.Tensor, _flip: torch.Tensor | None) -> torch.Tensor:
        return images.to(OUT).sub_(mean).div_(std).contiguous(memory_format=memory_format)

    return normalize


def torchvision(_device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    """Mirror by hand: ``RandomHorizontalFlip`` decides once for the whole batch."""
    to_normalized = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])

    def transform(images: torch.Tensor, flip: torch.Tensor | None) -> torch.Tensor:
        if flip is not None:
            images = torch.where(flip.view(-1, 1, 1, 1), v2.functional.horizontal_flip(images), images)
        out: torch.Tensor = to_normalized(images)
        return out.to(OUT, memory_format=memory_format)

    return transform


def kornia(device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    from kornia import augmentation  # noqa: PLC0415  (a peer that may be missing)

    mean, std = (255 * values.flatten() for values in _channels(device))
    mirror, normalize = augmentation.RandomHorizontalFlip(p=0.5), augmentation.Normalize(mean, std)

    def transform(images: torch.Tensor, flip: torch.Tensor | None) -> torch.Tensor:
        images = images.float()
        if flip is not None:
            chosen = {"batch_prob": flip.float(), "forward_input_shape": torch.tensor(images.shape)}
            images = mirror(images, params=chosen)
        out: torch.Tensor = normalize(images)
        return out.to(OUT, memory_format=memory_format)

    return transform


def _expression(
    images: torch.Tensor,
    flip: torch.Tensor | None,
    scale: torch.Tensor,
    bias: torch.Tensor,
    memory_format: torch.memory_format,
) -> torch.Tensor:
    if flip is not None:
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images)
    return (images * scale + bias).to(OUT, memory_format=memory_format)


@cache
def _compiled_expression() -> Callable[..., torch.Tensor]:
    return torch.compile(_expression, dynamic=False)


def _channels(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return mean, std


NORMALIZERS: dict[str, Callable[[torch.device, torch.memory_format], Normalizer]] = {
    "fastload": fastload,
    "compile": compiled,
    "timm": timm,
    "torchvision": torchvision,
    "kornia": kornia,
}
ARITHMETIC = {"timm": OUT}  # what a subject computes in; the others in float32

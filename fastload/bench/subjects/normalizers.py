"""The ways to make normalised floats of a batch of uint8 images: the first cases of ``kernels``.

Each builder returns a function of the images and, if some are to be mirrored, of which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torchvision.transforms import v2

from fastload.bench.harness.check import check_normalized
from fastload.bench.imagenet import MEAN, STD
from fastload.kernels import flip_normalize

__all__ = ["FLIP_NORMALIZE", "NORMALIZE", "NORMALIZERS", "OUT", "Normalizer"]

OUT = torch.bfloat16

Normalizer = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]


def fastload(_device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    return lambda images, flip: flip_normalize(images, MEAN, STD, flip, dtype=OUT, memory_format=memory_format)


def compiled(device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    mean, std = _channels(device)
    scale, bias = 1 / (255 * std), -mean / std
    expression = _compiled_expression()
    return lambda images, flip: expression(images, flip, scale, bias, memory_format)


def timm(device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    """Do the arithmetic of timm's ``PrefetchLoader``, then the layout change of its training script."""
    mean, std = (values.mul(255).to(OUT) for values in _channels(device))

    def normalize(images: torch.Tensor, _flip: torch.Tensor | None) -> torch.Tensor:
        return images.to(OUT).sub_(mean).div_(std).contiguous(memory_format=memory_format)

    return normalize


def torchvision(_device: torch.device, memory_format: torch.memory_format) -> Normalizer:
    """Choose by image around it: its own ``RandomHorizontalFlip`` decides once for the whole batch."""
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
ARITHMETIC = {"timm": OUT}  # of the others: float32


@dataclass(frozen=True)
class Batch:
    """Random images, since zeros can run faster, and which of them to mirror."""

    images: torch.Tensor
    flip: torch.Tensor | None


@dataclass(frozen=True)
class NormalizeCase:
    """Normalise a batch, with or without mirroring some of its images."""

    flips: bool

    @property
    def subjects(self) -> Sequence[str]:
        return tuple(name for name in NORMALIZERS if not (self.flips and name == "timm"))  # timm flips in its workers

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> Batch:
        torch.manual_seed(number)
        images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=device)
        return Batch(images, torch.randint(2, (batch,), device=device).bool() if self.flips else None)

    def build(
        self, name: str, _side: int, device: torch.device, memory_format: torch.memory_format
    ) -> Callable[[Batch], torch.Tensor]:
        normalizer = NORMALIZERS[name](device, memory_format)
        return lambda batch: normalizer(batch.images, batch.flip)

    def check(
        self, name: str, normalize: Callable[[Batch], torch.Tensor], batch: Batch, memory_format: torch.memory_format
    ) -> None:
        check_normalized(
            name,
            normalize(batch),
            batch.images,
            batch.flip,
            dtype=OUT,
            arithmetic=ARITHMETIC.get(name, torch.float32),
            memory_format=memory_format,
        )

    def bytes_to_move(self, batch: Batch) -> int:
        """Count what any implementation must read and write: a byte a value in, two out, and a byte a choice."""
        return batch.images.numel() * (1 + OUT.itemsize) + (0 if batch.flip is None else len(batch.flip))


NORMALIZE, FLIP_NORMALIZE = NormalizeCase(flips=False), NormalizeCase(flips=True)

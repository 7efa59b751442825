"""``Crops``: images of different sizes, and what the recipes of ``kernels`` do to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torchvision.transforms import v2

from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.harness.check import WrongValuesError
from fastload.bench.imagenet import MEAN, STD
from fastload.structure.ragged import Ragged

__all__ = [
    "CLASSES",
    "ERASED",
    "FULL_SIDE",
    "JITTER",
    "MIXUP_ALPHA",
    "Crops",
    "as_batch",
    "deit_transform",
    "random_images",
]

CLASSES = 1000
LONG_SIDE, SHORT_SIDE = (470, 530), (350, 400)  # those of the sample photographs
FULL_SIDE = 224  # of the crops cut from such images; smaller crops are cut from smaller images
PITCH = 16  # bytes; decoders align rows to it
JITTER = 0.3
ERASED = 0.25
MIXUP_ALPHA = 0.8


@dataclass(frozen=True)
class Crops:
    """Decoded images of different sizes in one block of memory, and the key of all random draws for them.

    Their bytes are random, since zeros can run faster; or they are ramps, on which filtering hardly matters.
    """

    images: Ragged
    side: int
    key: T.Key

    @classmethod
    def random(cls, batch: int, side: int, scale: float, device: torch.device, number: int) -> Crops:
        images = random_images(batch, (SHORT_SIDE, LONG_SIDE), scale, device, number)
        return cls(images, side, T.Key(seed=0, place=number * batch))

    def ramps(self) -> Crops:
        """Return the same crops of images that rise evenly from left to right, top to bottom, and diagonally."""
        return Crops(Ragged.of([_ramps(image) for image in self.images]), self.side, self.key)

    @cached_property
    def boxes(self) -> torch.Tensor:
        """The crops that fastload's transform draws and all use: top, left, height, width of each, (N, 4)."""
        boxes: torch.Tensor = T.RandomResizedCrop(self.side).sample(self.images.sizes, self.key.for_draw(0))
        return boxes

    @cached_property
    def flips(self) -> torch.Tensor:
        """Which images are mirrored, (N,), on the CPU."""
        flips: torch.Tensor = T.RandomHorizontalFlip().sample(self.images.sizes, self.key.for_draw(1))
        return flips

    def cropped(self) -> list[torch.Tensor]:
        """Return the images cropped, resized and mirrored one by one by torchvision, in their own dtype."""
        return [
            v2.functional.horizontal_flip(crop) if flip else crop
            for crop, flip in zip(
                map(self._resized, self.images, self.boxes.tolist()), self.flips.tolist(), strict=True
            )
        ]

    def exact(self) -> torch.Tensor:
        """Return what ``rrc_flip_normalize`` should give, in float32."""
        floats = Crops(Ragged.of([image / 255 for image in self.images]), self.side, self.key)
        normalized: torch.Tensor = v2.functional.normalize(torch.stack(floats.cropped()), MEAN, STD)
        return normalized

    @cached_property
    def reference_deit(self) -> torch.Tensor:
        """What fastload's reference on the CPU makes of ``deit_recipe``, in float32."""
        cpu = Ragged.of([image.cpu() for image in self.images])
        transform = deit_transform(self.side, torch.float32, torch.contiguous_format)
        return as_batch(transform(cpu, self.key)).to(self.images.device)

    def _resized(self, image: torch.Tensor, box: Sequence[int]) -> torch.Tensor:
        crop: torch.Tensor = v2.functional.resized_crop(image, *box, size=[self.side, self.side], antialias=True)
        return crop


def random_images(
    batch: int, sides: Sequence[tuple[int, int]], scale: float, device: torch.device, number: int
) -> Ragged:
    """Return images of random bytes in one block with aligned rows, as decoders do.

    ``sides`` are the bounds of heights and of widths, before ``scale``; ``number`` is the seed.
    """
    generator = torch.Generator().manual_seed(number)
    drawn = [torch.randint(low, high + 1, (batch,), generator=generator) for low, high in sides]
    sizes = (torch.stack(drawn, dim=1) * scale).long()
    pitches = -(-sizes[:, 1] // PITCH) * PITCH
    planes = sizes[:, 0] * pitches
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (3 * planes).cumsum(0)])
    block = torch.randint(0, 256, (int(starts[-1]),), dtype=torch.uint8, device=device)
    table = torch.stack(
        [block.data_ptr() + starts[:-1], sizes[:, 0], sizes[:, 1], planes, pitches, torch.ones_like(planes)], dim=1
    )
    return Ragged(block, table, 3)


def _ramps(image: torch.Tensor) -> torch.Tensor:
    _, height, width = image.shape
    y, x = (torch.linspace(0, 255, count, device=image.device) for count in (height, width))
    rows, columns = y[:, None].expand(height, width), x.expand(height, width)
    return torch.stack([columns, rows, (rows + columns) / 2]).round().to(torch.uint8)


def deit_transform(side: int, dtype: torch.dtype, memory_format: torch.memory_format) -> T.Compose:
    """Return fastload's transform for ``deit_recipe``."""
    return T.Compose(
        [
            T.RandomResizedCrop(side),
            T.RandomHorizontalFlip(),
            T.ColorJitter(JITTER, JITTER, JITTER),
            T.Normalize(MEAN, STD, dtype=dtype, memory_format=memory_format),
            T.RandomErasing(ERASED),
            T.MixUp(MIXUP_ALPHA, num_classes=CLASSES),
        ]
    )


def as_batch(images: object) -> torch.Tensor:
    """Return fastload's result, which must be one batch."""
    if not isinstance(images, torch.Tensor):
        raise WrongValuesError(f"fastload is wrong: it delivers a {type(images).__name__} of images, not one batch")
    return images

"""The resize that detection begins with, of images that stay of different sizes: the last case of ``kernels``.

Each builder returns a function of the photographs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torchvision.transforms import v2

from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.harness.check import WrongValuesError, check_close, check_form
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.normalizers import OUT
from fastload.bench.subjects.recipes import BYTES, FULL_SIDE, RESAMPLING, random_images
from fastload.structure.ragged import Ragged

__all__ = ["DETECTION_RESIZE", "DetectionResize", "Photographs"]

SHORT, LONGEST = 800, 1333  # what torchvision's detection models resize to
SIDES = (400, 500), (560, 640)  # COCO's, about: height, width
SHARE = 16  # a batch of classification holds so many times the images

Images = Tensor | Sequence[Tensor]  # a batch, if all happen to become of one size
Resizing = Callable[["Photographs"], Images]


@dataclass(frozen=True)
class Photographs:
    """Decoded images of different sizes, what to resize them to, and the key that says which are mirrored."""

    images: Ragged
    bounds: tuple[int, int]  # of the shorter side, and at most of the longer
    key: T.Key

    @cached_property
    def sizes(self) -> list[list[int]]:
        """What each image becomes: height and width."""
        short, longest = self.bounds
        sizes: list[list[int]] = T.Resize(short, max_size=longest).sample(self.images.sizes, self.key).tolist()
        return sizes

    @cached_property
    def flips(self) -> list[bool]:
        """Which images are mirrored."""
        flips: list[bool] = T.RandomHorizontalFlip().sample(self.images.sizes, self.key.for_draw(1)).tolist()
        return flips

    def exact(self) -> Images:
        """What everyone should deliver, in float32."""
        floats = Photographs(Ragged.of([image / 255 for image in self.images]), self.bounds, self.key)
        return [v2.functional.normalize(image, MEAN, STD) for image in _resized(floats)]


def fastload(bounds: tuple[int, int], _device: torch.device, memory_format: torch.memory_format) -> Resizing:
    short, longest = bounds
    transform = T.Compose(
        [
            T.Resize(short, max_size=longest),
            T.RandomHorizontalFlip(),
            T.Normalize(MEAN, STD, dtype=OUT, memory_format=memory_format),
        ]
    )
    return lambda photographs: transform(photographs.images, photographs.key)


def torchvision(_bounds: tuple[int, int], _device: torch.device, memory_format: torch.memory_format) -> Resizing:
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return lambda photographs: [_stored(normalize(image), memory_format) for image in _resized(photographs)]


def kornia(_bounds: tuple[int, int], device: torch.device, memory_format: torch.memory_format) -> Resizing:
    """Image by image, as batches of one: its augmentations are for images of one size."""
    from kornia import enhance, geometry  # noqa: PLC0415  (a peer that may be missing)

    mean, std = (torch.tensor(values, device=device) for values in (MEAN, STD))

    def resized(image: Tensor, size: list[int], flip: bool) -> Tensor:
        out = geometry.resize(image[None] / 255, (size[0], size[1]), antialias=True)
        out = enhance.normalize(geometry.hflip(out) if flip else out, mean, std)
        return _stored(out[0], memory_format)

    return lambda photographs: [
        resized(*each) for each in zip(photographs.images, photographs.sizes, photographs.flips, strict=True)
    ]


def _resized(photographs: Photographs) -> Images:
    """The images resized and mirrored one by one by torchvision, in the dtype that they have."""
    resized: Images = [
        v2.functional.resize(image, size, antialias=True)
        for image, size in zip(photographs.images, photographs.sizes, strict=True)
    ]
    return [
        v2.functional.horizontal_flip(image) if flip else image
        for image, flip in zip(resized, photographs.flips, strict=True)
    ]


def _stored(image: Tensor, memory_format: torch.memory_format) -> Tensor:
    return image[None].to(OUT, memory_format=memory_format)[0]


RESIZINGS = {"fastload": fastload, "torchvision": torchvision, "kornia": kornia}


@dataclass(frozen=True)
class DetectionResize:
    """Resized so that the shorter side is 800 and the longer at most 1333, some mirrored, normalised: a list."""

    subjects: Sequence[str] = tuple(RESIZINGS)

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> Photographs:
        batch = max(2, batch // SHARE)
        images = random_images(batch, SIDES, side / FULL_SIDE, device, number)
        return Photographs(images, _bounds(side), T.Key(seed=0, place=number * batch))

    def build(self, name: str, side: int, device: torch.device, memory_format: torch.memory_format) -> Resizing:
        return RESIZINGS[name](_bounds(side), device, memory_format)

    def check(self, name: str, resize: Resizing, photographs: Photographs, memory_format: torch.memory_format) -> None:
        out = resize(photographs)
        if len(out) != len(photographs.images):
            raise WrongValuesError(f"{name} is wrong: it delivers {len(out)} images of {len(photographs.images)}")
        for image, exact in zip(out, photographs.exact(), strict=True):
            check_form(name, image[None], (1, *exact.shape), OUT, memory_format)
            check_close(name, image, exact, RESAMPLING + (BYTES if name == "torchvision" else 0))

    def bytes_to_move(self, photographs: Photographs) -> int:
        """Count what any implementation must move: each source byte once, and two bytes a value out."""
        source = int(photographs.images.sizes.prod(1).sum())
        return 3 * (source + sum(height * width for height, width in photographs.sizes) * OUT.itemsize)


def _bounds(side: int) -> tuple[int, int]:
    return SHORT * side // FULL_SIDE, LONGEST * side // FULL_SIDE


DETECTION_RESIZE = DetectionResize()

"""The input stages that ``views`` compares: JPEG files to the ten views of DINO, endlessly.

Caron et al., "Emerging properties in self-supervised vision transformers" (2021): two large crops and eight small ones
of each image, in colours that are jittered, blurred and solarised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageFilter
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode

import fastload as fl
from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.loaders import DTYPE, LAYOUT
from fastload.bench.subjects.stages import endless_loader
from fastload.bench.subjects.workers import READING_WORKERS, decoding_workers

__all__ = ["LARGE_SCALE", "SMALL_SCALE", "STAGES_OF_VIEWS", "ViewFiles", "Views"]

Views = Generator[tuple[list[torch.Tensor], torch.Tensor], None, None]

LARGE_SCALE, SMALL_SCALE = (0.4, 1.0), (0.05, 0.4)  # of a crop's area
SIGMA = (0.1, 2.0)
BLUR = 13  # pixels: three times the largest sigma to each side
LARGE_BLURS, SMALL_BLUR, SOLARIZED = (1.0, 0.1), 0.5, 0.2  # probabilities
HALF = 128


@dataclass(frozen=True)
class ViewFiles:
    """JPEG files, and the views to make of them.

    Attributes:
        colours: whether colours are changed; without, a crop of a test chart tells where it is from.
        static: whether ``fastload`` delivers at fixed addresses.
    """

    root: Path
    batch: int
    device: torch.device
    large: int = 224
    small: int = 96
    smalls: int = 8
    colours: bool = True
    static: bool = False

    @property
    def sides(self) -> list[int]:
        """The side of each view, in pixels."""
        return [self.large] * 2 + [self.small] * self.smalls


class Blur:
    """Pillow's Gaussian blur with a random radius and a probability, as DINO's own code has it."""

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, image: Image.Image) -> Image.Image:
        if random.random() >= self.p:
            return image
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(*SIGMA)))


class Several:
    """The views of one image, made one after another."""

    def __init__(self, views: list[Callable[[Image.Image], torch.Tensor]]) -> None:
        self.views = views

    def __call__(self, image: Image.Image) -> list[torch.Tensor]:
        return [view(image) for view in self.views]


def workers(files: ViewFiles) -> Views:
    """Workers decode, and make all views with Pillow, as DINO's own code does."""

    def view(side: int, scale: tuple[float, float], blur: float, solarize: float = 0.0) -> v1.Compose:
        crop = v1.RandomResizedCrop(side, scale, interpolation=InterpolationMode.BICUBIC)
        colours = [
            v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            v1.RandomGrayscale(0.2),
            Blur(blur),
            v1.RandomSolarize(HALF, solarize),
        ]
        geometry = [crop, v1.RandomHorizontalFlip()]
        return v1.Compose([*geometry, *(colours if files.colours else []), v1.ToTensor(), v1.Normalize(MEAN, STD)])

    several = Several(
        [
            view(files.large, LARGE_SCALE, LARGE_BLURS[0]),
            view(files.large, LARGE_SCALE, LARGE_BLURS[1], SOLARIZED),
            *[view(files.small, SMALL_SCALE, SMALL_BLUR)] * files.smalls,
        ]
    )
    loader = endless_loader(datasets.ImageFolder(files.root, several), files.batch, decoding_workers(), files.device)
    for views, labels in loader:
        on_device = [view.to(files.device, non_blocking=True) for view in views]
        yield (
            [view.to(DTYPE, memory_format=LAYOUT) for view in on_device],
            labels.to(files.device, non_blocking=True),
        )


def fastload(files: ViewFiles) -> Views:
    """Workers only read files; each is decoded once, and its views are made on the device."""

    def view(side: int, scale: tuple[float, float], blur: float, solarize: float = 0.0) -> list[Any]:
        crop = T.RandomResizedCrop(side, scale, interpolation="bicubic")
        colours = [
            T.ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8),
            T.RandomGrayscale(0.2),
            T.RandomApply([T.GaussianBlur(BLUR, SIGMA)], blur),
            T.RandomSolarize(HALF, solarize),
        ]
        normalize = T.Normalize(MEAN, STD, dtype=DTYPE, memory_format=LAYOUT)
        return [crop, T.RandomHorizontalFlip(), *(colours if files.colours else []), normalize]

    views = T.MultiView(
        [
            view(files.large, LARGE_SCALE, LARGE_BLURS[0]),
            view(files.large, LARGE_SCALE, LARGE_BLURS[1], SOLARIZED),
            *[view(files.small, SMALL_SCALE, SMALL_BLUR)] * files.smalls,
        ]
    )
    loader = endless_loader(fl.data.ImageFolder(files.root), files.batch, READING_WORKERS, files.device, fl.collate)
    transform = T.Compose([T.DecodeJpeg(), views])
    with fl.PrefetchLoader(loader, transform=transform, device=files.device, static=files.static) as batches:
        yield from batches


STAGES_OF_VIEWS: dict[str, Callable[[ViewFiles], Views]] = {"workers": workers, "fastload": fastload}

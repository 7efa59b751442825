"""``DetectionResize``: the case of ``kernels`` whose images stay of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.harness.check import WrongValuesError, check_close, check_form
from fastload.bench.subjects.crops import FULL_SIDE, random_images
from fastload.bench.subjects.detection_images import DetectionImages
from fastload.bench.subjects.kernel_case import BYTES, OUT, RESAMPLING
from fastload.bench.subjects.resizers import RESIZERS, Resizer

__all__ = ["DETECTION_RESIZE", "DetectionResize"]

SHORT, LONGEST = 800, 1333  # what torchvision's detection models resize to
SIDES = (400, 500), (560, 640)  # bounds of heights and of widths, about COCO's
SHARE = 16  # a classification batch has so many times the images


@dataclass(frozen=True)
class DetectionResize:
    """Images are resized to a shorter side of 800, the longer at most 1333, some mirrored, and normalised."""

    subjects: Sequence[str] = tuple(RESIZERS)

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> DetectionImages:
        batch = max(2, batch // SHARE)
        images = random_images(batch, SIDES, side / FULL_SIDE, device, number)
        return DetectionImages(images, _bounds(side), T.Key(seed=0, place=number * batch))

    def build(self, name: str, side: int, device: torch.device, memory_format: torch.memory_format) -> Resizer:
        return RESIZERS[name](_bounds(side), device, memory_format)

    def check(self, name: str, resize: Resizer, given: DetectionImages, memory_format: torch.memory_format) -> None:
        out = resize(given)
        if len(out) != len(given.images):
            raise WrongValuesError(f"{name} is wrong: it delivers {len(out)} images of {len(given.images)}")
        for image, exact in zip(out, given.exact(), strict=True):
            check_form(name, image[None], (1, *exact.shape), OUT, memory_format)
            check_close(name, image, exact, RESAMPLING + (BYTES if name == "torchvision" else 0))

    def bytes_to_move(self, given: DetectionImages) -> int:
        """Each source byte is read once, and each value written once."""
        source = int(given.images.sizes.prod(1).sum())
        return 3 * (source + sum(height * width for height, width in given.sizes) * OUT.itemsize)


def _bounds(side: int) -> tuple[int, int]:
    return SHORT * side // FULL_SIDE, LONGEST * side // FULL_SIDE


DETECTION_RESIZE = DetectionResize()

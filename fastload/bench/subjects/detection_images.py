"""``DetectionImages``: images that stay of different sizes, and what they are resized to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor
from torchvision.transforms import v2

from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.imagenet import MEAN, STD
from fastload.structure.ragged import Ragged

__all__ = ["DetectionImages", "Images"]

Images = Tensor | Sequence[Tensor]  # a batch, if all happen to become of one size


@dataclass(frozen=True)
class DetectionImages:
    """Decoded images of different sizes, the bounds to resize them to, and the key that decides which are mirrored."""

    images: Ragged
    bounds: tuple[int, int]  # the shorter side, and the most of the longer
    key: T.Key

    @cached_property
    def sizes(self) -> list[list[int]]:
        """Each image's height and width after it is resized."""
        short, longest = self.bounds
        sizes: list[list[int]] = T.Resize(short, max_size=longest).sample(self.images.sizes, self.key).tolist()
        return sizes

    @cached_property
    def flips(self) -> list[bool]:
        """Which images are mirrored."""
        flips: list[bool] = T.RandomHorizontalFlip().sample(self.images.sizes, self.key.for_draw(1)).tolist()
        return flips

    def exact(self) -> Images:
        """Return what every subject should give, in float32."""
        floats = DetectionImages(Ragged.of([image / 255 for image in self.images]), self.bounds, self.key)
        return [v2.functional.normalize(image, MEAN, STD) for image in floats.resized()]

    def resized(self) -> Images:
        """Return the images resized and mirrored one by one by torchvision, in their own dtype."""
        resized: Images = [
            v2.functional.resize(image, size, antialias=True)
            for image, size in zip(self.images, self.sizes, strict=True)
        ]
        return [
            v2.functional.horizontal_flip(image) if flip else image
            for image, flip in zip(resized, self.flips, strict=True)
        ]

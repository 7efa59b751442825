"""A batch of images on its way through transforms: in whatever form they are, and what others have to follow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torchvision import tv_tensors

from fastload.data.encoded import EncodedImages
from fastload.structure.images import is_single
from fastload.structure.ragged import Ragged
from fastload.transforms.geometry import Movement, Pixels
from fastload.transforms.lazy import LazyImages

__all__ = ["Batch", "Images"]

Images = torch.Tensor | Sequence[torch.Tensor] | Ragged | EncodedImages

CHANNELS = (1, 3, 4)  # of images that are not told apart from rows of pixels otherwise


class Batch:
    """The images of a batch, and what became of them that labels and targets have to follow.

    Attributes:
        device: where files are decoded.
        moves: how their pixels moved, step by step.
        mixes: what mixes labels as their images were.
        kept: the samples that are left, int64 (M,); None for all.
        counts: how many images were decoded where, skipped, zeroed.
        is_decoded: whether what the first ``T.DecodeJpeg`` is to do has been done.
    """

    def __init__(self, images: Images, device: torch.device | None = None) -> None:
        self.images = _gathered(images)
        self.device = device or torch.accelerator.current_accelerator() or torch.device("cpu")
        self.moves: list[Movement] = []
        self.mixes: list[Callable[[torch.Tensor], torch.Tensor]] = []
        self.kept: torch.Tensor | None = None
        self.counts: dict[str, int] = {}
        self.is_decoded = False

    def __len__(self) -> int:
        """How many samples there are."""
        return 1 if isinstance(self.images, torch.Tensor) and is_single(self.images) else len(self.images)

    @property
    def is_empty(self) -> bool:
        """Whether all samples have been skipped, and nothing need be done."""
        return self.kept is not None and not len(self.kept)

    def result(self) -> torch.Tensor | list[torch.Tensor]:
        """The images; a list of them where they are of different sizes."""
        if self.is_empty:
            return []
        return list(self._pixels) if isinstance(self._pixels, Ragged) else self._pixels

    @contextmanager
    def work(self, *, channels: int | None = None, store: torch.dtype = torch.float32) -> Iterator[LazyImages]:
        """Record work on the images; it is done in the end.

        Args:
            channels: how many there are, where it is known: it tells (N, H, W, C) from (N, C, H, W).
            store: the dtype of values between passes.
        """
        images = self._pixels
        if isinstance(images, Ragged):
            work = LazyImages(images, store=store)
            yield work
            self.images = work.result()
        else:
            single = is_single(images)
            plain = images.as_subclass(torch.Tensor)
            plain = plain[None] if single else plain
            leading = plain.shape[:-3]
            frames = leading[1:].numel()  # a video's frames share its parameters
            work = LazyImages(_channels_first(plain.flatten(0, -4), channels), store=store, frames=frames)
            yield work
            result = _batched(work.result())
            result = result.view(*leading[single:], *result.shape[1:])
            self.images = tv_tensors.wrap(result, like=images) if isinstance(images, tv_tensors.TVTensor) else result
        self.moves += work.moves
        self.mixes += work.mixes

    def call(self, function: Callable[..., Any]) -> None:
        """Hand the images to a user's own function; those of a list one by one."""
        images = self._pixels
        if isinstance(images, Ragged):
            self.images = Ragged.of([_checked(function(image), function) for image in images])
        else:
            self.images = _checked(function(images), function)

    @property
    def _pixels(self) -> Pixels:
        if isinstance(self.images, EncodedImages):
            raise TypeError("the images are files still: put T.DecodeJpeg() first among the transforms")
        return self.images


def _gathered(images: Images) -> torch.Tensor | Ragged | EncodedImages:
    if isinstance(images, torch.Tensor | Ragged | EncodedImages):
        return images
    if isinstance(images, Sequence) and images and all(isinstance(image, torch.Tensor) for image in images):
        return Ragged.of([image.as_subclass(torch.Tensor) for image in images])
    raise TypeError(
        "images must be a tensor (N, C, H, W) or (C, H, W), a list of (C, H, W), or files packed by fl.collate; got "
        f"{type(images).__name__}"
    )


def _batched(images: Pixels) -> torch.Tensor:
    return torch.stack(list(images)) if isinstance(images, Ragged) else images


def _checked(images: Any, function: Callable[..., Any]) -> torch.Tensor:
    if not isinstance(images, torch.Tensor):
        raise TypeError(f"a transform must return a tensor of images; {function!r} returned {images!r}")
    return images


def _channels_first(images: torch.Tensor, channels: int | None) -> torch.Tensor:
    if images.shape[-3] == channels:
        return images
    if images.shape[-1] == channels:
        return images.movedim(-1, -3)
    if channels is None and images.shape[-1] in CHANNELS and images.shape[-3] > max(CHANNELS):
        raise TypeError(f"images must be (N, C, H, W), and {tuple(images.shape)} looks like (N, H, W, C): permute them")
    return images

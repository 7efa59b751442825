"""``Batch``: the images of a batch between transforms, in any form, and what labels and targets need to follow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fastload.arguments import quoted
from fastload.data.encoded import EncodedImages
from fastload.decode.helper import Helper
from fastload.structure.images import is_single
from fastload.structure.loaded_types import is_vision
from fastload.structure.ragged import Ragged
from fastload.structure.tree import Tree, retyped
from fastload.transforms.for_each_image import is_for_each_image
from fastload.transforms.geometry import Movement, Pixels
from fastload.transforms.key import VIEWS, Key
from fastload.transforms.lazy import LazyImages

__all__ = ["Batch", "Images"]

Images = torch.Tensor | Sequence[torch.Tensor] | Ragged | EncodedImages

CHANNELS = (1, 3, 4)  # sizes of the last axis by which images are recognised as (N, H, W, C)


class Batch:
    """The images of a batch, and what the transforms did that labels and targets have to follow.

    Args:
        images: a batch, one image, a list of images, or files.
        device: where files are decoded; by default the current accelerator.
        view_count: how many views the images are.

    Attributes:
        moves: how pixels moved, for each geometric transform.
        mixes: functions that mix the labels of a flattened batch as its images were mixed.
        kept: indices of the samples that were not skipped, int64 (M,); None for all.
        counts: numbers of images, by decoder, skipped, and zeroed.
        views: the batches of several views, if there are any; then ``images`` are those that they were made of.
        view_count: how many views the images are, all of one before those of the next; they are transformed together.
        is_decoded: whether the files were decoded ahead of time, so that the first ``T.DecodeJpeg`` has nothing to do.
        helper: a second thread to decode files, if there is one.
    """

    def __init__(self, images: Images, device: torch.device | None = None, *, view_count: int = 1) -> None:
        self.images = _as_batch(images)
        self._device = device
        self.moves: list[Movement] = []
        self.mixes: list[Callable[[Tree], Tree]] = []
        self.kept: torch.Tensor | None = None
        self.counts: dict[str, int] = {}
        self.views: list[Batch] = []
        self.view_count = view_count
        self.is_decoded = False
        self.helper: Helper | None = None
        self._like: torch.Tensor | None = None  # without pixels; has the images' type, also once their sizes differ

    def __len__(self) -> int:
        """The number of samples."""
        return 1 if isinstance(self.images, torch.Tensor) and is_single(self.images) else len(self.images)

    @property
    def device(self) -> torch.device:
        """Where files are decoded."""
        return self._device or torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")

    @property
    def is_empty(self) -> bool:
        """Whether all samples were skipped."""
        return self.kept is not None and not len(self.kept)

    @property
    def is_stacked(self) -> bool:
        """Whether several images are one tensor."""
        return isinstance(self.images, torch.Tensor) and len(self) > 1

    def leave_out(self, samples: Collection[int]) -> None:
        """Leave out these samples of a batch of decoded files, beside those that were skipped."""
        before = list(range(len(self))) if self.kept is None else self.kept.tolist()
        rows = [row for row, sample in enumerate(before) if sample not in samples]
        if rows and isinstance(self.images, Ragged):
            self.images = self.images.take(torch.tensor(rows))
        self.kept = torch.tensor([before[row] for row in rows], dtype=torch.int64)

    def parts(self, key: Key, transforms: Iterable[Any]) -> Iterator[tuple[Batch, Key]]:
        """The batches that ``transforms`` are done to, each with the key of its random numbers: this one, or its views.

        Views that are together stay so if all of the transforms are for each image alone.
        """
        if not self.views:
            yield self, key
            return
        if not all(map(is_for_each_image, transforms)):
            self.views = self.single_views()
        # From the end, where those of the loader's own views, which count from 0, do not come.
        first = VIEWS - 1 - key.view * sum(batch.view_count for batch in self.views)
        for batch in self.views:
            numbers = range(first, first - batch.view_count, -1)
            yield batch, key.for_views(numbers, len(batch) // batch.view_count)
            first -= batch.view_count

    def single_views(self) -> list[Batch]:
        """The views, each in a batch of its own, in the memory where they are; this batch if it is one view."""
        if self.views:
            return [single for batch in self.views for single in batch.single_views()]
        if self.view_count == 1:
            return [self]
        images = self._pixels
        if isinstance(images, torch.Tensor):
            return [Batch(view, self._device) for view in images.chunk(self.view_count)]
        rows = torch.arange(len(images)).chunk(self.view_count)
        return [Batch(images.take(view), self._device) for view in rows]

    def result(self) -> Any:
        """The images; a list if their sizes differ; a list of these if there are several views."""
        if self.is_empty:
            return []
        if self.views:
            return [view.result() for view in self.single_views()]
        images = self._pixels.stacked() if isinstance(self._pixels, Ragged) else self._pixels
        return [self._typed(image) for image in images] if isinstance(images, Ragged) else self._typed(images)

    @contextmanager
    def work(self, *, channels: int | None = None, store: torch.dtype = torch.float32) -> Iterator[LazyImages]:
        """Give ``LazyImages`` to record operations on, and run them at the end of the ``with`` block.

        Args:
            channels: the number of channels if it is known, to tell (N, H, W, C) from (N, C, H, W).
            store: the dtype of values between passes.
        """
        images = self._pixels
        if isinstance(images, Ragged):
            _refuse_channels_last(images, channels)
            work = LazyImages(images, store=store)
            yield work
            self.images = self._typed(work.result())
        else:
            single = is_single(images)
            plain = images.as_subclass(torch.Tensor)
            plain = plain[None] if single else plain
            leading = plain.shape[:-3]
            frames = leading[1:].numel()  # the frames of a video share random parameters
            work = LazyImages(_channels_first(plain.flatten(0, -4), channels), store=store, frames=frames)
            yield work
            self._like = retyped(torch.empty(0), like=images) if is_vision(images, "TVTensor") else None
            self.images = self._typed(_arranged(work.result(), leading[single:]))
        self.moves += work.moves
        self.mixes += work.mixes

    def call(self, function: Callable[..., Any]) -> None:
        """Call a user's function on the images; on each of them if their sizes differ."""
        images = self._pixels
        if isinstance(images, Ragged):
            self.images = Ragged.of([_require_tensor(function(self._typed(image)), function) for image in images])
        else:
            self.images = _require_tensor(function(images), function)

    def _typed(self, images: Any) -> Any:
        """Images with the type that those of a tensor had; lists of them get it when they leave."""
        if self._like is None or not isinstance(images, torch.Tensor):
            return images
        return retyped(images, like=self._like)

    @property
    def _pixels(self) -> Pixels:
        if isinstance(self.images, EncodedImages):
            raise TypeError("the images are files that are not decoded: put T.DecodeJpeg() first among the transforms")
        return self.images


def _as_batch(images: Images) -> torch.Tensor | Ragged | EncodedImages:
    if isinstance(images, Ragged | EncodedImages):
        return images
    if isinstance(images, torch.Tensor):
        return _checked(images)
    if isinstance(images, Sequence) and images and all(isinstance(image, torch.Tensor) for image in images):
        return Ragged.of([image.as_subclass(torch.Tensor) for image in images])
    raise TypeError(
        "images must be a tensor (N, C, H, W) or (C, H, W), a list of (C, H, W), or files packed by fl.collate; got "
        f"{type(images).__name__}"
    )


def _checked(images: torch.Tensor) -> torch.Tensor:
    got = f"{images.dtype} {tuple(images.shape)}"
    if images.ndim < len("CHW"):
        raise TypeError(f"images must be a tensor (N, C, H, W) or (C, H, W); got {got}")
    if images.numel() == 0:
        raise ValueError(f"images must be at least one, with channels and pixels; got {got}")
    return images


def _arranged(images: Pixels, leading: torch.Size) -> Pixels:
    """Images as a tensor with these leading dimensions; as they are if their sizes have come to differ."""
    stacked = images.stacked() if isinstance(images, Ragged) else images
    if isinstance(stacked, torch.Tensor):
        return stacked.view(*leading, *stacked.shape[1:])
    if len(leading) > 1:
        got = sorted(set(map(tuple, stacked.sizes.tolist())))
        raise TypeError(f"videos must have one size; got {got}: put T.Resize behind what cuts only some of them")
    return stacked


def _require_tensor(images: Any, function: Callable[..., Any]) -> torch.Tensor:
    if not isinstance(images, torch.Tensor):
        raise TypeError(f"a transform must return a tensor of images; {quoted(function)} returned {quoted(images)}")
    return images


def _refuse_channels_last(images: Ragged, channels: int | None) -> None:
    if images.channels == channels or images.channels <= max(CHANNELS):
        return
    heights, widths = images.sizes.T
    if (heights > max(CHANNELS)).all() and any((widths == each).all() for each in CHANNELS):
        raise TypeError(
            f"images of a list must be (C, H, W), and {tuple(images[0].shape)} looks like (H, W, C): permute them"
        )


def _channels_first(images: torch.Tensor, channels: int | None) -> torch.Tensor:
    looks_last = images.shape[-1] in CHANNELS and images.shape[-3] > max(CHANNELS)
    if images.shape[-3] == channels:
        return images
    # One mean is for images of any channels, so a last axis of 1 may be a width.
    if images.shape[-1] == channels and (channels > 1 or looks_last):
        return images.movedim(-1, -3)
    if channels in (None, 1) and looks_last:
        raise TypeError(f"images must be (N, C, H, W), and {tuple(images.shape)} looks like (N, H, W, C): permute them")
    return images

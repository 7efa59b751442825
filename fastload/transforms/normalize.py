"""``Normalize``: uint8 images to the floating-point values that a model is trained on."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastload.arguments import chosen, not_in_place, numbers
from fastload.transforms.batch import Batch
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["Normalize"]

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
MEMORY_FORMATS = (torch.contiguous_format, torch.channels_last)


class Normalize(Transform):
    """Compute ``(images / 255 - mean) / std`` for each channel, in one pass over memory.

    >>> Normalize(mean=[0.5], std=[0.25])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-2.,  2.]]]])

    Images are uint8, (N, C, H, W) with any strides, or (N, H, W, C), which is recognised by the length of ``mean``;
    with one mean, (N, H, W, 1) is recognised if H is above 4. Floating-point images must be scaled to 0 to 1, and are
    not divided by 255. The result is (N, C, H, W).

    Args:
        mean: one number for each channel, or one for all, as a fraction of the full scale. If any is above 1, all are
            in units of 0 to 255, and floating-point images must be, too.
        std: as ``mean``, and in its unit.
        dtype: of the result: float32, bfloat16 or float16. Values are computed in float32 and rounded to
            it at the end; between the passes of a ``Compose`` they may be float16, if the result has 16 bits.
        memory_format: of the result: ``torch.contiguous_format`` or ``torch.channels_last``.
        inplace: False, for calls written for torchvision.

    Raises:
        ValueError: ``mean`` and ``std`` differ in length or in unit, a std is not positive, or ``dtype``,
            ``memory_format`` or ``inplace`` is not one of these.
        TypeError: ``mean`` or ``std`` is no sequence of numbers; when called, the images are neither uint8 nor
            floating-point, or have another number of channels.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        inplace: bool = False,
        *,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        not_in_place(inplace)
        mean, std = numbers("mean", mean), numbers("std", std)
        if len(mean) != len(std):
            raise ValueError(f"mean and std must have one number a channel each; got mean={mean}, std={std}")
        if not all(value > 0 for value in std):
            raise ValueError(f"std must be positive; got {std}")
        if max(mean) > 1 > min(std):
            raise ValueError(
                f"mean and std must have one unit; got mean={mean}, which is in 0 to 255, and std={std}, which is in "
                "0 to 1: multiply std by 255, or divide mean by 255"
            )
        chosen("dtype", dtype, FLOATS)
        chosen("memory_format", memory_format, MEMORY_FORMATS)
        self.full_scale = 255.0 if max(*mean, *std) > 1 else 1.0
        self.mean = [value / self.full_scale for value in mean]
        self.std = [value / self.full_scale for value in std]
        self.dtype = dtype
        self.memory_format = memory_format

    def __repr__(self) -> str:
        options = "".join(
            f", {name}={value}"
            for name, value, default in (
                ("dtype", self.dtype, torch.float32),
                ("memory_format", self.memory_format, torch.contiguous_format),
            )
            if value is not default
        )
        return f"Normalize({self.mean}, {self.std}{options})"

    def run(self, batch: Batch, key: Key) -> None:  # noqa: ARG002
        with batch.work(channels=len(self.mean)) as work:
            self.record(work, None)

    def sample(self, sizes: torch.Tensor, key: Key) -> None:  # noqa: ARG002  (there is nothing to draw)
        return None

    def record(self, work: LazyImages, parameters: None) -> None:  # noqa: ARG002
        work.normalize(self.mean, self.std, self.dtype, self.memory_format, self.full_scale)

"""``NormalizeCase``: the cases of ``kernels`` that normalise a batch of images of one size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from fastload.bench.harness.check import check_normalized
from fastload.bench.subjects.kernel_case import OUT
from fastload.bench.subjects.normalizers import ARITHMETIC, NORMALIZERS

__all__ = ["FLIP_NORMALIZE", "NORMALIZE", "MirroredImages", "NormalizeCase"]


@dataclass(frozen=True)
class MirroredImages:
    """A batch of random images, since zeros can run faster, and a mask of those to mirror, if any."""

    images: torch.Tensor
    flip: torch.Tensor | None


@dataclass(frozen=True)
class NormalizeCase:
    """Normalise a batch, with or without mirroring some of its images."""

    flips: bool

    @property
    def subjects(self) -> Sequence[str]:
        # timm mirrors in its workers
        return tuple(name for name in NORMALIZERS if not (self.flips and name == "timm"))

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> MirroredImages:
        torch.manual_seed(number)
        images = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, device=device)
        return MirroredImages(images, torch.randint(2, (batch,), device=device).bool() if self.flips else None)

    def build(
        self, name: str, _side: int, device: torch.device, memory_format: torch.memory_format
    ) -> Callable[[MirroredImages], torch.Tensor]:
        normalizer = NORMALIZERS[name](device, memory_format)
        return lambda batch: normalizer(batch.images, batch.flip)

    def check(
        self,
        name: str,
        normalize: Callable[[MirroredImages], torch.Tensor],
        batch: MirroredImages,
        memory_format: torch.memory_format,
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

    def bytes_to_move(self, batch: MirroredImages) -> int:
        """Each value is read as a byte and written once; the mask is a byte for each image."""
        return batch.images.numel() * (1 + OUT.itemsize) + (0 if batch.flip is None else len(batch.flip))


NORMALIZE, FLIP_NORMALIZE = NormalizeCase(flips=False), NormalizeCase(flips=True)

"""What the transforms of this package have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torchvision import tv_tensors

from fastload.images import is_single
from fastload.transforms.key import Key

__all__ = ["Transform"]


class Transform(ABC):
    """A transform of a batch of images (N, C, H, W), or of one image (C, H, W), in two steps.

    :meth:`sample` draws the parameters from a key, :meth:`apply` applies them; so a reference, a kernel and a
    repetition can share them.
    """

    moves_pixels = False
    """Whether boxes, masks and keypoints would have to follow."""

    def __call__(self, images: torch.Tensor, key: Key | None = None) -> torch.Tensor:
        plain = images.as_subclass(torch.Tensor)
        single = is_single(images)
        batch = plain[None] if single else plain
        result = self.apply(batch, self.sample(len(batch), key or Key.fresh()))
        if single:
            result = result[0]
        return tv_tensors.wrap(result, like=images) if isinstance(images, tv_tensors.TVTensor) else result

    @abstractmethod
    def sample(self, samples: int, key: Key) -> Any:
        """The parameters for a batch of ``samples``, on the CPU; None if there are none."""

    @abstractmethod
    def apply(self, images: torch.Tensor, parameters: Any) -> torch.Tensor:
        """The transformed images; the images given are left as they were."""

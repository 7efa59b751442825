"""Mirror images."""

from __future__ import annotations

import torch

from fastload.transforms.key import Key
from fastload.transforms.transform import Transform

__all__ = ["RandomHorizontalFlip", "to_device"]

CHANNELS = (1, 3, 4)


class RandomHorizontalFlip(Transform):
    """Mirror each image left to right with probability ``p``.

    >>> RandomHorizontalFlip(p=1.0)(torch.tensor([[[[1, 2, 3]]]], dtype=torch.uint8))
    tensor([[[[3, 2, 1]]]], dtype=torch.uint8)

    Images (N, C, H, W) of any dtype. In a ``Compose``, directly before ``Normalize``, both are one pass over memory.
    Boxes, masks and keypoints do not follow yet: a batch that holds them as ``tv_tensors`` is refused.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    moves_pixels = True

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability in [0, 1]; got {p}")
        self.p = p

    def __repr__(self) -> str:
        return f"RandomHorizontalFlip(p={self.p})"

    def sample(self, samples: int, key: Key) -> torch.Tensor:
        """Which images to mirror, bool (N,)."""
        return key.uniform(samples) < self.p

    def apply(self, images: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
        if images.shape[-1] in CHANNELS and images.shape[-3] > max(CHANNELS):
            raise TypeError(
                f"images must be (N, C, H, W), and {tuple(images.shape)} looks like (N, H, W, C): permute them"
            )
        mirrored = to_device(parameters, images.device).view(-1, *[1] * (images.ndim - 1))
        return torch.where(mirrored, images.flip(-1), images)


def to_device(parameters: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Parameters beside the images that they are for, without making the host wait."""
    if device.type in ("cpu", "mps"):
        return parameters.to(device)
    return parameters.pin_memory().to(device, non_blocking=True)

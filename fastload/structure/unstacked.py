"""``Unstacked``: images that are to be one batch, and cannot be one yet."""

from __future__ import annotations

import torch

__all__ = ["Unstacked"]


class Unstacked(list[torch.Tensor]):
    """Images (C, H, W) of different sizes, which are one batch (N, C, H, W) as soon as they have one size.

    A plain list stays a list after its transform, whatever its sizes are.
    """

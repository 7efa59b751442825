"""``DecodedImages``: the images of a batch that were decoded ahead, on the way from one stream to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastload.streams import SideStream, SyncStream
from fastload.structure.ragged import Ragged
from fastload.transforms.batch import Batch

__all__ = ["DecodedImages"]


@dataclass
class DecodedImages:
    """Images decoded from ``samples`` files, without those skipped, and the fence from which on they are whole."""

    group: Batch
    samples: int
    ready: Any

    def hand_over(self, side: SideStream | SyncStream) -> None:
        """Let the calling thread's stream, ``side``, use the images."""
        images = self.group.images
        if isinstance(images, Ragged) and isinstance(images.memory, torch.Tensor):
            side.hand_over([images.memory], self.ready)

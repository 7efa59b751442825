"""``DecodeStage``: the files of batches to images, on a stream of its own, before anything else is done to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastload.data.encoded import EncodedImages
from fastload.streams import SideStream, SyncStream, side_stream
from fastload.structure.ragged import Ragged
from fastload.structure.tree import Path, find
from fastload.transfer.transfer import Pinned, Transfer
from fastload.transforms import Compose, DecodeJpeg, Key
from fastload.transforms.batch import Batch

__all__ = ["DecodeStage", "Decoded"]


@dataclass
class Decoded:
    """Images that were ``samples`` files, those not skipped, and the point from which on they are whole."""

    group: Batch
    samples: int
    ready: Any

    def hand_over(self, side: SideStream | SyncStream) -> None:
        """Let the calling thread's stream, ``side``, use the images."""
        images = self.group.images
        if isinstance(images, Ragged) and isinstance(images.memory, torch.Tensor):
            side.hand_over([images.memory], self.ready, side.consumer())


class DecodeStage:
    """What ``T.DecodeJpeg`` does at the head of a transform, for another thread than that of the rest to do."""

    def __init__(self, decode: DecodeJpeg, device: torch.device) -> None:
        self._decode = decode
        self.side = side_stream(device)
        self._transfer = Transfer(self.side)

    @classmethod
    def of(cls, transform: Any, device: torch.device) -> DecodeStage | None:
        """That of a transform; None if it does not begin with files."""
        first = transform.transforms[0] if isinstance(transform, Compose) and transform.transforms else transform
        return cls(first, device) if isinstance(first, DecodeJpeg) else None

    def pin(self, batch: Any) -> dict[Path, Pinned]:
        """All files of ``batch`` where they can be decoded from; by another thread than that which decodes, perhaps."""
        return {path: self._transfer.pin(files) for path, files in find(batch, EncodedImages).items()}

    @torch.no_grad()
    def __call__(self, files: dict[Path, Pinned]) -> dict[Path, Decoded]:
        """Queue the decoding of files of a batch, which must be kept until it is done."""
        return {path: self._decoded(pinned) for path, pinned in files.items()}

    def close(self) -> None:
        """Give back what was only lent for the pass."""
        self._transfer.close()

    def _decoded(self, pinned: Pinned) -> Decoded:
        group = Batch(pinned.files, self.side.device)
        self._decode.run(group, Key())
        group.is_decoded = True
        self._transfer.unpin(pinned)
        return Decoded(group, len(pinned.files), self.side.prepared())

"""``DecodeStage``: what ``T.DecodeJpeg`` does at the head of a transform, ahead of the rest and on its own stream."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from fastload.data.encoded import EncodedImages
from fastload.decode.helper import Helper
from fastload.prefetch.decoded_images import DecodedImages
from fastload.prefetch.item import Item
from fastload.prefetch.pace import Pace
from fastload.streams import SideStream, side_stream
from fastload.transfer.transfer import PinnedFiles, Transfer
from fastload.transforms import Compose, DecodeJpeg, Key
from fastload.transforms.batch import Batch

__all__ = ["DecodeStage", "decoder_of"]

PINNED = 3  # batches of files: one that the device reads, one that is decoded next, and one that is pinned meanwhile


class DecodeStage:
    """Pins the files of items and decodes them, each in a thread of its own.

    Decoding is the slowest stage of the host, so none waits for another: while one batch is transformed, the next is
    decoded and the one after that is pinned. While few batches are ready, another thread helps to decode.
    """

    def __init__(self, decode: DecodeJpeg, device: torch.device) -> None:
        self._decode = decode
        self.side = side_stream(device)
        self.pace = Pace() if isinstance(self.side, SideStream) else None  # a CPU that decodes has no better time
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="fastload-decode-too")  # starts when it is needed first
        self._transfer = Transfer(self.side, reserve=PINNED)

    @classmethod
    def of(cls, transform: Any, device: torch.device) -> DecodeStage | None:
        """That of a transform; None if it does not begin with ``T.DecodeJpeg``."""
        decode = decoder_of(transform)
        return None if decode is None else cls(decode, device)

    def pin(self, item: Item) -> None:
        """Copy the item's files to pinned memory, from which the device reads while the host goes on."""
        assert item.tree is not None
        files = {path: leaf for path, leaf in item.tree.leaves.items() if isinstance(leaf, EncodedImages)}
        with item.times.stage("pin"):
            item.files = {path: self._transfer.pin(leaf) for path, leaf in files.items()}

    @torch.no_grad()
    def decode(self, item: Item, are_few: Callable[[], bool]) -> None:
        """Queue the decoding of the item's files, with help if there ``are_few`` batches.

        Help takes more of the host, which training needs, and is worth it while the queue fills: a full one outlasts a
        slow moment (docs/notes/decoding-thread.md).
        """
        with item.times.stage("decode"):
            item.times.mark("decode begins", self.side)
            helper = Helper(self._helper, is_needed=are_few())
            item.images = {path: self._decoded(pinned, helper) for path, pinned in item.files.items()}
            item.times.mark("decode ends", self.side)
        item.files = {}

    def close(self) -> None:
        """Drop the pinned memory of the pass, and end the thread that helps."""
        self._helper.shutdown()
        self._transfer.close()

    def _decoded(self, pinned: PinnedFiles, helper: Helper) -> DecodedImages:
        group = Batch(pinned.files, self.side.device)
        group.helper = helper
        self._decode.run(group, Key())
        group.is_decoded = True
        ready = self.side.prepared()
        self._transfer.unpin(pinned, ready)
        return DecodedImages(group, len(pinned.files), ready)


def decoder_of(transform: Any) -> DecodeJpeg | None:
    """The ``T.DecodeJpeg`` that a transform begins with; None if it begins with another."""
    first = transform.transforms[0] if isinstance(transform, Compose) and transform.transforms else transform
    return first if isinstance(first, DecodeJpeg) else None

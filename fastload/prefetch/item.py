"""``Item``: one batch on its way from the loader to the consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastload.prefetch.decoded_images import DecodedImages
from fastload.prefetch.slots import Slot
from fastload.resume.position import Position
from fastload.stats.batch_times import BatchTimes
from fastload.streams import Recordable
from fastload.structure.tree import Path, Tree
from fastload.transfer.transfer import PinnedFiles

__all__ = ["Item"]

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Item:
    """One batch: made where it is pulled, with more known of it after each stage, emptied where it is handed out.

    A thread may refer to an item until its next one comes. So each stage takes out of it what is no longer needed, and
    an item that was handed out, or failed, holds no memory.
    """

    tree: Tree | None
    """The batch as the loader yielded it, flattened, until the device has read it."""
    position: Position
    """How far the loader is once the consumer has this batch."""
    times: BatchTimes
    """When it passed each stage."""
    files: dict[Path, PinnedFiles] = field(default_factory=dict)
    """Its image files in pinned memory, until they are decoded."""
    images: dict[Path, DecodedImages] = field(default_factory=dict)
    """Those of its files that a thread decoded ahead."""
    skipped: int = 0
    """How many of its samples were left out, whose files cannot be decoded."""
    slot: Slot | None = None
    """Its slot among the batches on the device."""
    batch: Any = None
    """The batch on the device, put together again."""
    has_unmoved: bool = False
    """Whether the consumer has to move a part of it, on its own stream."""
    memory: list[Recordable] = field(default_factory=list)
    """The device memory that it lies in."""
    ready: Any = None
    """The fence from which on the batch is whole."""
    is_last: bool = False
    """Whether it is known to be the loader's last, which is found out for loaders of Accelerate."""
    remark: str | None = None
    """What to warn the user of."""

    def through(self, work: Callable[[Item], T]) -> T:
        """``work`` done on this item. If it fails, the item is emptied: the traceback of the error may keep it."""
        try:
            return work(self)
        except BaseException:
            self.tree, self.batch = None, None
            self.files, self.images, self.memory = {}, {}, []
            raise

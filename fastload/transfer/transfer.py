"""``Transfer``: nested batches to one device, without making anyone wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass  # each question to a tv_tensor takes microseconds without

from fastload.data.encoded import EncodedImages
from fastload.streams import STREAMLESS, Recordable, SideStream, SyncStream
from fastload.structure.tree import Path, map_movable, movables, with_movables
from fastload.targets.layout import retyped
from fastload.transfer.packing import PackedBlock, is_plain, plan_copies
from fastload.transfer.pinned import move
from fastload.transfer.staging import StagingPool

__all__ = ["DeviceBatch", "Pinned", "Transfer", "move_own"]


@dataclass
class DeviceBatch:
    """A batch on its way to a device.

    ``memory`` is what it takes up there, one tensor a block, and containers that can themselves tell the allocator of a
    stream (``TensorDict``). ``has_own`` says that something is still where it was: objects with no more than a ``to``
    of their own, and sparse tensors. The allocator cannot be told of the memory they will hold, so only the consumer
    may move them, on its own stream (:func:`move_own`).
    """

    batch: Any
    memory: list[Recordable]
    has_own: bool


@dataclass
class Pinned:
    """Files where decoders can read them while the host goes on, and the block that was lent for it, if any."""

    files: EncodedImages
    lent: torch.Tensor | None = None


class Transfer:
    """Queues the copies of batches to the device of ``side``, on the current stream.

    1. Small tensors are packed into one pinned block, which is copied at once to one block on the device; they are made
       again over that. Tensors that share bytes go on sharing them.
    2. Large ones that are pinned are copied from where they lie; others go through the same pinned block. Each has a
       block of its own on the device, so that keeping the labels of a batch does not keep its images.
    3. Whatever is more than its bytes is moved by its own ``to``.

    docs/transfer.md tells why. The caller must keep a batch until its copies are done.

    Args:
        side: the stream, and with it the device.
        pack: whether to do 1 and 2; by default where memory is another than the host's.
    """

    def __init__(self, side: SideStream | SyncStream, *, pack: bool | None = None) -> None:
        self._side = side
        self._ring = StagingPool()
        self._packs = side.device.type not in STREAMLESS if pack is None else pack

    def close(self) -> None:
        """Give the pinned memory back, and end the threads that fill it."""
        self._ring.close()

    def send(self, batch: Any) -> DeviceBatch:
        """All of ``batch`` on its way, but for what only :func:`move_own` may move."""
        batch = self.move(batch)
        leaves = movables(batch)
        with DisableTorchFunctionSubclass():
            return DeviceBatch(batch, _memory(leaves), any(map(_is_own, leaves)))

    def move(self, batch: Any) -> Any:
        """The same of a batch that is not to be handed over yet."""
        leaves = movables(batch)
        copies = []
        if self._packs:
            with DisableTorchFunctionSubclass():
                copies = copied(leaves, self._side, self._ring)
            for number, copy in copies:
                leaves[number] = copy
        if len(copies) < len(leaves):
            leaves = [_moved(leaf, self._side.device) for leaf in leaves]
        return with_movables(batch, iter(leaves))

    @contextmanager
    def pinned(self, files: EncodedImages) -> Iterator[EncodedImages]:
        """The files where decoders can read them while the host goes on; the caller queues the decoding meanwhile."""
        pinned = self.pin(files)
        yield pinned.files
        self.unpin(pinned)

    def pin(self, files: EncodedImages) -> Pinned:
        """The same, until :meth:`unpin`, which is for the thread that has queued the decoding."""
        if not self._packs or files.is_pinned():
            return Pinned(files)
        size = len(files.block)
        lent = self._ring.lend(size)
        move([(lent.data_ptr(), files.block.data_ptr(), size)], self._ring.copy_threads)
        return Pinned(EncodedImages(lent[:size], files.table, files.names, files.problems), lent)

    def unpin(self, pinned: Pinned) -> None:
        if pinned.lent is not None:
            self._ring.take_back(pinned.lent, self._side.prepared())


def copied(values: Sequence[Any], side: SideStream | SyncStream, ring: StagingPool) -> list[tuple[int, torch.Tensor]]:
    """What of ``values`` is a tensor of the host and no more than its bytes, on the device, with its place."""
    copies: list[tuple[int, torch.Tensor]] = []
    staged: list[tuple[PackedBlock, torch.Tensor]] = []
    for parcel in plan_copies(values):
        if isinstance(parcel, PackedBlock):
            staged.append((parcel, torch.empty(parcel.size, dtype=torch.uint8, device=side.device)))
        else:  # the device copies it while the host looks at the others and packs them
            number, tensor = parcel
            copies.append((number, retyped(tensor.to(side.device, non_blocking=True), like=tensor)))
    if staged:
        _copy_through(ring, staged, side)
    return copies + [numbered for arena, block in staged for numbered in arena.tensors(block)]


def _copy_through(
    ring: StagingPool, staged: list[tuple[PackedBlock, torch.Tensor]], side: SideStream | SyncStream
) -> None:
    """Fill blocks on the device through one that is pinned."""
    sizes = [arena.size for arena, _ in staged]
    lent = ring.lend(sum(sizes))
    starts = accumulate(sizes, initial=lent.data_ptr())
    moves = [each for (arena, _), start in zip(staged, starts, strict=False) for each in arena.moves(start)]
    move(moves, ring.copy_threads)
    for (_, block), source in zip(staged, torch.split(lent[: sum(sizes)], sizes), strict=True):
        block.copy_(source, non_blocking=True)
    ring.take_back(lent, side.prepared())


def move_own(batch: Any, device: torch.device) -> Any:
    """``batch`` with the objects that :class:`Transfer` left where they were moved by their own ``to``."""

    def moved(leaf: Any, _: Path) -> Any:
        return leaf.to(device) if _is_own(leaf) else leaf

    return map_movable(moved, batch)


def _memory(leaves: list[Any]) -> list[Recordable]:
    """What is on the device now, for the allocator to be told who uses it."""
    blocks: dict[int, Recordable] = {}
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            if not _is_own(leaf):
                blocks[id(leaf)] = leaf
        elif not (leaf.is_cpu or _is_own(leaf)):
            plain = is_plain(leaf)
            blocks[leaf.untyped_storage().data_ptr() if plain else id(leaf)] = leaf
    return list(blocks.values())


def _is_own(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is not torch.strided or leaf.is_nested
    return not hasattr(leaf, "record_stream")


def _moved(leaf: Any, device: torch.device) -> Any:
    """One leaf by itself, unless it is there already or has to wait for :func:`move_own`."""
    if not isinstance(leaf, torch.Tensor):
        return leaf if _is_own(leaf) else leaf.to(device)
    if leaf.device == device or _is_own(leaf):
        return leaf
    if device.type == "mps":  # asynchronous copies to Metal may deliver what the host wrote later
        return leaf.to(device)
    if leaf.device.type == "cpu" and not leaf.is_pinned():  # the device copies nothing else while the host goes on
        leaf = leaf.pin_memory()
    return leaf.to(device, non_blocking=True)

"""``Transfer``: the leaves of a batch to one device, without making a thread wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch._C import DisableTorchFunctionSubclass  # each question to a tv_tensor takes microseconds without

from fastload.data.encoded import EncodedImages
from fastload.streams import STREAMLESS, Fence, Recordable, SideStream, SyncStream
from fastload.structure.loaded_types import is_plain
from fastload.structure.tree import Path, is_movable, map_movable, retyped
from fastload.transfer.packing import PackedBlock, plan_copies
from fastload.transfer.pinned import StagingPool, memcpy

__all__ = ["PinnedFiles", "Transfer", "device_blocks", "has_unmoved", "move_the_rest"]

# Bytes, at least, for a thread that copies files. The one that pins them is ahead and has time; each other that is
# woken takes the interpreter's lock, for which training waits.
FILES_PIECE = 64 * 2**20


@dataclass
class PinnedFiles:
    """Files in pinned memory, and the staging block that they lie in, if they were copied into one."""

    files: EncodedImages
    block: torch.Tensor | None = None


class Transfer:
    """Queues the copies of a batch's leaves to the device of ``side``, on the current stream.

    1. Small tensors are packed into one pinned block, which is copied at once to one block on the device; they are
       views of that. Tensors that share bytes go on sharing them.
    2. Large ones that are pinned are copied from where they lie; others go through the same pinned block. Each has a
       block of its own on the device, so that keeping the labels of a batch does not keep its images.
    3. What is more than its bytes is moved by its own ``to``.

    docs/transfer.md tells why. The caller must keep the leaves until their copies are done.

    Args:
        side: the stream, and with it the device.
        pack: whether to do 1 and 2; by default where the device's memory is not the host's.
        reserve: the pinned blocks that are taken with the first batch.
    """

    def __init__(self, side: SideStream | SyncStream, *, pack: bool | None = None, reserve: int = 0) -> None:
        self._side = side
        self._pool = StagingPool(reserve)
        self._packs = side.device.type not in STREAMLESS if pack is None else pack

    def close(self) -> None:
        """Drop the pinned memory, and end the threads that fill it."""
        self._pool.close()

    def move(self, leaves: Mapping[Path, Any]) -> dict[Path, Any]:
        """The leaves with copies on the device; what :func:`has_unmoved` names stays for the consumer to move."""
        moved = dict(leaves)
        with DisableTorchFunctionSubclass():
            paths = [path for path, leaf in leaves.items() if is_movable(leaf) and not self._has(leaf)]
        copied: dict[Path, torch.Tensor] = {}
        if self._packs and paths:
            with DisableTorchFunctionSubclass():
                copies = copy_packed([leaves[path] for path in paths], self._side, self._pool)
            copied = {paths[number]: copy for number, copy in copies}
        for path in paths:
            moved[path] = copied[path] if path in copied else _moved(leaves[path], self._side.device)
        return moved

    def _has(self, leaf: Any) -> bool:
        """Whether it is on the device already, other than the host."""
        return isinstance(leaf, torch.Tensor) and not leaf.is_cpu and leaf.device == self._side.device

    @contextmanager
    def pinned(self, files: EncodedImages) -> Iterator[EncodedImages]:
        """The files in pinned memory, while the caller queues their decoding."""
        pinned = self.pin(files)
        yield pinned.files
        self.unpin(pinned, self._side.prepared())

    def pin(self, files: EncodedImages) -> PinnedFiles:
        """The same until :meth:`unpin`, which the thread that has queued the decoding calls."""
        if not self._packs or files.is_pinned():
            return PinnedFiles(files)
        size = len(files.block)
        block = self._pool.acquire(size)
        memcpy([(block.data_ptr(), files.block.data_ptr(), size)], self._pool.threads, least=FILES_PIECE)
        copied = EncodedImages(
            block[:size], files.table, files.names, files.problems, layout_at=files.layout_at, is_lent=True
        )
        return PinnedFiles(copied, block)

    def unpin(self, pinned: PinnedFiles, read: Fence) -> None:
        """Use the memory for others once the device has passed ``read``, behind the decoding."""
        if pinned.block is not None:
            self._pool.release(pinned.block, read)


def device_blocks(leaves: Iterable[Any]) -> list[Recordable]:
    """The device memory of a batch, for the allocator to be told which streams use it.

    One tensor a block, and containers that can tell the allocator themselves (``TensorDict``).
    """
    blocks: dict[int, Recordable] = {}
    with DisableTorchFunctionSubclass():
        for leaf in leaves:
            if not isinstance(leaf, torch.Tensor):
                if is_movable(leaf) and not _moves_itself(leaf):
                    blocks[id(leaf)] = leaf
            elif not (leaf.is_cpu or _moves_itself(leaf)):
                blocks[leaf.untyped_storage().data_ptr() if is_plain(leaf) else id(leaf)] = leaf
    return list(blocks.values())


def has_unmoved(leaves: Iterable[Any]) -> bool:
    """Whether a batch has leaves that only the consumer may move, on its own stream, by :func:`move_the_rest`.

    They are sparse and nested tensors, and objects with no more than a ``to`` of their own: the allocator cannot be
    told of the memory that they will hold.
    """
    with DisableTorchFunctionSubclass():
        return any(is_movable(leaf) and _moves_itself(leaf) for leaf in leaves)


def move_the_rest(batch: Any, device: torch.device) -> Any:
    """``batch`` with what :meth:`Transfer.move` left on the host moved by its own ``to``."""
    return map_movable(lambda leaf, _: leaf.to(device) if _moves_itself(leaf) else leaf, batch)


def copy_packed(
    values: Sequence[Any], side: SideStream | SyncStream, pool: StagingPool
) -> list[tuple[int, torch.Tensor]]:
    """Those of ``values`` that are host tensors and no more than their bytes, on the device, with their numbers."""
    copies: list[tuple[int, torch.Tensor]] = []
    staged: list[tuple[PackedBlock, torch.Tensor]] = []
    for plan in plan_copies(values):
        if isinstance(plan, PackedBlock):
            staged.append((plan, torch.empty(plan.size, dtype=torch.uint8, device=side.device)))
        else:  # the device copies it while the host looks at the others and packs them
            number, tensor = plan
            copies.append((number, retyped(tensor.to(side.device, non_blocking=True), like=tensor)))
    if staged:
        _copy_staged(pool, staged, side)
    return copies + [numbered for packed, block in staged for numbered in packed.tensors(block)]


def _copy_staged(
    pool: StagingPool, staged: list[tuple[PackedBlock, torch.Tensor]], side: SideStream | SyncStream
) -> None:
    """Fill blocks on the device through a pinned one."""
    *starts, size = accumulate((packed.size for packed, _ in staged), initial=0)
    pinned = pool.acquire(size)
    address = pinned.data_ptr()
    memcpy(
        [
            copy
            for (packed, _), start in zip(staged, starts, strict=True)
            for copy in packed.host_copies(address + start)
        ],
        pool.threads,
    )
    for (packed, block), start in zip(staged, starts, strict=True):
        block.copy_(pinned[start : start + packed.size], non_blocking=True)
    pool.release(pinned, side.prepared())


def _moves_itself(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is not torch.strided or leaf.is_nested
    return not hasattr(leaf, "record_stream")


def _moved(leaf: Any, device: torch.device) -> Any:
    """One leaf by itself, unless it is on the device already or is left to :func:`move_the_rest`."""
    if not isinstance(leaf, torch.Tensor):
        return leaf if _moves_itself(leaf) else leaf.to(device)
    if leaf.device == device or _moves_itself(leaf):
        return leaf
    if device.type == "mps":  # asynchronous copies to Metal may deliver what the host wrote later
        return leaf.to(device)
    if leaf.device.type == "cpu" and not leaf.is_pinned():  # the device copies nothing else while the host goes on
        leaf = leaf.pin_memory()
    return leaf.to(device, non_blocking=True)

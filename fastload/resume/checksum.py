"""``checksum_of``: a number by which a batch that is read again is known."""

from __future__ import annotations

import zlib
from itertools import islice
from typing import Any

import torch

from fastload.data.encoded import EncodedImages
from fastload.structure.tree import Tree

__all__ = ["checksum_of"]

LEAVES, BYTES = 8, 2048  # so many are read of a batch, and so much of the beginning and of the end of each


def checksum_of(batch: Tree) -> int | None:
    """A CRC-32 of a part of the values of a batch: tensors on the host, numbers, and the sizes of files.

    >>> from fastload.structure.tree import tree_flatten
    >>> one, same, other = (checksum_of(tree_flatten({"number": torch.tensor([n])})) for n in (1, 1, 2))
    >>> one == same, one == other
    (True, False)

    None if it has none of these. Text does not count: it may be the path of data that lie elsewhere by now.
    """
    known = (part for leaf in batch.leaves.values() if (part := _part_of(leaf)) is not None)
    parts = list(islice(known, LEAVES))
    return zlib.crc32(b"".join(parts)) if parts else None


def _part_of(leaf: Any) -> bytes | None:
    if isinstance(leaf, EncodedImages):
        leaf = leaf.table  # between its files the block holds what was there before
    if isinstance(leaf, torch.Tensor):
        return _part_of_tensor(leaf)
    if isinstance(leaf, (bool, int, float)):
        return repr(leaf).encode()
    return leaf[:BYTES] + leaf[BYTES:][-BYTES:] if isinstance(leaf, bytes) else None


def _part_of_tensor(tensor: torch.Tensor) -> bytes | None:
    if tensor.device.type != "cpu" or not _has_plain_bytes(tensor):
        return None
    if tensor.requires_grad or type(tensor) is not torch.Tensor:
        tensor = tensor.detach().as_subclass(torch.Tensor)
    if not tensor.is_contiguous():
        tensor = tensor[(slice(1),) * (tensor.ndim - 1)].contiguous()  # one row, which is copied
    values = tensor.view(-1).view(torch.uint8).numpy()
    return bytes(values[:BYTES]) + bytes(values[BYTES:][-BYTES:])


def _has_plain_bytes(tensor: torch.Tensor) -> bool:
    is_lazy = tensor.is_conj() or tensor.is_neg()  # the bytes are those before it
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_nested or is_lazy)

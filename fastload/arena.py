"""``Arena``: tensors of the host in one block of bytes, and the same tensors in a copy of the block, wherever it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torchvision.tv_tensors import TVTensor

from fastload.layout import retyped
from fastload.pinned import Move

try:  # a sixth of the time that the public way takes
    from torch._C._dynamo.guards import _reinterpret_tensor as _tensor_over  # type: ignore[attr-defined]
except ImportError:

    def _tensor_over(block: torch.Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
        return block.as_strided(shape, strides, offset).data  # no view: what is written to one does not touch others


__all__ = ["ALIGNMENT", "SMALL", "Arena", "arenas", "fits", "is_plain"]

ALIGNMENT = 16  # bytes

# Bytes from which a tensor has a block of its own. Whoever keeps a smaller one keeps no image with it; and queueing one
# more copy to the device takes the host as long as packing this much.
SMALL = 64 * 2**10

# The bytes from a tensor's first element to its last are copied as they are, unless they are more than so many times
# its own.
NEARLY_DENSE = 2

DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
})  # fmt: skip


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its type is none of a user's or of PyTorch's own making, about which nothing is known."""
    return type(tensor) is torch.Tensor or isinstance(tensor, TVTensor)


def fits(tensor: torch.Tensor) -> bool:
    """Whether it is on the host, and no more than its bytes, shape, strides and what a ``tv_tensor`` knows."""
    return (
        tensor.is_cpu
        and is_plain(tensor)
        and tensor.dtype in DTYPES  # quantized tensors are more
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_neg() or tensor.is_conj())
    )


Numbered = tuple[int, torch.Tensor]


class Arena:
    """Tensors in one block, each from a multiple of ``ALIGNMENT`` bytes on; those that share bytes go on sharing them.

    >>> from fastload.pinned import move
    >>> (arena,) = arenas([torch.arange(3), torch.ones(2)])
    >>> block = torch.empty(arena.size, dtype=torch.uint8)
    >>> move(arena.moves(block.data_ptr()))
    >>> list(arena.tensors(block))
    [(0, tensor([0, 1, 2])), (1, tensor([1., 1.]))]
    """

    def __init__(self) -> None:
        self.size = 0
        self._spans: list[Move] = []  # to which byte of the block, from which address, how many bytes
        self.members: list[tuple[int, torch.Tensor, int]] = []  # a tensor's number, itself, and its first byte

    def add(self, address: int, size: int, members: Sequence[Numbered]) -> None:
        """Give a place to the tensors that lie within ``size`` bytes from an address on."""
        start = self.size
        self._spans.append((start, address, size))
        for number, tensor in members:
            self.members.append((number, tensor, start + tensor.data_ptr() - address))
        self.size = start + size + -size % ALIGNMENT

    def moves(self, address: int) -> Iterator[Move]:
        """What to copy to fill a block at ``address`` on the host."""
        return ((address + start, source, size) for start, source, size in self._spans)

    def tensors(self, block: torch.Tensor) -> Iterator[Numbered]:
        """The tensors over ``block``, uint8 (size,) on any device, with their numbers."""
        typed = {dtype: block.view(dtype) for dtype in {tensor.dtype for _, tensor, _ in self.members}}
        for number, like, start in self.members:
            tensor = _tensor_over(typed[like.dtype], tuple(like.shape), like.stride(), start // like.itemsize)
            yield number, tensor if type(like) is torch.Tensor else retyped(tensor, like)

    def in_place(self) -> torch.Tensor | None:
        """Its bytes where they lie now, uint8 (bytes,), if they lie together and are not few."""
        if len(self._spans) != 1 or self.size < SMALL:
            return None
        _, address, size = self._spans[0]
        storage = self.members[0][1].untyped_storage()
        there = torch.empty(0, dtype=torch.uint8)
        return there.set_(storage, address - storage.data_ptr(), (size,), (1,))


def arenas(tensors: Sequence[torch.Tensor]) -> list[Arena]:
    """Tensors that :func:`fits`, numbered as they come: the small ones in one arena, each of the others in its own.

    Tensors of one storage that have bytes in common are together, whatever their size.
    """
    small, large = Arena(), []
    for neighbours in _neighbours(tensors):
        address, size, members = _span(neighbours)
        arena = small
        if size >= SMALL:
            arena = Arena()
            large.append(arena)
        arena.add(address, size, members)
    return [small, *large] if small.members else large


def _neighbours(tensors: Sequence[torch.Tensor]) -> Iterable[Sequence[Numbered]]:
    """The tensors, those that have bytes in common together, the first of them first."""
    storages = [tensor.untyped_storage().data_ptr() or -number for number, tensor in enumerate(tensors)]
    if len(set(storages)) == len(storages):
        return zip(enumerate(tensors))
    groups: list[list[Numbered]] = []
    storage = end = 0
    for number in sorted(range(len(tensors)), key=lambda number: (storages[number], tensors[number].data_ptr())):
        start = tensors[number].data_ptr()
        if not groups or storages[number] != storage or start >= end:
            groups.append([])
            end = 0
        groups[-1].append((number, tensors[number]))
        storage, end = storages[number], max(end, start + _extent(tensors[number]))
    return groups


def _span(members: Sequence[Numbered]) -> tuple[int, int, Sequence[Numbered]]:
    """From which address on, and how many bytes, to copy, and for what: a tensor by itself may be made dense first."""
    number, tensor = members[0]
    start = tensor.data_ptr()
    if len(members) > 1:
        start -= (start - tensor.untyped_storage().data_ptr()) % ALIGNMENT  # no element of the others shall lie askew
        return start, max(each.data_ptr() + _extent(each) for _, each in members) - start, members
    if tensor.is_contiguous():
        return start, tensor.nbytes, members
    if _extent(tensor) <= NEARLY_DENSE * tensor.nbytes:
        return start, _extent(tensor), members
    tensor = retyped(tensor.clone(), like=tensor)
    return tensor.data_ptr(), tensor.nbytes, [(number, tensor)]


def _extent(tensor: torch.Tensor) -> int:
    """How many bytes it is from the first element to the end of the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.itemsize * (1 + steps)

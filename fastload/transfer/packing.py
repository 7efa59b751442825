"""``PackedBlock``: host tensors packed into one block of bytes, and the same tensors over a copy of that block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, strided
from torchvision.tv_tensors import TVTensor

from fastload.structure.tree import retyped
from fastload.transfer.pinned import HostCopy

try:  # a sixth of the time that the public way takes
    from torch._C._dynamo.guards import _reinterpret_tensor as _tensor_over  # type: ignore[attr-defined]
except ImportError:

    def _tensor_over(block: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        return block.as_strided(shape, strides, offset).data  # no view: what is written to one does not touch others


__all__ = ["ALIGNMENT", "FEW", "SMALL", "PackedBlock", "is_plain", "plan_copies"]

ALIGNMENT = 16  # bytes

# Bytes from which a tensor has a block of its own. Whoever keeps a smaller one keeps no image with it; and queueing one
# more copy to the device takes the host as long as packing this much.
SMALL = 64 * 2**10

# To pack tensors and copy the block takes the host about as long as to queue the copies of so many pinned ones.
FEW = 8

# The bytes from a tensor's first element to its last are copied as they are, unless they are more than so many times
# its own.
NEARLY_DENSE = 2

DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
})  # fmt: skip


def is_plain(value: Any) -> bool:
    """Whether it is a tensor of a type about which all is known."""
    return type(value) is Tensor or isinstance(value, TVTensor)


def fits(value: Any) -> bool:
    """Whether it is a tensor of the host, and no more than its bytes, shape, strides and what a ``tv_tensor`` knows."""
    return (
        is_plain(value)
        and value.is_cpu
        and value.dtype in DTYPES  # quantized tensors are more
        and value.layout is strided
        and not (value.is_nested or value.is_neg() or value.is_conj())
    )


Numbered = tuple[int, Tensor]


class PackedBlock:
    """Tensors in one block, each from a multiple of ``ALIGNMENT`` bytes on; those that share bytes go on sharing them.

    >>> from fastload.transfer.pinned import memcpy
    >>> (packed,) = plan_copies([torch.arange(3), "name", torch.ones(2)])
    >>> block = torch.empty(packed.size, dtype=torch.uint8)
    >>> memcpy(packed.host_copies(block.data_ptr()))
    >>> packed.tensors(block)
    [(0, tensor([0, 1, 2])), (2, tensor([1., 1.]))]
    """

    def __init__(self) -> None:
        self.size = 0
        self._spans: list[HostCopy] = []  # to which byte of the block, from which address, how many bytes
        self._members: list[tuple[int, Tensor, int]] = []  # a tensor's number, itself, and its first byte

    def add(self, address: int, size: int, members: Sequence[Numbered]) -> None:
        """Give a place to the tensors that lie within ``size`` bytes from an address on."""
        start = self.size
        self._spans.append((start, address, size))
        for number, tensor in members:
            self._members.append((number, tensor, start + tensor.data_ptr() - address))
        self.size = start + size + -size % ALIGNMENT

    def host_copies(self, address: int) -> list[HostCopy]:
        """What to copy to fill a block at ``address`` on the host."""
        return [(address + start, source, size) for start, source, size in self._spans]

    def tensors(self, block: Tensor) -> list[Numbered]:
        """The tensors over ``block``, uint8 (size,) on any device, with their numbers."""
        typed = _Typed(block)
        made = []
        for number, like, start in self._members:
            elements, itemsize = typed[like.dtype]
            tensor = _tensor_over(elements, tuple(like.shape), like.stride(), start // itemsize)
            made.append((number, retyped(tensor, like)))
        return made

    @property
    def is_no_gain(self) -> bool:
        """Whether to pack its tensors would take longer than to copy each from where it lies."""
        return (
            len(self._members) <= FEW
            and len(self._members) == len(self._spans)
            and all(
                _may_be_alone(tensor, size)
                for (_, _, size), (_, tensor, _) in zip(self._spans, self._members, strict=True)
            )
        )

    @property
    def numbered(self) -> list[Numbered]:
        """Its tensors, where they lie now, with their numbers."""
        return [(number, tensor) for number, tensor, _ in self._members]


class _Typed(dict[torch.dtype, tuple[Tensor, int]]):
    """A block as elements of each dtype that is asked for, and the bytes of one."""

    def __init__(self, block: Tensor) -> None:
        super().__init__()
        self._block = block

    def __missing__(self, dtype: torch.dtype) -> tuple[Tensor, int]:
        self[dtype] = self._block.view(dtype), dtype.itemsize
        return self[dtype]


def plan_copies(values: Sequence[Any]) -> Iterator[Numbered | PackedBlock]:
    """What of ``values`` :func:`fits`: tensors best copied from where they lie, numbered by their places, and arenas.

    The large ones by themselves come first, each as soon as that is known, so that the device can begin. Of the rest
    the small are in one arena, and each of the others is in its own. Tensors of one storage that have bytes in common
    are together, whatever their size.
    """
    small, others = PackedBlock(), []
    for neighbours in _neighbours([numbered for numbered in enumerate(values) if fits(numbered[1])]):
        address, size, members = _span(neighbours)
        if size < SMALL:
            small.add(address, size, members)
        elif len(members) == 1 and _may_be_alone(members[0][1], size):
            yield members[0]
        else:
            others.append(PackedBlock())
            others[-1].add(address, size, members)
    if small.is_no_gain:
        yield from small.numbered
    else:
        yield small
    yield from others


def _may_be_alone(tensor: Tensor, size: int) -> bool:
    """Whether a tensor to which no other belongs is pinned and dense, so that its own copy is as it is."""
    return size == tensor.nbytes and tensor.is_pinned()


def _neighbours(tensors: Sequence[Numbered]) -> Iterable[Sequence[Numbered]]:
    """The tensors, those that have bytes in common together, the first of them first."""
    storages = {number: tensor.untyped_storage().data_ptr() or -number for number, tensor in tensors}  # 0: no bytes
    if len(set(storages.values())) == len(storages):
        return zip(tensors)
    groups: list[list[Numbered]] = []
    storage = end = 0
    for number, tensor in sorted(tensors, key=lambda each: (storages[each[0]], each[1].data_ptr())):
        start = tensor.data_ptr()
        if not groups or storages[number] != storage or start >= end:
            groups.append([])
            end = 0
        groups[-1].append((number, tensor))
        storage, end = storages[number], max(end, start + _extent(tensor))
    return groups


def _span(members: Sequence[Numbered]) -> tuple[int, int, Sequence[Numbered]]:
    """From which address on, and how many bytes, to copy, and for what: a tensor by itself may be made dense first."""
    number, tensor = members[0]
    start = tensor.data_ptr()
    if len(members) == 1 and tensor.is_contiguous():
        return start, tensor.nbytes, members
    if len(members) > 1:
        start -= (start - tensor.untyped_storage().data_ptr()) % ALIGNMENT  # no element of the others shall lie askew
        return start, max(each.data_ptr() + _extent(each) for _, each in members) - start, members
    if _extent(tensor) <= NEARLY_DENSE * tensor.nbytes:
        return start, _extent(tensor), members
    tensor = retyped(tensor.clone(), like=tensor)
    return tensor.data_ptr(), tensor.nbytes, [(number, tensor)]


def _extent(tensor: Tensor) -> int:
    """How many bytes it is from the first element to the end of the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.itemsize * (1 + steps)

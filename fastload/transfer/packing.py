"""``PackedBlock``: host tensors packed into one block of bytes, and the same tensors over a copy of that block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, strided

from fastload.structure.loaded_types import is_plain
from fastload.structure.tree import retyped
from fastload.transfer.pinned import HostCopy

try:  # a sixth of the time that the public way takes
    from torch._C._dynamo.guards import _reinterpret_tensor as _tensor_over  # type: ignore[attr-defined]
except ImportError:

    def _tensor_over(block: Tensor, shape: Sequence[int], strides: Sequence[int], offset: int) -> Tensor:
        return block.as_strided(shape, strides, offset).data  # no view: what is written to one does not touch others


__all__ = ["ALIGNMENT", "FEW", "SMALL", "PackedBlock", "plan_copies"]

ALIGNMENT = 16  # bytes

# Bytes from which a tensor gets a block of its own. Smaller ones share a block without any image, so keeping one keeps
# no image. To queue one more copy takes the host as long as to pack so many bytes.
SMALL = 64 * 2**10

# Up to so many small pinned tensors are copied one by one, which takes the host no longer than packing them.
FEW = 8

# A strided tensor's bytes are copied from its first element to its last, gaps included, unless that is more than so
# many times its own size.
NEARLY_DENSE = 2

DTYPES = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128,
    torch.float8_e4m3fn, torch.float8_e5m2,
})  # fmt: skip


def fits(value: Any) -> bool:
    """Whether it is a host tensor defined by its bytes, shape and strides, and by a ``tv_tensor``'s attributes."""
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
        """Reserve room for ``size`` bytes from an address on, and the tensors that lie in them."""
        start = self.size
        self._spans.append((start, address, size))
        for number, tensor in members:
            self._members.append((number, tensor, start + tensor.data_ptr() - address))
        self.size = start + size + -size % ALIGNMENT

    def host_copies(self, address: int) -> list[HostCopy]:
        """The copies that fill a block at ``address`` on the host."""
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
        """Whether packing its tensors takes longer than copying each from where it lies."""
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
    """A block viewed as each dtype asked for, and the bytes of an element."""

    def __init__(self, block: Tensor) -> None:
        super().__init__()
        self._block = block

    def __missing__(self, dtype: torch.dtype) -> tuple[Tensor, int]:
        self[dtype] = self._block.view(dtype), dtype.itemsize
        return self[dtype]


def plan_copies(values: Sequence[Any]) -> Iterator[Numbered | PackedBlock]:
    """How to copy those of ``values`` that fit: tensors to copy from where they lie, with their numbers, and blocks.

    Large pinned tensors come first, each as soon as it is found, so that the device can begin. All small tensors are in
    one block, and each other tensor in a block of its own. Tensors that share bytes are in the same block.
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
    """Whether a tensor that shares no bytes is pinned and dense, so that it can be copied from where it lies."""
    return size == tensor.nbytes and tensor.is_pinned()


def _neighbours(tensors: Sequence[Numbered]) -> Iterable[Sequence[Numbered]]:
    """The tensors in groups that share bytes, each group in the order of addresses."""
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
    """The address and number of bytes to copy for a group; a tensor with large gaps is made dense first."""
    number, tensor = members[0]
    start = tensor.data_ptr()
    if len(members) == 1 and tensor.is_contiguous():
        return start, tensor.nbytes, members
    if len(members) > 1:
        start -= (start - tensor.untyped_storage().data_ptr()) % ALIGNMENT  # keep elements aligned
        return start, max(each.data_ptr() + _extent(each) for _, each in members) - start, members
    if _extent(tensor) <= NEARLY_DENSE * tensor.nbytes:
        return start, _extent(tensor), members
    tensor = retyped(tensor.clone(), like=tensor)
    return tensor.data_ptr(), tensor.nbytes, [(number, tensor)]


def _extent(tensor: Tensor) -> int:
    """The bytes from the first element to the end of the last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.itemsize * (1 + steps)

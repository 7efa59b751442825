"""``sending_by_value``: workers send small tensors in the message of their batch.

A worker of PyTorch sends each tensor in shared memory of its own. To receive it, the training process connects to the
worker, and lets go of the interpreter some fifteen times meanwhile, for which the thread that trains waits. Labels are
2 kB, and boxes less: they are sent as soon as described. docs/notes/shared-memory.md has figures.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info
from torch.utils.weak import WeakTensorKeyDictionary

from fastload.data.vision_collate import collate_vision
from fastload.structure.loaded_types import is_plain
from fastload.structure.tree import tensors, tree_replace

__all__ = ["SMALL", "sending_by_value", "unshared"]

SMALL = 32 * 2**10  # bytes: with what else is in the message, it fits a pipe, of which it is read in one piece
Reduced = tuple[Any, ...] | str

_small = WeakTensorKeyDictionary()  # in a worker, the tensors of its batches that are sent by value


@contextmanager
def sending_by_value(loader: Any) -> Iterator[None]:
    """Workers that a ``DataLoader`` starts in this context send the small tensors of their batches by value.

        with sending_by_value(loader):
            batches = iter(loader)

    The training process gets tensors of the same type, values and attributes, in ordinary memory. Sent as PyTorch sends
    them are those that share memory with another of the batch or with another process, those that are not contiguous,
    and types that NumPy does not have. A ``loader`` of another kind is left alone.
    """
    if not isinstance(loader, DataLoader) or loader.num_workers == 0:
        yield
        return
    collate_fn = loader.collate_fn
    loader.collate_fn = _Sending(collate_fn)
    try:
        yield
    finally:
        loader.collate_fn = collate_fn


class _Sending:
    """A ``collate_fn`` whose batches are sent by value; a class, since workers that are spawned get it pickled."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, samples: Any) -> Any:
        batch = self._collate_fn(samples)
        if self._collate_fn in (default_collate, collate_vision):
            batch = unshared(batch)
        _mark_small(batch)
        return batch


def _mark_small(batch: Any) -> None:
    """Let those of a batch's tensors be sent by value that are small and share memory with no other of it."""
    found = {id(tensor): tensor for tensor in tensors(batch).values() if _is_in_host_memory(tensor)}.values()
    users = Counter(map(_storage, found))
    for tensor in found:
        if tensor.nbytes <= SMALL and tensor.is_contiguous() and users[_storage(tensor)] == 1 and is_plain(tensor):
            _small[tensor] = True
            _register(type(tensor))


def unshared(batch: Any) -> Any:
    """A batch of ``default_collate``'s with small tensors in ordinary memory; in a worker it makes some in shared."""
    if get_worker_info() is None:
        return batch
    found = {path: tensor for path, tensor in tensors(batch).items() if _is_in_host_memory(tensor)}
    shared = {path: tensor for path, tensor in found.items() if tensor.nbytes <= SMALL and _is_shared(tensor)}
    return tree_replace(batch, {path: tensor.clone() for path, tensor in shared.items()})


def _is_in_host_memory(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.layout is torch.strided and not tensor.is_nested


def _is_shared(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr() or id(tensor)  # an empty one has no memory to share


def _register(kind: type[torch.Tensor]) -> None:
    """Let multiprocessing's pickler ask :func:`_reduce` for tensors of this type, in this process."""
    known: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]  # noqa: SLF001
    before = known.get(kind, _reduce_by_default)
    if not isinstance(before, partial) or before.func is not _reduce:
        ForkingPickler.register(kind, partial(_reduce, before))


def _reduce(before: Callable[[torch.Tensor], Reduced], tensor: torch.Tensor) -> Reduced:
    """How to pickle a tensor: by value if it is to be and can be, and else as ``before``."""
    if tensor not in _small or _is_shared(tensor):
        return before(tensor)
    try:
        array = tensor.as_subclass(torch.Tensor).numpy()
    except (RuntimeError, TypeError):  # it has a gradient, or is of bfloat16 or another type that NumPy does not have
        return before(tensor)
    if type(tensor) is torch.Tensor:
        return torch.from_numpy, (array,)
    return _received, (array, type(tensor), vars(tensor))


def _reduce_by_default(tensor: torch.Tensor) -> Reduced:
    reduced: Reduced = tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]
    return reduced


def _received(array: np.ndarray[Any, Any], kind: type[torch.Tensor], attributes: dict[str, Any]) -> torch.Tensor:
    typed = torch.from_numpy(array).as_subclass(kind)
    vars(typed).update(attributes)
    return typed

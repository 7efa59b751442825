"""``sent_by_value``: the small tensors of a worker's batch, sent in the message that the batch is sent in.

A worker of PyTorch sends each tensor in shared memory of its own. To receive it, the training process connects to the
worker, and lets go of the interpreter some fifteen times meanwhile, for which the thread that trains waits. Labels are
2 kB: they are sent as soon as described. docs/notes/shared-memory.md has figures.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from fastload.structure.tree import tensors, tree_replace

__all__ = ["SMALL", "sent_by_value", "unshared"]

SMALL = 32 * 2**10  # bytes: with what else is in the message, it fits a pipe, of which it is read in one piece
MARK = "_fastload_by_value"  # an attribute of tensors

Reduced = tuple[Any, ...] | str


def sent_by_value(batch: Any) -> Any:
    """The same batch, whose small tensors are sent by value if this is a worker of a ``DataLoader``.

    >>> images, labels = sent_by_value((torch.zeros(64, 3, 224, 224), torch.arange(64)))

    The training process gets tensors of the same type, values and attributes, in ordinary memory. Sent as PyTorch sends
    them are those that share memory with another of the batch or with another process, and types that NumPy does not
    have.
    """
    if get_worker_info() is not None:
        found = {id(tensor): tensor for tensor in tensors(batch).values() if _is_in_host_memory(tensor)}.values()
        users = Counter(map(_storage, found))
        for tensor in found:
            if tensor.nbytes <= SMALL and users[_storage(tensor)] == 1:
                setattr(tensor, MARK, True)
                _register(type(tensor))
    return batch


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
    """How to pickle a tensor: by value if it is marked and can be, and else as ``before``."""
    if not hasattr(tensor, MARK) or _is_shared(tensor):
        return before(tensor)
    try:
        array = tensor.as_subclass(torch.Tensor).numpy()
    except (RuntimeError, TypeError):  # it has a gradient, or is of bfloat16 or another type that NumPy does not have
        return before(tensor)
    if type(tensor) is torch.Tensor:
        return torch.from_numpy, (array,)
    return _received, (array, type(tensor), {name: value for name, value in vars(tensor).items() if name != MARK})


def _reduce_by_default(tensor: torch.Tensor) -> Reduced:
    reduced: Reduced = tensor.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[no-untyped-call]
    return reduced


def _received(array: np.ndarray[Any, Any], kind: type[torch.Tensor], attributes: dict[str, Any]) -> torch.Tensor:
    typed = torch.from_numpy(array).as_subclass(kind)
    vars(typed).update(attributes)
    return typed

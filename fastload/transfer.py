"""Send a nested batch to the device without making anyone wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torchvision import tv_tensors

from fastload.nested import Path, map_movable
from fastload.streams import Recordable

__all__ = ["Sent", "move_own", "send", "send_tensor"]


@dataclass
class Sent:
    """A batch on its way to a device.

    ``tensors`` holds its tensors by path; ``containers``, what moved as a whole and can itself tell the allocator of a
    stream (``TensorDict``). ``has_own`` says that something is still where it was: objects with no more than a ``to``
    of their own, and sparse tensors. The allocator cannot be told of the memory they will hold, so only the consumer
    may move them, on its own stream (:func:`move_own`).
    """

    batch: Any
    tensors: dict[Path, torch.Tensor]
    containers: list[Recordable]
    has_own: bool

    def memory(self) -> list[Recordable]:
        """What is on the device now, for the allocator to be told who uses it."""
        return [*(tensor for tensor in self.tensors.values() if tensor.device.type != "cpu"), *self.containers]


def send(batch: Any, device: torch.device) -> Sent:
    """Queue the copies of ``batch`` to ``device`` on the current stream.

    Tensors that are not pinned are pinned first, since the device copies nothing else while the host goes on. The
    caller must keep ``batch`` until the copies are done.
    """
    sent = Sent(batch, {}, [], has_own=False)

    def move(leaf: Any, path: Path) -> Any:
        if _is_own(leaf):
            sent.has_own = True
        elif isinstance(leaf, torch.Tensor):
            leaf = sent.tensors[path] = send_tensor(leaf, device)
        else:
            leaf = leaf.to(device)
            sent.containers.append(leaf)
        return leaf

    sent.batch = map_movable(move, batch)
    return sent


def move_own(batch: Any, device: torch.device) -> Any:
    """``batch`` with the objects that :func:`send` left behind moved by their own ``to``, on the current stream."""

    def move(leaf: Any, _: Path) -> Any:
        return leaf.to(device) if _is_own(leaf) else leaf

    return map_movable(move, batch)


def _is_own(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.layout is not torch.strided or leaf.is_nested
    return not hasattr(leaf, "record_stream")


def send_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Queue the copy of one tensor, as :func:`send` does."""
    if tensor.device == device:
        return tensor
    if device.type == "mps":  # asynchronous copies to Metal may deliver what the host wrote later
        return tensor.to(device)
    if tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = _pin(tensor)
    return tensor.to(device, non_blocking=True)


def _pin(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, tv_tensors.TVTensor):
        typed: torch.Tensor = tv_tensors.wrap(tensor.as_subclass(torch.Tensor).pin_memory(), like=tensor)
        return typed
    return tensor.pin_memory()

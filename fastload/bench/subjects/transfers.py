"""Ways to bring a batch to the device: the subjects of ``transfer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fastload.streams import SideStream, SyncStream
from fastload.structure.tree import tree_flatten, tree_unflatten
from fastload.transfer.transfer import Transfer

__all__ = ["TRANSFERS", "Send", "one_copy"]

Send = Callable[[Any], Any]  # a batch in host memory to the same on the device, queued


def per_tensor(side: SideStream | SyncStream) -> Send:
    """Copy tensor by tensor, as many training scripts do; on the CPU too, where ``to`` alone would not."""
    return lambda batch: _sent(batch, side.device)


def fastload(side: SideStream | SyncStream) -> Send:
    transfer = Transfer(side, pack=True)

    def send(batch: Any) -> Any:
        tree = tree_flatten(batch)
        return tree_unflatten(tree.replaced(transfer.move(tree.leaves)))

    return send


def one_copy(size: int, device: torch.device) -> Send:
    """Return the floor: whatever the batch, ``size`` bytes are copied from one pinned block."""
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda").random_()
    target = torch.empty(size, dtype=torch.uint8, device=device)
    return lambda _: target.copy_(source, non_blocking=True)


def _sent(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True, copy=True)
    if isinstance(batch, dict):
        return {key: _sent(value, device) for key, value in batch.items()}
    return type(batch)(_sent(value, device) for value in batch)


TRANSFERS = {"per_tensor": per_tensor, "fastload": fastload}

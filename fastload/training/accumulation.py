"""The batches of one update: their gradients add up to the mean, and are reduced over ranks once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["AccumulationWindow", "Ranks", "scale"]

_NOTHING = nullcontext()


class AccumulationWindow:
    """The batches of one update, up to ``size`` of them, and what their gradients are to be divided by.

    Batches count alike, and each loss is divided by ``size`` before its backward pass; or each counts as many times
    as it has ``items``, and the gradients are divided by the sum of all ranks' items at the end.
    """

    def __init__(self, accumulate: int) -> None:
        self.accumulate = accumulate
        self.close()

    def close(self) -> None:
        """Begin a new window."""
        self.size, self.batches = self.accumulate, 0
        self.items: Tensor | int | None = None

    def admit(self, left: int | None) -> None:
        """Take a batch in, of which there are ``left`` in the epoch, if that is known."""
        if self.batches == 0 and left is not None:
            self.size = min(self.accumulate, left)

    @property
    def is_last(self) -> bool:
        """Whether the batch to come completes the window."""
        return self.batches + 1 == self.size

    def share(self, loss: Tensor, items: Tensor | int | None) -> Tensor:
        """Return what to run the backward pass on."""
        if self.batches > 0 and (items is None) is not (self.items is None):
            raise TypeError(f"either all batches of a window have items, or none; got items={items!r}")
        if items is not None:
            return loss * items
        # A division by 1 changes nothing, but still launches kernels, forward and backward.
        return loss if self.size == 1 else loss / self.size

    def add(self, items: Tensor | int | None) -> None:
        """Count a batch whose backward pass is done."""
        self.batches += 1
        if items is not None:
            self.items = items if self.items is None else self.items + items

    def factor(self, ranks: Ranks) -> Tensor | float | None:
        """Return what to multiply the gradients by, which could not be known before the window ended; None for 1."""
        if self.items is not None:
            return ranks.number / ranks.sum(self.items)
        return self.size / self.batches if self.batches < self.size else None

    def state_dict(self) -> dict[str, Any]:
        return {"size": self.size, "batches": self.batches, "items": self.items}

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        items = state["items"]
        self.size, self.batches = state["size"], state["batches"]
        self.items = items.to(device) if isinstance(items, Tensor) else items


class Ranks:
    """The processes that train copies or shards of these models together; one if no model is wrapped for that.

    Knows ``DistributedDataParallel`` and ``fully_shard`` (FSDP2), also inside a module of one's own.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        modules = [module for model in models for module in model.modules()]
        self.copied = [module for module in modules if isinstance(module, DistributedDataParallel)]
        self.sharded: list[Any] = [module for module in modules if _is_sharded(module)]
        self._device = device
        self._group = self.copied[0].process_group if self.copied else None
        self.number = distributed.get_world_size(self._group) if self.copied or self.sharded else 1

    def reducing(self, now: bool) -> AbstractContextManager[None]:
        """Reduce the gradients of the block's backward pass over ranks, or leave that to a later one."""
        return self._reducing(now) if self.copied or self.sharded else _NOTHING

    @contextmanager
    def _reducing(self, now: bool) -> Iterator[None]:
        for module in self.sharded:
            module.set_requires_gradient_sync(now, recurse=False)
        with ExitStack() as stack:
            if not now:
                for module in self.copied:
                    stack.enter_context(module.no_sync())
            yield

    def sum(self, number: Tensor | int) -> Tensor | int:
        """Return the sum of all ranks' numbers, on the device if there are several ranks."""
        if self.number == 1:
            return number
        total = number.clone() if isinstance(number, Tensor) else torch.full((), number, device=self._device)
        distributed.all_reduce(total, group=self._group)
        return total

    def agree(self, flag: Tensor) -> Tensor:
        """Return 1 on all ranks if ``flag`` is 1 on one of them."""
        if self.number > 1:
            distributed.all_reduce(flag, distributed.ReduceOp.MAX, group=self._group)
        return flag

    @torch.no_grad()
    def reduce_left_over(self) -> None:
        """Average the gradients that no backward pass has reduced, since none was known to be the last."""
        if self.sharded:
            raise RuntimeError(
                "flush() cannot reduce the gradients of a window that FSDP2 left unreduced. Loop over "
                "step.epoch(loader), which knows the last batch beforehand, or drop the last short window"
            )
        for module in self.copied:
            parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
            # A parameter may have had no part on this rank, but on another.
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
            for dtype in {gradient.dtype for gradient in gradients}:
                chosen = [gradient for gradient in gradients if gradient.dtype == dtype]
                flat = torch.cat([gradient.flatten() for gradient in chosen]).div_(self.number)
                distributed.all_reduce(flat, group=self._group)
                parts = torch.split(flat, [gradient.numel() for gradient in chosen])
                torch._foreach_copy_(chosen, [part.view_as(to) for part, to in zip(parts, chosen, strict=True)])
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient


def _is_sharded(module: nn.Module) -> bool:
    return hasattr(module, "set_requires_gradient_sync") and not isinstance(module, DistributedDataParallel)


def scale(gradients: list[Tensor], factor: Tensor | float) -> None:
    """Multiply gradients, sparse ones too, where they lie."""
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    if dense:
        torch._foreach_mul_(dense, factor)
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.mul_(factor)

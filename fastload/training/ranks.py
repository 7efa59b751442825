"""``Ranks``: the processes that train one model together, and what they exchange."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from fastload.structure.loaded_types import loaded_types

if TYPE_CHECKING:
    from typing import TypeGuard

    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

__all__ = ["Ranks", "is_fsdp", "leave_statistics_unread", "local_part", "scale_gradients", "whole_tensor"]

_NO_CONTEXT = nullcontext()
_NEVER = 2**31 - 1  # as a number of steps, the largest that PyTorch takes


class Ranks:
    """The processes that train replicas or shards of these models; one process if no model is wrapped for that.

    >>> ranks = Ranks([nn.Linear(4, 2)], torch.device("cpu"))
    >>> ranks.count, ranks.sum(8)
    (1, 8)

    Finds ``DistributedDataParallel`` and ``fully_shard`` (FSDP2), also on parts of a model.
    """

    def __init__(self, models: Sequence[nn.Module], device: torch.device) -> None:
        modules = [module for model in models for module in model.modules()]
        self.replicated = [module for module in modules if isinstance(module, DistributedDataParallel)]
        self.sharded: list[FSDPModule] = [module for module in modules if is_fsdp(module)]
        self._device = device
        self._group = self.replicated[0].process_group if self.replicated else None
        self.count = distributed.get_world_size(self._group) if self.replicated or self.sharded else 1

    def gradient_sync(self, *, enabled: bool) -> AbstractContextManager[None]:
        """A context whose backward pass reduces gradients over the ranks, or leaves them as each rank has them."""
        return self._gradient_sync(enabled) if self.replicated or self.sharded else _NO_CONTEXT

    @contextmanager
    def _gradient_sync(self, enabled: bool) -> Iterator[None]:
        for shard in self.sharded:
            shard.set_requires_gradient_sync(enabled, recurse=False)
        with ExitStack() as stack:
            if not enabled:
                for replica in self.replicated:
                    stack.enter_context(replica.no_sync())
            yield

    def refuse_join(self) -> None:
        """Raise RuntimeError inside ``torch.distributed.algorithms.Join``.

        There ranks that have no batches left answer each reduction of ``DistributedDataParallel``, and no other.
        """
        if any(replica._join_config.enable for replica in self.replicated):  # noqa: SLF001  (no public way to ask)
            raise RuntimeError(
                "inside Join a step cannot agree with ranks that have no batches left. Leave Join out and give all "
                "ranks equally many batches, as DistributedSampler does; or make the step with accumulate=1 and "
                "on_nonfinite='ignore', and call it without items="
            )

    def sum(self, number: Tensor | float) -> Tensor | float:
        """Return the sum of all ranks' numbers; with several ranks, as a tensor on the device."""
        if self.count == 1:
            return number
        if isinstance(number, Tensor):
            total = number.to(self._device, non_blocking=True, copy=True)
        else:
            total = torch.full((), number, device=self._device)
        distributed.all_reduce(total, group=self._group)
        return total

    def any(self, flags: Tensor) -> Tensor:
        """Set each of ``flags`` to 1 on all ranks if it is 1 on one of them, and return them."""
        if self.count > 1:
            distributed.all_reduce(flags, distributed.ReduceOp.MAX, group=self._group)
        return flags

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Average the gradients of a window in which no backward pass has reduced them."""
        if self.sharded:
            raise RuntimeError(
                "flush() cannot reduce the gradients of an unfinished window under FSDP2. Loop over "
                "step.epoch(loader), which knows the last batch beforehand, or drop the last short window"
            )
        for module in self.replicated:
            parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
            # A parameter may be unused on this rank, and used on another.
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
            for dtype in {gradient.dtype for gradient in gradients}:
                chosen = [gradient for gradient in gradients if gradient.dtype == dtype]
                flat = torch.cat([gradient.flatten() for gradient in chosen]).div_(self.count)
                distributed.all_reduce(flat, group=self._group)
                parts = torch.split(flat, [gradient.numel() for gradient in chosen])
                torch._foreach_copy_(chosen, [part.view_as(to) for part, to in zip(parts, chosen, strict=True)])
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient


def leave_statistics_unread(replica: DistributedDataParallel) -> None:
    """Keep ``replica`` from reading how long its steps took, after the first ten.

    Once in 100 steps it would wait until the device has done all that is queued, and the host would lose its lead.
    """
    replica._set_ddp_runtime_logging_sample_rate(_NEVER)  # type: ignore[no-untyped-call]  # noqa: SLF001  (not public)


def is_fsdp(module: nn.Module) -> TypeGuard[FSDPModule]:
    """Whether ``fully_shard`` has sharded this module."""
    return isinstance(module, loaded_types("torch.distributed.fsdp", "FSDPModule"))


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor that FSDP2 has sharded; other tensors as they are."""
    return tensor.to_local() if _is_sharded(tensor) else tensor


def whole_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor that FSDP2 has sharded as one, gathered from all ranks; other tensors as they are."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def _is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    return isinstance(tensor, loaded_types("torch.distributed.tensor", "DTensor"))


def scale_gradients(gradients: list[Tensor], factor: Tensor | float) -> None:
    """Multiply gradients in place, dense ones in one launch, sparse ones each."""
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    if dense:
        torch._foreach_mul_(dense, factor)
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.mul_(factor)

"""The replicas of ``nn.DataParallel``: they compute in threads of their own, to which autocast has to be brought."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

__all__ = ["hand_on_autocast"]


def hand_on_autocast(models: Sequence[nn.Module], device: torch.device) -> None:
    """Let all replicas compute under the autocast of the thread that calls ``DataParallel``.

    Autocast is a thread's own. PyTorch enables it in the replicas' threads if it is in the caller's, but with its
    default dtype: float16 on CUDA, though bf16 was asked for and no ``GradScaler`` is at work.
    """
    for module in (module for model in models for module in model.modules()):
        if isinstance(module, nn.DataParallel):
            _Handover(module, device)


class _Handover:
    """Bound methods as hooks, since these can be copied and pickled with the model."""

    def __init__(self, parallel: nn.DataParallel[nn.Module], device: torch.device) -> None:
        self._original = parallel.module
        self._device_type = device.type
        self._take()
        parallel.register_forward_pre_hook(self._take)
        parallel.module.register_forward_pre_hook(self._give)

    def _take(self, *_: object) -> None:
        self._enabled = torch.is_autocast_enabled(self._device_type)
        self._dtype = torch.get_autocast_dtype(self._device_type)

    def _give(self, module: nn.Module, _: object) -> None:
        if module is not self._original:  # a replica, whose thread ends after it
            torch.set_autocast_enabled(self._device_type, self._enabled)
            torch.set_autocast_dtype(self._device_type, self._dtype)

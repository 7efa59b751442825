"""``create_loader``: timm's, with fastload's ``PrefetchLoader`` in the place of timm's."""

from __future__ import annotations

from typing import Any

import torch
from timm.data.loader import create_loader as create_timm_loader

from fastload.offload.timm_loader import TimmLoader, device_steps, is_prefetcher
from fastload.transforms import Compose

__all__ = ["TimmLoader", "create_loader"]


def create_loader(
    *args: Any,
    depth: int = 3,
    static: bool = False,
    seed: int = 0,
    memory_format: torch.memory_format = torch.contiguous_format,
    **kwargs: Any,
) -> Any:
    """Make the loader that ``timm.data.create_loader`` makes of these arguments, with fastload's prefetcher.

    >>> from timm.data import ImageDataset  # doctest: +SKIP
    >>> loader = create_loader(ImageDataset("train"), 224, 256, is_training=True, re_prob=0.25)  # doctest: +SKIP

    Images are normalised with the same mean, std and ``img_dtype``, and erased with the same probability and mode.
    ``mixup_enabled``, ``sampler`` and ``dataset`` are as timm's training script uses them.

    Args:
        *args: those of ``timm.data.create_loader``.
        depth: as in :class:`fastload.PrefetchLoader`.
        static: the same.
        seed: the same; it decides what is erased.
        memory_format: of the images, such as ``torch.channels_last``.
        **kwargs: those of ``timm.data.create_loader``.

    Returns:
        a :class:`TimmLoader`; with ``use_prefetcher=False`` timm's ``DataLoader``, which normalises on the host.

    Raises:
        ValueError: ``re_mode="rand"``, ``re_count`` above 1 or ``re_split``: erasing that fastload does not do.
    """
    theirs = create_timm_loader(*args, **kwargs)
    if not is_prefetcher(theirs):
        return theirs
    transform = Compose(device_steps(theirs, memory_format))
    return TimmLoader(theirs.loader, transform=transform, device=theirs.device, depth=depth, static=static, seed=seed)

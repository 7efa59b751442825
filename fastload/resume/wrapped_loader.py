"""``torch_loader_in``: the ``DataLoader`` inside a wrapper of a framework's, and what a wrapper says of its batches."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

__all__ = ["torch_loader_in", "yields_fresh_batches"]

# Where wrappers keep what they wrap: timm, Fabric and Ray Train, Hugging Face, Accelerate.
ATTRIBUTES = "loader", "_dataloader", "dataloader", "base_dataloader"
DEEPEST = 8  # wrappers around each other


def torch_loader_in(loader: Any) -> DataLoader[Any] | None:
    """The ``DataLoader`` that ``loader`` is or wraps; None if there is none.

    >>> class Wrapper:
    ...     def __init__(self, loader):
    ...         self.loader = loader
    >>> loader = DataLoader([1, 2])
    >>> torch_loader_in(Wrapper(Wrapper(loader))) is loader, torch_loader_in([1, 2])
    (True, None)

    Wrappers are known by the attribute ``loader``, ``dataloader``, ``_dataloader`` or ``base_dataloader``, and
    WebDataset's ``WebLoader`` by a ``pipeline`` that begins with one.
    """
    for _ in range(DEEPEST):
        if loader is None or isinstance(loader, DataLoader):
            return loader
        loader = _wrapped_by(loader)
    return None


def yields_fresh_batches(loader: Any) -> bool:
    """Whether a batch keeps its values when ``loader`` is asked for the next, so that several can be pulled ahead.

    It does if the loader says so by an attribute ``yields_fresh_batches``; else if it is or wraps a ``DataLoader`` with
    workers, which reuse no memory.
    """
    promised = getattr(loader, "yields_fresh_batches", None)
    if promised is not None:
        return bool(promised)
    inner = torch_loader_in(loader)
    return inner is not None and inner.num_workers > 0


def _wrapped_by(loader: Any) -> Any:
    wrapped = next((held for name in ATTRIBUTES if (held := getattr(loader, name, None)) is not None), None)
    stages = getattr(loader, "pipeline", None)
    return stages[0] if wrapped is None and isinstance(stages, list) and stages else wrapped

"""``Static``: batches at fixed addresses, as CUDA graphs need them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fastload.arguments import chosen, flag, quoted
from fastload.structure.tree import Path, Tree, name_of, retyped, tree_flatten, tree_unflatten

__all__ = ["BatchSpec", "FixedBuffer", "Static"]

SHORT = ("dynamic", "drop", "pad")
POISON = 0xFF  # in every byte: NaN, -1, 255, True


@dataclass(frozen=True)
class Static:
    """How batches come at fixed addresses: ``PrefetchLoader(loader, static=Static("pad", poison=True))``.

    >>> Static("pad")
    Static(short='pad', poison=False, refuse=False)

    Args:
        short: what happens to a batch with fewer samples than a whole one. ``"dynamic"``: it comes in memory of its
            own. ``"drop"``: it is left out. ``"pad"``: zeros follow its samples, and every batch comes as
            ``(batch, mask)`` with ``mask``, bool (N,), True for samples. docs/streams.md says which batch is whole.
        poison: for debugging: when a batch is released, all bytes of its memory are set to 0xFF (NaN in floating point)
            on the consumer's stream, so that a later read shows.
        refuse: for debugging: asking for the next but one batch while a tensor, a view or autograd still holds memory
            of this one raises a RuntimeError that names it.

    Raises:
        ValueError: ``short`` is none of the three.
        TypeError: ``poison`` or ``refuse`` is neither True nor False.
    """

    short: str = "dynamic"
    poison: bool = False
    refuse: bool = False

    def __post_init__(self) -> None:
        chosen("short", self.short, SHORT)
        flag("poison", self.poison)
        flag("refuse", self.refuse)

    @classmethod
    def of(cls, static: bool | str | Static) -> Static | None:
        """The settings that an argument ``static`` stands for; None for False."""
        if isinstance(static, Static):
            return static
        if isinstance(static, bool):
            return cls() if static else None
        if static not in SHORT:
            raise ValueError(f"static must be True, False, a fl.Static or one of {SHORT}; got {quoted(static)}")
        return cls(static)


class FixedBuffer:
    """Memory for one batch, which stays where it is."""

    def __init__(self, static: Static, spec: BatchSpec) -> None:
        self._static = static
        self._spec = spec
        self._memory: list[torch.Tensor] = []
        self._owners: list[int] = []  # of each tensor here, while nobody holds a batch that lies here

    def fill(self, tree: Tree, missing: int = 0) -> Tree | None:
        """A batch on the device, copied here on the current stream; None if it is to be dropped.

        ``missing`` says how many samples fewer it is known to have than a whole batch.

        Raises:
            TypeError: it differs in structure from the first batch, or holds what is no dense tensor.
        """
        samples = self._spec.samples_of(tree, missing)
        is_padded = self._static.short == "pad"
        if samples < self._spec.samples and not is_padded:
            return tree if self._static.short == "dynamic" else None
        device = next((leaf.device for leaf in tree.movables.values()), torch.device("cpu"))
        if is_padded:  # where the batch is padded with zeros, the mask is padded with False
            mask = torch.ones(samples, dtype=torch.bool, device=device)
            tree = tree_flatten((tree_unflatten(tree), mask))
        leaves = tree.movables
        if not self._memory:
            self._memory = self._spec.allocated(device, masked=is_padded)
            self._owners = list(map(_owners, self._memory))
        for memory, leaf in zip(self._memory, leaves.values(), strict=True):
            _copy(memory, leaf)
        here = zip(self._memory, leaves.items(), strict=True)
        return tree.replaced({path: retyped(memory.detach(), like=leaf) for memory, (path, leaf) in here})

    def poison(self) -> None:
        """Overwrite all values here, on the current stream, if that is asked for."""
        for memory in self._memory if self._static.poison else ():
            torch.as_strided(memory, (memory.numel(),), (1,)).view(torch.uint8).fill_(POISON)

    def refuse(self) -> None:
        """Raise RuntimeError if the batch that was here is still held, and that is to be refused."""
        if not self._static.refuse:
            return
        held = [_owners(memory) > owners for memory, owners in zip(self._memory, self._owners, strict=True)]
        if any(held):
            raise RuntimeError(
                f"{self._spec.name(held.index(True))} of the batch before the last is still held, and the next batch "
                "takes its memory: clone() what you keep, or leave out static"
            )


class BatchSpec:
    """Shapes and dtypes of a whole batch, which are learnt from the first. All have the same, but for fewer samples."""

    def __init__(self) -> None:
        self.samples = 0
        self._likes: dict[Path, torch.Tensor] = {}

    def samples_of(self, tree: Tree, missing: int = 0) -> int:
        """How many samples a batch has; refused if it differs from the first in anything else.

        A whole one has ``missing`` more than this one, if this is the first.
        """
        found = {path: _plain(leaf, path) for path, leaf in tree.movables.items()}
        samples = next((len(tensor) for tensor in found.values() if tensor.ndim), 0)
        if not self._likes:
            self.samples = samples + missing
            self._likes = {path: _like(tensor, samples, self.samples) for path, tensor in found.items()}
        for path in found | self._likes:
            self._check(path, found.get(path), samples)
        return samples

    def allocated(self, device: torch.device, *, masked: bool) -> list[torch.Tensor]:
        """Memory for a whole batch, and for its mask if there is one."""
        mask = [torch.empty(self.samples, dtype=torch.bool, device=device)] if masked else []
        return [torch.empty_like(like, device=device) for like in self._likes.values()] + mask

    def name(self, number: int) -> str:
        """The path of a leaf by its number, or "the mask"."""
        return [*map(name_of, self._likes), "the mask"][number]

    def _check(self, path: Path, tensor: torch.Tensor | None, samples: int) -> None:
        like = self._likes.get(path)
        if tensor is not None and like is not None and tensor.dtype == like.dtype:
            fewer = (samples, *like.shape[1:]) if like.ndim and len(like) == self.samples >= samples else like.shape
            if tensor.shape in (like.shape, fewer):
                return
        what_to_do = (
            f"the first batch had {self.samples} samples, for which there is memory, and this one has {samples}; let "
            "the first be a whole batch (drop_last=True; a collate function that leaves none out), or leave out static"
            if 0 < self.samples < samples
            else "batches at fixed addresses are all alike, but for fewer samples; leave out static, or make them so "
            "in the collate function"
        )
        raise TypeError(
            f"{name_of(path)} is {_describe(tensor)} and was {_describe(like)} in the first batch: {what_to_do}"
        )


def _plain(leaf: Any, path: Path) -> torch.Tensor:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided or leaf.is_nested:
        raise TypeError(
            f"batches at fixed addresses are made of dense tensors; {name_of(path)} is a {type(leaf).__name__}"
            f"{f' of layout {leaf.layout}' if isinstance(leaf, torch.Tensor) else ''}: leave out static, or change it"
        )
    return leaf.as_subclass(torch.Tensor)


def _like(tensor: torch.Tensor, samples: int, whole: int) -> torch.Tensor:
    """A tensor without memory, with the layout that one of ``samples`` samples has in a ``whole`` batch."""
    if samples == whole or not tensor.ndim or len(tensor) != samples:
        return torch.empty_like(tensor, device="meta")
    row = torch.empty_like(tensor[0], device="meta")
    return torch.empty_strided((whole, *row.shape), (row.numel(), *row.stride()), dtype=row.dtype, device="meta")


def _owners(tensor: torch.Tensor) -> int:
    """How many tensors use a tensor's storage, held by Python or by autograd."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))  # noqa: SLF001


def _copy(memory: torch.Tensor, tensor: torch.Tensor) -> None:
    if tensor.shape == memory.shape:
        memory.copy_(tensor)
    else:
        memory[: len(tensor)].copy_(tensor)
        memory[len(tensor) :].zero_()


def _describe(tensor: torch.Tensor | None) -> str:
    return "not there" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"

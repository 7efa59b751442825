"""``note_contents``: what a batch has in it, as far as its speed depends on that."""

from __future__ import annotations

import torch
from torch._C import DisableTorchFunctionSubclass  # each question to a tv_tensor takes microseconds without

from fastload.data.encoded import EncodedImages
from fastload.stats.batch_times import BatchTimes
from fastload.structure.tree import Tree

__all__ = ["note_contents"]


def note_contents(tree: Tree, times: BatchTimes) -> None:
    """Note how many samples and bytes a batch has, and what its images are: the files, else the first tensor."""
    with DisableTorchFunctionSubclass():
        for leaf in tree.leaves.values():
            if isinstance(leaf, EncodedImages):
                times.bytes += leaf.block.nbytes
                times.samples = times.samples or len(leaf)
                times.images = "files"
            elif isinstance(leaf, torch.Tensor):
                times.bytes += leaf.numel() * leaf.element_size()
                times.samples = times.samples or (leaf.size(0) if leaf.dim() else 0)
                times.images = times.images or str(leaf.dtype).removeprefix("torch.")

"""Read memory of the host from the device."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["read"]

WORDS = 1024  # of 32 bits that a program copies
LAUNCH = {"num_warps": 8}


@triton.jit
def _read_kernel(source, target, words, WORDS: tl.constexpr):
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    tl.store(target + word, tl.load(source + word, word < words), word < words)


def read(block: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on ``device`` of a pinned block of whole words of 32 bits, which must not change until it is made."""
    target = torch.empty(len(block), dtype=torch.uint8, device=device)
    words = len(block) // 4
    if words:
        grid = (triton.cdiv(words, WORDS),)
        _read_kernel[grid](block.view(torch.int32), target.view(torch.int32), words, WORDS=WORDS, **LAUNCH)
    return target

"""Counter-based normal noise: Philox4x32-10 and Box-Muller. Each value depends on the seed and its position only."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["normal", "philox"]

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # added to the key's two words in each round
LOW_WORD = np.uint64(0xFFFFFFFF)
WORD_BITS = np.uint64(32)


def philox(key: int, counters: np.ndarray) -> np.ndarray:
    """Philox4x32-10: four random 32-bit words for each counter.

    >>> [hex(word) for word in philox(0, np.zeros(4, dtype=np.uint64)).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']

    Args:
        key: 64 bits.
        counters: uint64 (..., 4), four 32-bit words each.

    Returns:
        uint64 (..., 4), four 32-bit words each.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The tests check its published vectors.
    """
    c0, c1, c2, c3 = np.moveaxis(counters, -1, 0)
    for i in range(ROUNDS):
        k0, k1 = (np.uint64((word + i * step) % 2**32) for word, step in zip((key, key >> 32), KEY_STEPS, strict=True))
        p0, p2 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p2 >> WORD_BITS) ^ c1 ^ k0, p2 & LOW_WORD, (p0 >> WORD_BITS) ^ c3 ^ k1, p0 & LOW_WORD
    return np.stack([c0, c1, c2, c3], axis=-1)


def normal(seed: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """Standard normal noise for an image (C, H, W), float32.

    >>> normal(0, (3, 2, 2)).shape
    torch.Size([3, 2, 2])

    Philox with the key ``seed`` and the counter (y, x, k, 0) gives four words, for channels 4k to 4k + 3 of pixel
    (y, x). Box-Muller turns each pair of words u, v into two normal numbers:
    ``sqrt(-2 ln(((u >> 8) + 1) / 2**24)) * (cos, sin)(2 pi (v >> 8) / 2**24)``.
    """
    channels, height, width = shape
    blocks = -(-channels // 4)
    positions = np.indices((blocks, height, width), dtype=np.uint64)
    counters = np.stack([positions[1], positions[2], positions[0], np.zeros_like(positions[0])], axis=-1)
    words = torch.from_numpy((philox(seed, counters) >> np.uint64(8)).astype(np.float32)) * 2.0**-24
    uniform, turns = words[..., ::2] + 2.0**-24, words[..., 1::2]
    radius, angle = (-2 * uniform.log()).sqrt(), turns * (2 * torch.pi)
    pairs = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return pairs.flatten(-2).permute(0, 3, 1, 2).flatten(0, 1)[:channels]

"""Random numbers that a kernel can draw for each value on its own: Philox4x32-10 and the Box-Muller transform."""

from __future__ import annotations

import numpy as np
import torch

__all__ = ["normal", "philox"]

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
STEPS = (0x9E3779B9, 0xBB67AE85)  # what the key's words grow by in each round
LOW = np.uint64(0xFFFFFFFF)
WORD = np.uint64(32)


def philox(key: int, counters: np.ndarray) -> np.ndarray:
    """Four random words for each counter: uint64 (..., 4) that hold 32 bits each, from such counters and a 64-bit key.

    >>> [hex(word) for word in philox(0, np.zeros(4, dtype=np.uint64)).tolist()]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; its published test vectors hold.
    """
    c0, c1, c2, c3 = np.moveaxis(counters, -1, 0)
    for i in range(ROUNDS):
        k0, k1 = (np.uint64((word + i * step) % 2**32) for word, step in zip((key, key >> 32), STEPS, strict=True))
        p0, p2 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p2 >> WORD) ^ c1 ^ k0, p2 & LOW, (p0 >> WORD) ^ c3 ^ k1, p0 & LOW
    return np.stack([c0, c1, c2, c3], axis=-1)


def normal(seed: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """Standard normal noise for an image (C, H, W), float32.

    >>> normal(0, (3, 2, 2)).shape
    torch.Size([3, 2, 2])

    Channels 4k to 4k + 3 of pixel (y, x) are the four normal numbers that two Box-Muller transforms make of the words
    at counter (y, x, k, 0) under the key ``seed``: from words u, v the pair
    ``sqrt(-2 ln((u >> 8) + 1) / 2**24)) * (cos, sin)(2 pi (v >> 8) / 2**24)``.
    """
    channels, height, width = shape
    blocks = -(-channels // 4)
    places = np.indices((blocks, height, width), dtype=np.uint64)
    counters = np.stack([places[1], places[2], places[0], np.zeros_like(places[0])], axis=-1)
    words = torch.from_numpy((philox(seed, counters) >> np.uint64(8)).astype(np.float32)) * 2.0**-24
    uniform, turns = words[..., ::2] + 2.0**-24, words[..., 1::2]
    radius, angle = (-2 * uniform.log()).sqrt(), turns * (2 * torch.pi)
    pairs = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1)
    return pairs.flatten(-2).permute(0, 3, 1, 2).flatten(0, 1)[:channels]

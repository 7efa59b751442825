"""Counter-based normal noise, equal to that of :mod:`fastload.kernels.reference.noise` up to rounding."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["normal"]


@triton.jit
def normal(seed, y, x, C: tl.constexpr):
    """Standard normal noise, a tensor for each of ``C`` channels, rounded up to a multiple of 4."""
    c0, c1 = tl.broadcast(y, x)
    out = ()
    for block in tl.static_range((C + 3) // 4):
        words = tl.philox(seed, c0, c1, c0 * 0 + block, c0 * 0)
        for pair in tl.static_range(2):
            uniform = ((words[2 * pair] >> 8).to(tl.int32).to(tl.float32) + 1) * (1 / (1 << 24))
            turns = (words[2 * pair + 1] >> 8).to(tl.int32).to(tl.float32) * (1 / (1 << 24))
            radius = tl.sqrt(tl.maximum(-2 * tl.log(uniform), 0.0))
            # cos(t) is the sine of a shifted angle. Both angles are folded into -1/4 to 1/4 turns for ``_sine``.
            half = 0.5 - turns
            quarter = tl.abs(half) - 0.25
            sine = _sine(0.25 - tl.abs(quarter))
            out += (radius * _sine(quarter), radius * tl.where(half < 0, -sine, sine))  # type: ignore[assignment]
    return out


@triton.jit
def _sine(turns):
    """Sine of -1/4 to 1/4 turns, to within 2e-7: a least-squares polynomial, much faster than ``tl.sin``."""
    square = turns * turns
    series = ((39.7097969 * square - 76.5748444) * square + 81.6022263) * square - 41.3416786
    return (series * square + 6.28318548) * turns

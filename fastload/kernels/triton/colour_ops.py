"""The colour operations of ``spec.Op`` on a tile: a float32 tensor, values from 0 to 1, for each channel."""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["blend", "grayscale", "grey", "invert", "posterize", "saturate", "solarize", "stretch", "turn_hue"]

TINY = tl.constexpr(1e-30)  # lower bound of a divisor, against division by 0 in grey pixels, which have no hue


@triton.jit
def _clamp(value):
    return tl.minimum(tl.maximum(value, 0.0), 1.0)


@triton.jit
def blend(values, factor, rest):
    """``factor * values + rest``, clamped to 0 and 1; ``rest`` is ``(1 - factor)`` times the other image."""
    out = ()
    for c in tl.static_range(len(values)):
        out += (_clamp(values[c] * factor + rest),)
    return out


@triton.jit
def grey(values):
    return values[0] * 0.2989 + values[1] * 0.587 + values[2] * 0.114 if len(values) == 3 else values[0]


@triton.jit
def saturate(values, factor):
    return blend(values, factor, grey(values) * (1 - factor)) if len(values) == 3 else values


@triton.jit
def grayscale(values):
    one = grey(values)
    return (one, one, one) if len(values) == 3 else values


@triton.jit
def solarize(values, threshold):
    out = ()
    for c in tl.static_range(len(values)):
        out += (tl.where(values[c] >= threshold, 1 - values[c], values[c]),)
    return out


@triton.jit
def posterize(values, bits, of_bytes):
    """Of bytes, k / 255 counts as (k + 0.5) / 256, the middle of what the byte stands for; see ``reference.colour``."""
    levels = (1 << bits.to(tl.int32)).to(tl.float32)
    scale, shift = tl.where(of_bytes, 255 / 256, 1.0), tl.where(of_bytes, 0.5 / 256, 0.0)
    out = ()
    for c in tl.static_range(len(values)):
        level = tl.minimum(tl.maximum(tl.floor((values[c] * scale + shift) * levels), 0.0), levels - 1)
        out += (level / (levels * scale),)
    return out


@triton.jit
def invert(values):
    out = ()
    for c in tl.static_range(len(values)):
        out += (1 - values[c],)
    return out


@triton.jit
def turn_hue(values, turns):
    """Rotate the hue by ``turns``: RGB to HSV and back as one piecewise linear function; see ``reference.colour``."""
    if len(values) == 3:
        r, g, b = values
        top = tl.maximum(tl.maximum(r, g), b)
        span = top - tl.minimum(tl.minimum(r, g), b)
        high = tl.where(top == r, g - b, tl.where(top == g, b - r, r - g))
        start = tl.where(top == r, turns, tl.where(top == g, turns + 1 / 3, turns + 2 / 3))
        # 1 / x as rsqrt(x) squared: rsqrt is one instruction, a division many.
        root = tl.rsqrt(tl.maximum(6 * span, TINY))
        hue = start + high * (root * root)  # in turns
        hue = hue - tl.floor(hue)
        values = (
            _clamp(top - span * _clamp(2 - tl.abs(6 * hue - 3))),
            _clamp(top - span * _clamp(tl.abs(6 * hue - 2) - 1)),
            _clamp(top - span * _clamp(tl.abs(6 * hue - 4) - 1)),
        )
    return values


@triton.jit
def stretch(values, least, greatest, flat_span):
    """Autocontrast: map each channel's minimum to 0 and maximum to 1, unless it spans ``flat_span`` or less."""
    out = ()
    for c in tl.static_range(len(values)):
        span = greatest[c] - least[c]
        flat = span <= flat_span
        scale = 1 / tl.where(flat, 1.0, span)
        out += (_clamp((values[c] - tl.where(flat, 0.0, least[c])) * scale),)
    return out

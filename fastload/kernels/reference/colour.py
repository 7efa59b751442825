"""Reference of ``kernels.colour`` in plain PyTorch, and of the epilogue."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastload.kernels.common import check_colour
from fastload.kernels.reference.noise import normal
from fastload.kernels.spec import Epilogue, Erase, Mix, Op
from fastload.structure.ragged import Ragged

__all__ = ["apply_epilogue", "colour"]

GREY = (0.2989, 0.587, 0.114)  # weights of red, green and blue, as torchvision's


def colour(images: torch.Tensor | Ragged, epilogue: Epilogue) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """Run an epilogue on images. See :func:`fastload.kernels.colour`, which has the same signature."""
    check_colour(images, epilogue)
    full = 255 if images.dtype is torch.uint8 else 1
    values, statistics = apply_epilogue([image.float() / full for image in images], epilogue)
    last = epilogue.memory_format is torch.channels_last
    if isinstance(images, Ragged):
        laid_out = [value.permute(1, 2, 0).contiguous().permute(2, 0, 1) if last else value for value in values]
        return Ragged.of(laid_out), statistics
    out = torch.empty(images.shape, dtype=epilogue.dtype, device=images.device, memory_format=epilogue.memory_format)
    return torch.stack(values, out=out) if values else out, statistics


def apply_epilogue(
    values: Sequence[torch.Tensor], epilogue: Epilogue
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Run ``epilogue`` on images (C, H, W), float32 from 0 to 1.

    Returns:
        The images in the epilogue's dtype; and their statistics, float32 (N, 7), or None if not asked for.
    """
    if epilogue.program is not None:
        values = [_coloured(value, epilogue, n) for n, value in enumerate(values)]
    statistics = torch.stack([_statistics(value) for value in values]) if epilogue.statistics and values else None
    if epilogue.scale is not None and epilogue.bias is not None:
        scale, bias = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (epilogue.scale, epilogue.bias))
        values = [value * scale.to(value.device) + bias.to(value.device) for value in values]
    if epilogue.erase is not None:
        values = [_erased(value, epilogue.erase, n) for n, value in enumerate(values)]
    if epilogue.mix is not None:
        values = _mixed(values, epilogue.mix)
    return [_rounded(value, epilogue.dtype) for value in values], statistics


def _coloured(values: torch.Tensor, epilogue: Epilogue, n: int) -> torch.Tensor:
    assert epilogue.program is not None
    previous = None if epilogue.previous is None else epilogue.previous[n]
    for code, amount in epilogue.program.of(n, epilogue.part):
        values = _operated(values, Op(int(code)), amount, previous)
    return values


def _operated(values: torch.Tensor, op: Op, amount: float, previous: torch.Tensor | None) -> torch.Tensor:  # noqa: PLR0911
    """Apply one operation: the formulas of ``torchvision/transforms/v2/functional/_color.py``."""
    match op:
        case Op.BRIGHTNESS:
            return (values * amount).clamp(0, 1)
        case Op.SATURATION if len(values) > 1:
            return _blended(values, _grey(values), amount)
        case Op.HUE if len(values) > 1:
            return turned(values, amount)
        case Op.GRAYSCALE:
            return _grey(values).expand_as(values)
        case Op.SOLARIZE:
            return torch.where(values >= amount, 1 - values, values)
        case Op.POSTERIZE:
            return _posterized(values, 1 << int(amount))
        case Op.POSTERIZE_BYTES:  # byte k becomes (k + 0.5) / 256: the middle of what it stands for
            return _posterized((255 * values + 0.5) / 256, 1 << int(amount)) * (256 / 255)
        case Op.INVERT:
            return 1 - values
        case Op.CONTRAST if previous is not None:
            return _blended(values, previous[0], amount)
        case Op.AUTOCONTRAST if previous is not None:
            return _stretched(values, previous[1:4], previous[4:], amount)
    return values


def _posterized(values: torch.Tensor, levels: int) -> torch.Tensor:
    return (values * levels).floor().clamp(0, levels - 1) / levels


def _blended(values: torch.Tensor, other: torch.Tensor, factor: float) -> torch.Tensor:
    return (values * factor + other * (1 - factor)).clamp(0, 1)


def _grey(values: torch.Tensor) -> torch.Tensor:
    if len(values) == 1:
        return values
    parts = values * torch.tensor(GREY).view(-1, 1, 1).to(values.device)
    return parts[:1] + parts[1:2] + parts[2:]


def turned(values: torch.Tensor, turns: float) -> torch.Tensor:
    """Rotate the hue of an RGB image (3, H, W) by ``turns`` of the colour wheel.

    >>> red = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1)
    >>> turned(red, 1 / 3).flatten()
    tensor([0., 1., 0.])

    This is RGB to HSV and back in one step. HSV's saturation and value do not change, so neither do the largest
    channel, ``top``, and the smallest, ``top - span``. Each channel is a piecewise linear function of the hue, in
    sixths of a turn: ``top`` up to 1 away from its own primary (red 0, green 2, blue 4), ``top - span`` from 2 away.
    """
    r, g, b = values
    top = values.amax(0)
    span = top - values.amin(0)
    high = torch.where(top == r, g - b, torch.where(top == g, 2 * span + b - r, 4 * span + r - g))
    hue = (high / torch.where(span == 0, 1, span) + 6 * turns) % 6
    distances = torch.stack([3 - (hue - 3).abs(), (hue - 2).abs(), (hue - 4).abs()])
    return (top - span * (distances - 1).clamp(0, 1)).clamp(0, 1)


def _stretched(values: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor, flat_span: float) -> torch.Tensor:
    least, greatest = (numbers[: len(values)].view(-1, 1, 1) for numbers in (least, greatest))
    span = greatest - least
    flat = span <= flat_span
    span = torch.where(flat, 1, span)
    return ((values - torch.where(flat, 0, least)) / span).clamp(0, 1)


def _statistics(values: torch.Tensor) -> torch.Tensor:
    """Statistics that the next part needs, (7,): mean of the grey image, 3 channels' minima, 3 channels' maxima."""
    pixels = values.flatten(1)
    least, greatest = (extremes.expand(3) if len(values) == 1 else extremes for extremes in pixels.aminmax(dim=1))
    return torch.cat([_grey(values).mean()[None], least, greatest])


def _erased(values: torch.Tensor, erase: Erase, n: int) -> torch.Tensor:
    top, left, height, width = erase.boxes[n].tolist()
    box = (slice(None), slice(max(top, 0), max(top + height, 0)), slice(max(left, 0), max(left + width, 0)))
    scale, bias = (torch.tensor(numbers).view(-1, 1, 1) for numbers in (erase.scale, erase.bias))
    noise = normal(int(erase.seeds[n]), tuple(values.shape)) if any(erase.scale) else torch.zeros(values.shape)  # type: ignore[arg-type]
    values = values.clone()
    values[box] = (bias + scale * noise)[box].to(values.device)
    return values


def _mixed(values: Sequence[torch.Tensor], mix: Mix) -> list[torch.Tensor]:
    out = []
    for value, partner, box, inside, outside in zip(
        values, mix.partners.tolist(), mix.boxes.tolist(), mix.inside.tolist(), mix.outside.tolist(), strict=True
    ):
        weight = torch.full(value.shape[1:], outside)
        top, left, height, width = box
        weight[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = inside
        weight = weight.to(value.device)
        out.append(weight * value + (1 - weight) * values[partner])
    return out


def _rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.uint8:
        values = ((values * 255).clamp(0, 255) + 0.5).floor()
    return values.to(dtype)

"""Reference of ``kernels.resample`` in plain PyTorch: two products with weight matrices for each image."""

from __future__ import annotations

import torch

from fastload.kernels.common import allocate, as_batch, check_resample
from fastload.kernels.reference.colour import apply_epilogue
from fastload.kernels.spec import Epilogue
from fastload.structure.ragged import Ragged

__all__ = ["resample"]

SUPPORTS = {"bilinear": 1.0, "bicubic": 2.0}  # filter radius, in pixels of the coarser image
CUBIC_A = -0.5  # parameter a of Keys' cubic


def resample(
    images: Ragged,
    windows: torch.Tensor,
    size: tuple[int, int] | torch.Tensor,
    *,
    interpolation: str = "bilinear",
    fill: float = 0.0,
    clip: bool = False,
    epilogue: Epilogue = Epilogue(),  # noqa: B008  (it is not changed)
) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """Crop, resize and flip each image, then run the epilogue.

    See :func:`fastload.kernels.resample`, which has the same signature.
    """
    check_resample(images, windows, interpolation, epilogue)
    outs = allocate(images, size, epilogue)
    resampled = [
        _resampled(image, window, tuple(out.shape[1:]), interpolation, fill, clip=clip)
        for image, window, out in zip(images, windows.tolist(), outs, strict=True)
    ]
    values, statistics = apply_epilogue(resampled, epilogue)
    for value, out in zip(values, outs, strict=True):
        out.copy_(value)
    return as_batch(outs), statistics


def _resampled(
    image: torch.Tensor, window: list[int], size: tuple[int, ...], interpolation: str, fill: float, *, clip: bool
) -> torch.Tensor:
    top, left, height, width, virtual_height, virtual_width, offset_y, offset_x, flip_y, flip_x = window
    box = _box(image, top, left, height, width, fill)
    rows, columns = torch.arange(size[0]) + offset_y, torch.arange(size[1]) + offset_x
    inside_y, inside_x = (rows >= 0) & (rows < virtual_height), (columns >= 0) & (columns < virtual_width)
    vertical = weights(rows[inside_y], height, virtual_height, interpolation).to(image.device)
    horizontal = weights(columns[inside_x], width, virtual_width, interpolation).to(image.device)
    out = torch.full((len(image), *size), fill, device=image.device)
    between = box @ horizontal.T
    resized = vertical @ (between.clamp(0, 1) if clip else between)
    out[:, inside_y.nonzero(), inside_x.nonzero().T] = resized.clamp(0, 1) if clip else resized
    return out.flip([axis for axis, flipped in ((-2, flip_y), (-1, flip_x)) if flipped])


def _box(image: torch.Tensor, top: int, left: int, height: int, width: int, fill: float) -> torch.Tensor:
    """The source box, float32 from 0 to 1, padded with ``fill`` where it lies outside of the image."""
    box = torch.full((len(image), height, width), fill, device=image.device)
    part = image[:, max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)].float()
    y, x = max(-top, 0), max(-left, 0)
    box[:, y : y + part.shape[1], x : x + part.shape[2]] = part / 255 if image.dtype is torch.uint8 else part
    return box


def weights(positions: torch.Tensor, source: int, target: int, interpolation: str) -> torch.Tensor:
    """Weight matrix that resizes ``source`` pixels to ``target``: a row for each output pixel of ``positions``.

    >>> weights(torch.arange(2), 4, 2, "bilinear")
    tensor([[0.4286, 0.4286, 0.1429, 0.0000],
            [0.0000, 0.1429, 0.4286, 0.4286]])

    Computed in float32, with operations in the order of ``aten/src/ATen/native/cpu/UpSampleKernel.cpp``, which
    torchvision calls.

    Returns:
        float32 (len(positions), source).
    """
    scale = torch.tensor(source, dtype=torch.float32) / target
    if interpolation == "nearest":
        nearest = (positions * scale).floor().long().clamp(max=source - 1)
        return torch.nn.functional.one_hot(nearest, source).float()
    stretch = scale.clamp(min=1)
    centres = scale * (positions + 0.5)
    support = SUPPORTS[interpolation] * stretch
    taps = torch.arange(source)
    reached = (taps >= (centres - support + 0.5).int()[:, None]) & (taps < (centres + support + 0.5).int()[:, None])
    distances = (taps - centres[:, None] + 0.5) * (1 / stretch)
    unnormalized = _filter(distances.abs(), interpolation) * reached
    return unnormalized / unnormalized.sum(1, keepdim=True)


def _filter(distance: torch.Tensor, interpolation: str) -> torch.Tensor:
    """Triangle filter; or Keys, "Cubic convolution interpolation for digital image processing" (1981), equation 4."""
    if interpolation == "bilinear":
        return (1 - distance).clamp(min=0)
    near = ((CUBIC_A + 2) * distance - (CUBIC_A + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * CUBIC_A
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))

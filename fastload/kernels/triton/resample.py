"""Launches ``resample``: :mod:`resample_planar` for planar uint8 sources, :mod:`resample_generic` for all others.

Only the latter clips values after each axis.
"""

from __future__ import annotations

from typing import Any

import torch

from fastload.kernels.common import allocate, as_batch, check_resample
from fastload.kernels.spec import Epilogue
from fastload.kernels.triton import resample_generic, resample_planar
from fastload.kernels.triton.device import pdl_options
from fastload.kernels.triton.epilogue import epilogue_arguments
from fastload.kernels.triton.store import store_constants
from fastload.kernels.triton.table import ImageTable
from fastload.structure.ragged import Ragged

__all__ = ["resample"]

MAX_GRID_Z = 65535  # images in a launch: the limit of CUDA for the grid's third axis


def resample(
    images: Ragged,
    windows: torch.Tensor,
    size: tuple[int, int] | torch.Tensor,
    *,
    interpolation: str = "bilinear",
    fill: float = 0.0,
    clip: bool = False,
    epilogue: Epilogue = Epilogue(),  # noqa: B008  (it is frozen)
) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """See :func:`fastload.kernels.resample`."""
    check_resample(images, windows, interpolation, epilogue)
    outs = allocate(images, size, epilogue)
    table = ImageTable(images, outs, windows)
    constants: dict[str, Any] = {
        "C": images.channels,
        "FILTER": interpolation,
        "PADDED": table.is_padded,
        **store_constants(table, outs),
        **pdl_options(images.device),
    }
    if images.dtype is torch.uint8 and table.layout(0) == "planar" and not clip:
        launch = resample_planar.launch
        constants |= resample_planar.constants(table, images.device, interpolation, constants)
    else:
        launch = resample_generic.launch
        constants |= resample_generic.constants(table, images, clip=clip)
    height, width = table.largest_output
    rows, columns = -(-height // constants["TH"]), -(-width // constants["TW"])  # triton.cdiv takes 10 times as long
    arguments, (on_device,) = epilogue_arguments(epilogue, len(images), images.device, torch.from_numpy(table.rows))
    for first in range(0, len(images) if rows * columns else 0, MAX_GRID_Z):
        grid = (columns, rows, min(MAX_GRID_Z, len(images) - first))
        launch(images.device, grid, {"table": on_device, "first_image": first, "fill": fill, **arguments}, constants)
    return as_batch(outs), arguments["statistics"]

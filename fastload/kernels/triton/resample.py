"""Launches ``resample``: :mod:`resample_planar` for planar uint8 sources, :mod:`resample_generic` for all others.

Only the latter clips values after each axis.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from fastload.kernels.common import allocate, as_batch, check_resample
from fastload.kernels.spec import Epilogue
from fastload.kernels.triton import resample_generic, resample_planar
from fastload.kernels.triton.device import pdl_options
from fastload.kernels.triton.epilogue import epilogue_arguments
from fastload.kernels.triton.launcher import MOST_KINDS, Constants, Launcher
from fastload.kernels.triton.store import store_constants
from fastload.kernels.triton.table import ImageTable, Side
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
    epilogue: Epilogue = Epilogue(),  # noqa: B008  (it is not changed)
) -> tuple[torch.Tensor | Ragged, torch.Tensor | None]:
    """See :func:`fastload.kernels.resample`."""
    check_resample(images, windows, interpolation, epilogue)
    outs = allocate(images, size, epilogue)
    table = ImageTable(images, outs, windows)
    launch, constants = _compiled_for(
        table.source,
        table.target,
        images.dtype,
        outs.dtype,
        images.channels,
        images.device,
        interpolation,
        clip,
        table.is_padded,
        resample_planar.has_few_taps(table, interpolation),
        table.largest_scale > 1,
        table.longest_plane >= 2**31,
    )
    height, width = table.largest_output
    tile = constants.values
    # triton.cdiv takes 10 times as long.
    rows, columns = -(-height // tile["TH"]), -(-width // (tile["TW"] * tile.get("TILES", 1)))
    arguments, (on_device,) = epilogue_arguments(epilogue, len(images), images.device, torch.from_numpy(table.rows))
    for first in range(0, len(images) if rows * columns else 0, MAX_GRID_Z):
        grid = (columns, rows, min(MAX_GRID_Z, len(images) - first))
        launch(images.device, grid, {"table": on_device, "first_image": first, "fill": fill, **arguments}, constants)
    return as_batch(outs), arguments["statistics"]


@lru_cache(maxsize=MOST_KINDS)
def _compiled_for(
    source: Side,
    target: Side,
    source_dtype: torch.dtype,
    target_dtype: torch.dtype,
    channels: int,
    device: torch.device,
    interpolation: str,
    clip: bool,
    padded: bool,
    few_taps: bool,
    shrinks: bool,
    long_planes: bool,
) -> tuple[Launcher, Constants]:
    """The kernel for such images, and the constants that it is compiled for."""
    shared: dict[str, Any] = {
        "C": channels,
        "FILTER": interpolation,
        "PADDED": padded,
        **store_constants(target, target_dtype, channels, device),
        **pdl_options(device),
    }
    if source_dtype is torch.uint8 and source.layout == "planar" and not clip:
        own = resample_planar.constants(
            source, device, shared, few_taps=few_taps, shrinks=shrinks, long_planes=long_planes
        )
        return resample_planar.launch, Constants(shared | own)
    return resample_generic.launch, Constants(shared | resample_generic.constants(source, source_dtype, clip=clip))

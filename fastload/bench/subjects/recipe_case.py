"""``RecipeCase``: a case of ``kernels`` that begins with a crop, and how its results are checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fastload.bench.harness.check import WrongValuesError, check_close, check_form
from fastload.bench.subjects.crops import FULL_SIDE, Crops
from fastload.bench.subjects.kernel_case import BYTES, OUT, RESAMPLING
from fastload.bench.subjects.recipes import DEIT_RECIPES, RRC_RECIPES, Recipe

__all__ = ["DEIT_RECIPE", "RRC_FLIP_NORMALIZE", "RecipeCase"]

HALF_PRECISION = 4e-3  # of full scale: a value kept in float16 between passes, then brightened by 1.3 three times
UNFILTERED = 2.5 / 255  # of full scale, on ramps: half a pixel to either side, and a byte's rounding
SIGMAS = 6


@dataclass(frozen=True)
class RecipeCase:
    """A recipe as each subject does it, and how their results are checked."""

    recipes: Mapping[str, Callable[[int, torch.memory_format], Recipe]]
    check_values: Callable[[str, Recipe, Crops, torch.Tensor], None]

    @property
    def subjects(self) -> Sequence[str]:
        return tuple(self.recipes)

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> Crops:
        return Crops.random(batch, side, side / FULL_SIDE, device, number)

    def build(self, name: str, side: int, _device: torch.device, memory_format: torch.memory_format) -> Recipe:
        return self.recipes[name](side, memory_format)

    def check(self, name: str, recipe: Recipe, crops: Crops, memory_format: torch.memory_format) -> None:
        out = recipe(crops)
        check_form(name, out, (len(crops.images), 3, crops.side, crops.side), OUT, memory_format)
        self.check_values(name, recipe, crops, out)

    def bytes_to_move(self, crops: Crops) -> int:
        """Each source byte within a crop is read once, and each value written once."""
        inside = 3 * int(crops.boxes[:, 2:].long().prod(1).sum())
        return inside + len(crops.images) * 3 * crops.side**2 * OUT.itemsize


def _check_crops(name: str, recipe: Recipe, crops: Crops, out: torch.Tensor) -> None:
    """Compare every value; for kornia, which does not filter when it shrinks, those of ramps."""
    if name.startswith("kornia"):
        crops, allowed = crops.ramps(), UNFILTERED
        out = recipe(crops)
    else:
        allowed = RESAMPLING + (BYTES if name == "torchvision" else 0)
    check_close(name, out, crops.exact(), allowed)


def _check_deit(name: str, _recipe: Recipe, crops: Crops, out: torch.Tensor) -> None:
    """Compare fastload with its reference on the CPU, and the mean of the others, which draw their own parameters."""
    if name == "fastload":
        check_close(name, out, crops.reference_deit, HALF_PRECISION)
        return
    means, usual = out.float().mean((1, 2, 3)), crops.reference_deit.mean((1, 2, 3))
    allowed = SIGMAS * (2 / len(means)) ** 0.5 * usual.std()
    off = (means.mean() - usual.mean()).abs()
    if not off <= allowed:
        raise WrongValuesError(
            f"{name} is wrong: its images' mean is off by {off:.3g}, and chance allows {allowed:.3g}"
        )


RRC_FLIP_NORMALIZE = RecipeCase(RRC_RECIPES, _check_crops)
DEIT_RECIPE = RecipeCase(DEIT_RECIPES, _check_deit)

"""The checks of the recipes, cases of ``kernels``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fastload.bench import WrongValuesError
from fastload.bench.subjects.recipe_case import DEIT_RECIPE, RRC_FLIP_NORMALIZE

CPU = torch.device("cpu")
BATCH, SIDE = 8, 32
CASES = {"rrc_flip_normalize": RRC_FLIP_NORMALIZE, "deit_recipe": DEIT_RECIPE}


def made(case, name, change=lambda crops: crops, after=lambda images: images):
    """A subject's recipe, with a change to what goes in or comes out."""
    recipe = case.build(name, SIDE, CPU, torch.contiguous_format)
    return lambda crops: after(recipe(change(crops)))


def other_key(crops):
    return replace(crops, key=crops.key.advanced(BATCH))


@pytest.mark.parametrize(
    ("case", "name", "change"),
    [
        ("rrc_flip_normalize", "fastload", {"change": other_key}),
        ("rrc_flip_normalize", "torchvision", {"change": other_key}),
        ("rrc_flip_normalize", "torchvision", {"after": lambda images: images.flip(-1)}),
        ("rrc_flip_normalize", "torchvision", {"after": lambda images: images + 0.05}),
        ("rrc_flip_normalize", "torchvision", {"after": lambda images: images * torch.nan}),
        ("rrc_flip_normalize", "torchvision", {"after": lambda images: images.float()}),
        ("deit_recipe", "fastload", {"change": other_key}),
        ("deit_recipe", "torchvision", {"after": lambda images: images + 2}),
    ],
)
def test_wrong_values_are_found(case, name, change):
    crops = CASES[case].inputs(BATCH, SIDE, CPU, 0)
    with pytest.raises(WrongValuesError, match=f"{name} is wrong"):
        CASES[case].check(name, made(CASES[case], name, **change), crops, torch.contiguous_format)


def test_the_floor_counts_the_crops_and_the_result():
    crops = RRC_FLIP_NORMALIZE.inputs(BATCH, SIDE, CPU, 0)
    source = sum(3 * height * width for _, _, height, width in crops.boxes.tolist())
    assert RRC_FLIP_NORMALIZE.bytes_to_move(crops) == source + 2 * BATCH * 3 * SIDE**2


def test_copies_differ():
    first, second = (RRC_FLIP_NORMALIZE.inputs(BATCH, SIDE, CPU, number) for number in range(2))
    assert not torch.equal(first.boxes, second.boxes)
    assert not torch.equal(first.images.sizes, second.images.sizes)

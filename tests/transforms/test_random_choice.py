"""One of several transforms, drawn for each image."""

import pytest
import torch

from fastload import transforms as T
from fastload.transforms import Key
from tests.transforms.draws import assert_share

MANY = 2000
GREY = torch.full((MANY, 3, 4, 4), 100, dtype=torch.uint8)


def darker(factor):
    return T.ColorJitter(brightness=(factor, factor))


@pytest.mark.parametrize(
    ("p", "expected"), [(None, [1, 1, 1]), ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]), ([1, 0, 3], [1, 0, 3])]
)
def test_each_is_chosen_by_its_weight(p, expected):
    made = T.RandomChoice([darker(0.2), darker(0.5), darker(0.8)], p)(GREY, Key(seed=1))[:, 0, 0, 0]
    for value, weight in zip((20, 50, 80), expected, strict=True):
        assert_share(made == value, weight / sum(expected))


def test_a_compose_is_one_of_them():
    made = T.RandomChoice([T.Compose([darker(0.5), darker(0.5)]), darker(1.0)])(GREY, Key(seed=1))
    assert made.unique().tolist() == [25, 100]


def test_crops_of_several_sizes_then_a_resize():
    transform = T.Compose([T.RandomChoice([T.RandomCrop(3), T.RandomResizedCrop(2)]), T.Resize((4, 4))])
    assert transform(GREY[:50]).shape == (50, 3, 4, 4)


@pytest.mark.parametrize("p", [[1], [0, 0], [-1, 2], "ab", [0.5, float("nan")]])
def test_weights_that_are_none_are_refused(p):
    with pytest.raises((TypeError, ValueError), match="p must"):
        T.RandomChoice([darker(1), darker(2)], p)

"""Mirror images."""

import pytest
import torch

from fastload.transforms.flip import RandomHorizontalFlip, RandomVerticalFlip
from tests.transforms.draws import KEY, assert_parameters_follow_the_sample, assert_share, images, sizes

FLIPS = [(RandomHorizontalFlip, -1), (RandomVerticalFlip, -2)]


@pytest.mark.parametrize(("flip", "axis"), FLIPS)
def test_those_drawn_are_mirrored(flip, axis):
    batch = images(8, 3, 5, 7)
    drawn = flip().sample(sizes(8, 5, 7), KEY)
    assert 0 < drawn.sum() < 8
    expected = [image.flip(axis) if chosen else image for image, chosen in zip(batch, drawn, strict=True)]
    assert torch.equal(flip()(batch, KEY), torch.stack(expected))


@pytest.mark.parametrize("flip", [flip for flip, _ in FLIPS])
def test_draws_follow_the_sample_and_the_probability(flip):
    assert_parameters_follow_the_sample(flip())
    for p in (0.0, 0.3, 1.0):
        assert_share(flip(p).sample(sizes(20_000, 5, 7), KEY), p)


@pytest.mark.parametrize("flip", [flip for flip, _ in FLIPS])
def test_a_flip_says_what_it_is_and_refuses_what_is_no_probability(flip):
    assert repr(flip()) == f"{flip.__name__}(p=0.5)"
    for p in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match=f"p must be a probability.*got {p}"):
            flip(p)

"""Mirror images."""

import pytest
from hypothesis import given
from torchvision.transforms.v2 import functional as F

from fastload.transforms.flip import RandomHorizontalFlip, RandomVerticalFlip
from tests.counts import examples
from tests.kernels.whole import batches
from tests.transforms.draws import (
    DEVICES,
    KEY,
    KEYS,
    MOVED,
    assert_becomes,
    assert_parameters_follow_the_sample,
    assert_share,
    sizes,
    sizes_of,
)

FLIPS = [(RandomHorizontalFlip, F.horizontal_flip), (RandomVerticalFlip, F.vertical_flip)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("flip", "function"), FLIPS)
@examples(full=500, here=100)
@given(batch=batches(largest=40), key=KEYS)
def test_those_drawn_are_mirrored_as_torchvision_does(device, flip, function, batch, key):
    drawn = flip().sample(sizes_of(batch), key)
    expected = [function(image) if chosen else image for image, chosen in zip(batch, drawn, strict=True)]
    assert_becomes(flip(), batch, expected, device, MOVED[device], key)


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

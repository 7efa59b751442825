"""Blurred, sharpened and equalised images, against torchvision's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from fastload.transforms.blur import GaussianBlur
from fastload.transforms.equalize import RandomEqualize
from fastload.transforms.sharpness import RandomAdjustSharpness
from tests.counts import examples
from tests.kernels.whole import batches
from tests.transforms.draws import (
    DEVICES,
    KEY,
    KEYS,
    POINTWISE,
    assert_becomes,
    assert_parameters_follow_the_sample,
    assert_same_distribution,
    assert_share,
    images,
    sizes,
    sizes_of,
)

F = v2.functional


@pytest.mark.parametrize("device", DEVICES)
@examples(full=500, here=100)
@given(batch=batches(largest=40), reach=st.integers(0, 11), key=KEYS)
def test_those_drawn_are_blurred_as_torchvision_does(device, batch, reach, key):
    kernel_size = 2 * min(reach, *(side - 1 for side in batch.shape[2:])) + 1  # torchvision takes no larger one
    blur = GaussianBlur(kernel_size, (0.1, 3.0), p=0.8)
    expected = [
        F.gaussian_blur(image, [kernel_size] * 2, sigma) if sigma else image
        for image, sigma in zip(batch, blur.sample(sizes_of(batch), key).tolist(), strict=True)
    ]
    assert_becomes(blur, batch, expected, device, key=key)


def test_sigmas_are_torchvisions_of_as_many_as_asked_for():
    torch.manual_seed(0)
    drawn = GaussianBlur(5, (0.5, 1.5), p=0.25).sample(sizes(20_000, 8, 8), KEY)
    theirs = v2.GaussianBlur(5, (0.5, 1.5))
    assert_share(drawn > 0, 0.25)
    assert_same_distribution(drawn[drawn > 0], [theirs.make_params([])["sigma"][0] for _ in range(3_000)])
    assert_parameters_follow_the_sample(GaussianBlur(5, p=0.5))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("make", "function"),
    [(RandomAdjustSharpness, F.adjust_sharpness), (lambda _, p: RandomEqualize(p), lambda image, _: F.equalize(image))],
)
@examples(full=500, here=100)
@given(batch=batches(largest=40), factor=st.floats(0, 4), key=KEYS)
def test_those_drawn_are_changed_as_torchvision_does(device, make, function, batch, factor, key):
    transform = make(factor, 0.8)
    drawn = transform.sample(sizes_of(batch), key)
    expected = [function(image, factor) if chosen else image for image, chosen in zip(batch, drawn, strict=True)]
    assert_becomes(transform, batch, expected, device, key=key)


@pytest.mark.parametrize("transform", [RandomAdjustSharpness(2), RandomEqualize()])
def test_draws_follow_the_sample(transform):
    assert_parameters_follow_the_sample(transform)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("transform", "function"),
    [
        (GaussianBlur(5, 1.5), lambda image: F.gaussian_blur(image, [5, 5], [1.5, 1.5])),
        (RandomAdjustSharpness(2, 1.0), lambda image: F.adjust_sharpness(image, 2)),
        (RandomEqualize(1.0), F.equalize),
    ],
)
def test_huge_images_are_changed_as_torchvision_does(transform, function):
    """Torchvision's on the CPU, where no convolution is rounded to fewer bits than float32 has."""
    image = images(3, 6000, 8000)
    torch.testing.assert_close(transform(image.cuda()).cpu(), function(image), atol=POINTWISE, rtol=0)


def test_they_say_what_they_are():
    assert repr(GaussianBlur(3)) == "GaussianBlur(3, (0.1, 2.0), p=1.0)"
    assert repr(RandomAdjustSharpness(2)) == "RandomAdjustSharpness(2.0, p=0.5)"
    assert repr(RandomEqualize(0.1)) == "RandomEqualize(p=0.1)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GaussianBlur(4), "kernel_size must be an odd int.*got 4"),
        (lambda: GaussianBlur((3, 5)), r"same along both sides; got \(3, 5\)"),
        (lambda: GaussianBlur(3, sigma=0), r"sigma must be \(low, high\) with 0.001 <= .*got \(0, 0\)"),
        (lambda: GaussianBlur(3, sigma=(2, 1)), r"got \(2, 1\)"),
        (lambda: GaussianBlur(3, p=2), "p must be a probability.*got 2"),
        (lambda: RandomAdjustSharpness(-1), "sharpness_factor must be at least 0; got -1"),
        (lambda: RandomEqualize(-1), "p must be a probability.*got -1"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises(ValueError, match=message):
        make()

"""Blurred, sharpened and equalised images, against torchvision's."""

import pytest
import torch
from torchvision.transforms import v2

from fastload.transforms.blur import GaussianBlur
from fastload.transforms.equalize import RandomEqualize
from fastload.transforms.sharpness import RandomAdjustSharpness
from tests.transforms.draws import (
    KEY,
    assert_parameters_follow_the_sample,
    assert_same_distribution,
    assert_share,
    images,
    sizes,
)

F = v2.functional


@pytest.mark.parametrize("kernel_size", [1, 3, 13])
def test_those_drawn_are_blurred_as_torchvision_does(kernel_size):
    batch = images(10, 3, 20, 17)
    blur = GaussianBlur(kernel_size, (0.1, 3.0), p=0.6)
    sigmas = blur.sample(sizes(10, 20, 17), KEY)
    assert 0 < (sigmas > 0).sum() < 10
    expected = [
        F.gaussian_blur(image, [kernel_size] * 2, sigma) if sigma else image
        for image, sigma in zip(batch, sigmas.tolist(), strict=True)
    ]
    torch.testing.assert_close(blur(batch, KEY), torch.stack(expected), atol=1e-5, rtol=0)


def test_sigmas_are_torchvisions_of_as_many_as_asked_for():
    torch.manual_seed(0)
    drawn = GaussianBlur(5, (0.5, 1.5), p=0.25).sample(sizes(20_000, 8, 8), KEY)
    theirs = v2.GaussianBlur(5, (0.5, 1.5))
    assert_share(drawn > 0, 0.25)
    assert_same_distribution(drawn[drawn > 0], [theirs.make_params([])["sigma"][0] for _ in range(3_000)])
    assert_parameters_follow_the_sample(GaussianBlur(5, p=0.5))


@pytest.mark.parametrize(
    ("transform", "function"),
    [
        (RandomAdjustSharpness(0), lambda image: F.adjust_sharpness(image, 0)),
        (RandomAdjustSharpness(2.5), lambda image: F.adjust_sharpness(image, 2.5)),
        (RandomEqualize(), F.equalize),
    ],
)
@pytest.mark.parametrize("shape", [(9, 14), (1, 30), (2, 3)])
def test_those_drawn_are_changed_as_torchvision_does(transform, function, shape):
    batch = images(12, 3, *shape)
    drawn = transform.sample(sizes(12, *shape), KEY)
    assert 0 < drawn.sum() < 12
    expected = [function(image) if chosen else image for image, chosen in zip(batch, drawn, strict=True)]
    torch.testing.assert_close(transform(batch, KEY), torch.stack(expected), atol=1e-5, rtol=0)
    assert_parameters_follow_the_sample(transform)


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
        (lambda: RandomAdjustSharpness(-1), "sharpness_factor must not be negative; got -1"),
        (lambda: RandomEqualize(-1), "p must be a probability.*got -1"),
    ],
)
def test_bad_arguments_are_refused_with_what_was_got(make, message):
    with pytest.raises(ValueError, match=message):
        make()

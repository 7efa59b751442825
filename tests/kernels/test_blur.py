"""Gaussian blur: the reference is torchvision's, and the kernel is the reference's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

from tests.counts import examples
from tests.kernels.whole import (
    DTYPES,
    HERE,
    LAID_OUT,
    assert_copied,
    assert_right_in_training,
    assert_torchvisions,
    batch,
    batches,
    crowds,
    each_of_crowd,
    hold_to_reference,
    kernel,
    reference,
)

TOLERANCE = 1e-5
SIGMAS = st.floats(0.125, 5, width=32)
KERNEL_SIZES = st.integers(0, 11).map(lambda reach: 2 * reach + 1)


@examples(full=500, here=50)
@given(images=batches(smallest=12), sigma=SIGMAS, kernel_size=KERNEL_SIZES)
def test_it_is_torchvisions(images, sigma, kernel_size):
    actual = reference("blur")(images, torch.full((len(images),), sigma), kernel_size)
    expected = functional.gaussian_blur(images, [kernel_size] * 2, [sigma] * 2)
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def test_each_image_has_its_own_sigma():
    images, sigmas = batch(3, 3, 16, 20, "noise", seed=0), torch.tensor([0.3, 0.0, 4.0])
    blurred = reference("blur")(images, sigmas, 9)
    for image, sigma, result in zip(images, sigmas, blurred, strict=True):
        assert torch.equal(result, reference("blur")(image[None], sigma[None], 9)[0])


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(images=crowds(smallest=6, tallest=8, widest=24), sigmas=each_of_crowd(SIGMAS), reach=st.integers(0, 5))
def test_the_kernel_is_torchvisions_for_each_of_many_images(device, images, sigmas, reach):
    size = [2 * reach + 1] * 2
    expected = [functional.gaussian_blur(image, size, [sigma] * 2) for image, sigma in zip(images, sigmas, strict=True)]
    options = {"expected": expected, "tolerance": TOLERANCE, "device": device}
    assert_torchvisions("blur", images, torch.tensor(sigmas), size[0], **options)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("dtype", DTYPES)
@examples(full=20, here=4)
@given(images=batches(), sigma=SIGMAS, kernel_size=KERNEL_SIZES, laid_out=st.fixed_dictionaries(LAID_OUT))
def test_the_kernel_is_right(device, dtype, images, sigma, kernel_size, laid_out):
    sigmas = torch.tensor([sigma, 0.0, sigma / 2])[: len(images)]
    hold_to_reference("blur", images, sigmas, kernel_size, tolerance=TOLERANCE, device=device, dtype=dtype, **laid_out)


@pytest.mark.parametrize("device", HERE)
def test_an_image_with_sigma_0_is_copied(device):
    assert_copied("blur", batch(2, 3, 9, 140, "noise", seed=0), torch.zeros(2), 5, device=device)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (3, 2)])
def test_an_image_smaller_than_the_kernel_keeps_its_level(device, size):
    images = torch.full((1, 3, *size), 0.25)
    for blur in (reference("blur"), kernel("blur")):
        blurred = blur(images.to(device), torch.tensor([3.0]), 23)
        torch.testing.assert_close(blurred.cpu(), images, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("device", HERE)
def test_an_empty_batch_stays_empty(device):
    for blur in (reference("blur"), kernel("blur")):
        assert blur(torch.empty(0, 3, 8, 8, device=device), torch.empty(0), 5).shape == (0, 3, 8, 8)


@pytest.mark.gpu
def test_a_batch_as_in_training_is_right_every_time():
    assert_right_in_training("blur", torch.linspace(0, 2, 64), 23, tolerance=TOLERANCE)

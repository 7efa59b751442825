"""Sharpness: the reference is torchvision's, and the kernel is the reference's."""

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
FACTOR = st.floats(0, 4, width=32)
FACTORS = st.tuples(FACTOR, FACTOR, FACTOR)


@examples(full=500, here=100)
@given(images=batches(), factors=FACTORS)
def test_it_is_torchvisions(images, factors):
    actual = reference("sharpen")(images, torch.tensor(factors)[: len(images)])
    expected = [functional.adjust_sharpness(image, factor) for image, factor in zip(images, factors, strict=False)]
    torch.testing.assert_close(actual, torch.stack(expected), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(images=crowds(), factors=each_of_crowd(FACTOR))
def test_the_kernel_is_torchvisions_for_each_of_many_images(device, images, factors):
    expected = [functional.adjust_sharpness(image, factor) for image, factor in zip(images, factors, strict=True)]
    options = {"expected": expected, "tolerance": TOLERANCE, "device": device}
    assert_torchvisions("sharpen", images, torch.tensor(factors), **options)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("dtype", DTYPES)
@examples(full=20, here=4)
@given(images=batches(channels=(1, 3, 4)), factors=FACTORS, laid_out=st.fixed_dictionaries(LAID_OUT))
def test_the_kernel_is_right(device, dtype, images, factors, laid_out):
    factors = torch.tensor(factors)[: len(images)]
    hold_to_reference("sharpen", images, factors, tolerance=TOLERANCE, device=device, dtype=dtype, **laid_out)


@pytest.mark.parametrize("device", HERE)
def test_an_image_with_factor_1_is_copied(device):
    assert_copied("sharpen", batch(2, 3, 9, 140, "noise", seed=0), torch.ones(2), device=device)


@pytest.mark.parametrize("device", HERE)
def test_values_beyond_0_and_1_are_kept_where_the_factor_is_1(device):
    images = torch.tensor([-0.5, torch.inf, 1.5]).view(1, 1, 1, 3).expand(2, 3, 3, 3).to(device)
    for sharpen in (reference("sharpen"), kernel("sharpen")):
        kept, sharpened = sharpen(images, torch.tensor([1.0, 1.5]))
        assert torch.equal(kept, images[0])
        assert (sharpened[..., 0].unique(), sharpened[..., 2].unique()) == (0, 1)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("size", [(1, 1), (2, 9), (9, 2)])
def test_an_image_that_is_all_border_is_copied(device, size):
    assert_copied("sharpen", batch(2, 3, *size, "noise", seed=0), torch.zeros(2), device=device)


@pytest.mark.parametrize("device", HERE)
def test_an_empty_batch_stays_empty(device):
    for sharpen in (reference("sharpen"), kernel("sharpen")):
        assert sharpen(torch.empty(0, 3, 8, 8, device=device), torch.empty(0)).shape == (0, 3, 8, 8)


@pytest.mark.gpu
def test_a_batch_as_in_training_is_right_every_time():
    assert_right_in_training("sharpen", torch.linspace(0, 2, 64), tolerance=TOLERANCE)

"""Equalized histograms: the reference is torchvision's, and the kernel is the reference's."""

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
    stored,
)

# Levels are whole numbers; only their division by 255 is rounded.
TOLERANCE = 1e-6
CHOSEN = st.tuples(*[st.booleans()] * 3)


@examples(full=500, here=100)
@given(images=batches(), chosen=CHOSEN, dtype=st.sampled_from([torch.uint8, torch.float32]))
def test_it_is_torchvisions(images, chosen, dtype):
    images = stored(images, dtype)
    actual = reference("equalize")(images, torch.tensor(chosen)[: len(images)], dtype=dtype)
    expected = [functional.equalize(image) if yes else image for image, yes in zip(images, chosen, strict=False)]
    assert torch.equal(actual, torch.stack(expected))


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(images=crowds(widest=100), chosen=each_of_crowd(st.booleans()))
def test_the_kernel_is_torchvisions_for_each_of_many_images(device, images, chosen):
    expected = [functional.equalize(image) if yes else image for image, yes in zip(images, chosen, strict=True)]
    options = {"expected": expected, "tolerance": TOLERANCE, "device": device}
    assert_torchvisions("equalize", images, torch.tensor(chosen), **options)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("dtype", DTYPES)
@examples(full=20, here=4)
@given(images=batches(largest=48), chosen=CHOSEN, laid_out=st.fixed_dictionaries(LAID_OUT))
def test_the_kernel_is_right(device, dtype, images, chosen, laid_out):
    chosen = torch.tensor(chosen)[: len(images)]
    hold_to_reference("equalize", images, chosen, tolerance=TOLERANCE, device=device, dtype=dtype, **laid_out)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_near_bytes_count_as_these(device, dtype):
    levels = torch.randint(100, 140, (1, 3, 30, 40), generator=torch.Generator().manual_seed(0))
    errors = 0.4 * torch.rand(levels.shape, generator=torch.Generator().manual_seed(1)) - 0.2  # of a level
    images = ((levels + errors) / 255).to(dtype)
    expected = functional.equalize(levels.byte())
    for equalize in (reference("equalize"), kernel("equalize")):
        equalized = equalize(images.to(device), torch.tensor([True]), dtype=torch.uint8, of_bytes=True)
        assert torch.equal(equalized.cpu(), expected)


@pytest.mark.parametrize("device", HERE)
def test_levels_beyond_full_scale_count_as_full_scale(device):
    images = torch.linspace(-0.5, 1.5, 2400).view(1, 1, 40, 60)
    expected = functional.equalize(images.clamp(0, 1))
    for equalize in (reference("equalize"), kernel("equalize")):
        assert torch.equal(equalize(images.to(device), torch.tensor([True])).cpu(), expected)


@pytest.mark.parametrize("device", HERE)
def test_an_image_that_is_not_chosen_is_copied(device):
    assert_copied("equalize", batch(2, 3, 9, 140, "noise", seed=0), torch.zeros(2, dtype=torch.bool), device=device)


@pytest.mark.parametrize("device", HERE)
def test_an_empty_batch_stays_empty(device):
    for equalize in (reference("equalize"), kernel("equalize")):
        chosen = torch.empty(0, dtype=torch.bool)
        assert equalize(torch.empty(0, 3, 8, 8, device=device), chosen).shape == (0, 3, 8, 8)


@pytest.mark.gpu
def test_a_batch_as_in_training_is_right_every_time():
    assert_right_in_training("equalize", torch.arange(64) % 2 == 0, tolerance=TOLERANCE)

"""The kernel against its reference, on ragged sizes, every layout in and out, with poisoned outputs."""

import importlib
import os

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

import fastload as fl
from fastload.kernels import reference
from tests.counts import examples, variants
from tests.kernels.whole import crowds, each_of_crowd, stored

MEAN, STD = (0.485, 0.456, 0.406, 0.5), (0.229, 0.224, 0.225, 0.25)
FORMATS = (torch.contiguous_format, torch.channels_last)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((3, 3, 5, 8), (2, 1, 7, 13), (2, 4, 6, 12), (1, 3, 1, 1), (2, 3, 33, 67), (4, 1, 9, 4))
LAYOUTS = ("contiguous", "channels last", "a crop", "expanded")
HERE = [
    pytest.param("cpu", marks=pytest.mark.interpreter),
    pytest.param("cuda", marks=pytest.mark.gpu),
]


def kernel(*args, **kwargs):
    return importlib.import_module("fastload.kernels.triton.normalize").flip_normalize(*args, **kwargs)


def layouts(images):
    """The same images as a loader may hand them over."""
    n, c, h, w = images.shape
    wide = torch.zeros(n, c, h + 2, w + 3, dtype=torch.uint8, device=images.device)
    wide[:, :, 1 : h + 1, 2 : w + 2] = images
    return {
        "contiguous": images,
        "channels last": images.contiguous(memory_format=torch.channels_last),
        "a crop": wide[:, :, 1 : h + 1, 2 : w + 2],
        "expanded": images[:1].expand(n, c, h, w),
    }


def exact(images, mean, std, flip):
    """In float64, by torchvision's formula."""
    mean, std = (torch.tensor(values, dtype=torch.float64).view(-1, 1, 1) for values in (mean, std))
    images = images.cpu()
    if flip is not None:
        images = torch.where(flip.cpu().view(-1, 1, 1, 1), images.flip(-1), images)
    return (images.double() / 255 - mean) / std


def check(images, dtype, memory_format, flip, monkeypatch):
    channels = images.shape[1]
    mean, std = MEAN[:channels], STD[:channels]
    empty = torch.empty

    def poisoned(*args, **kwargs):
        return empty(*args, **kwargs).fill_(float("nan"))

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", poisoned)
        actual = kernel(images, mean, std, flip, dtype=dtype, memory_format=memory_format)
    expected = reference.flip_normalize(images, mean, std, flip, dtype=dtype, memory_format=memory_format)
    assert actual.stride() == expected.stride()
    assert actual.dtype == dtype
    truth = exact(images, mean, std, flip)
    # One rounding of the result, and float32's of the scale, the product and the sum before it. The last three are
    # relative to the terms, at most 1/std and mean/std, not to their difference.
    terms = max(1 / s + m / s for m, s in zip(mean, std, strict=True))
    allowed = rounding(dtype, images.device) * truth.abs() + 3 * torch.finfo(torch.float32).eps * terms
    assert ((actual.cpu().double() - truth).abs() <= allowed).all()
    assert ((expected.cpu().double() - truth).abs() <= allowed).all()


def rounding(dtype, device):
    """The largest relative error of rounding to ``dtype``: half a unit; Triton's interpreter truncates to bfloat16."""
    truncates = dtype is torch.bfloat16 and device.type == "cpu"
    return torch.finfo(dtype).eps * (1 if truncates else 0.5)


@pytest.mark.parametrize("device", HERE)
@pytest.mark.parametrize(
    ("shape", "layout", "dtype", "memory_format", "flips"), variants(SHAPES, LAYOUTS, DTYPES, FORMATS, (False, True))
)
def test_every_layout_is_right(device, shape, layout, dtype, memory_format, flips, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)
    flip = (torch.arange(shape[0]) % 2 == 0).to(device) if flips else None
    check(layouts(images)[layout], dtype, memory_format, flip, monkeypatch)


@pytest.mark.parametrize("device", HERE)
@examples(full=25, here=12)
@given(
    shape=st.tuples(st.integers(1, 3), st.sampled_from([1, 3, 4]), st.integers(1, 40), st.integers(1, 40)),
    dtype=st.sampled_from(DTYPES),
    memory_format=st.sampled_from(FORMATS),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 2**31),
    flips=st.booleans(),
)
def test_ragged_sizes_are_right(device, shape, dtype, memory_format, layout, seed, flips):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).to(device)
    flip = (torch.rand(shape[0], generator=generator) < 0.5).to(device) if flips else None
    with pytest.MonkeyPatch.context() as monkeypatch:
        check(layouts(images)[layout], dtype, memory_format, flip, monkeypatch)


@pytest.mark.parametrize("device", HERE)
@examples(full=10, here=5)
@given(crowd=crowds(), flips=each_of_crowd(st.booleans()))
def test_the_kernel_is_torchvisions_for_each_of_many_images(device, crowd, flips):
    images, flip = stored(crowd, torch.uint8), torch.tensor(flips)
    amounts = MEAN[: images.shape[1]], STD[: images.shape[1]]
    mirrored = [functional.hflip(image) if yes else image for image, yes in zip(images, flips, strict=True)]
    expected = functional.normalize(torch.stack(mirrored).float() / 255, *amounts)
    actual = kernel(images.to(device), *amounts, flip.to(device)).cpu()
    for other in (reference.flip_normalize(images, *amounts, flip), expected):
        torch.testing.assert_close(actual, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("device", HERE)
def test_an_empty_batch_stays_empty(device):
    images = torch.empty(0, 3, 8, 8, dtype=torch.uint8, device=device)
    assert kernel(images, MEAN[:3], STD[:3]).shape == images.shape


@pytest.mark.gpu
def test_a_batch_of_more_than_two_billion_values_is_right_at_its_end():
    images = torch.empty(15_000, 3, 224, 224, dtype=torch.uint8, device="cuda").random_(0, 256)
    assert images.numel() > 2**31
    out = fl.kernels.flip_normalize(images, MEAN[:3], STD[:3], dtype=torch.bfloat16, memory_format=torch.channels_last)
    tail = reference.flip_normalize(
        images[-2:], MEAN[:3], STD[:3], dtype=torch.bfloat16, memory_format=torch.channels_last
    )
    assert torch.equal(out[-2:], tail)


@pytest.mark.gpu
def test_a_batch_of_more_images_than_a_grid_has_rows_is_right_at_its_end():
    images = torch.empty(70_000, 3, 2, 4, dtype=torch.uint8, device="cuda").random_(0, 256)
    flip = torch.arange(len(images), device="cuda") % 3 == 0
    out = fl.kernels.flip_normalize(images, MEAN[:3], STD[:3], flip)
    torch.testing.assert_close(out, reference.flip_normalize(images, MEAN[:3], STD[:3], flip), atol=1e-6, rtol=1e-6)


@pytest.mark.interpreter
def test_the_kernel_runs_in_the_interpreter_here():
    assert os.environ["TRITON_INTERPRET"] == "1"

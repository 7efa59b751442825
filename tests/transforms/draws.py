"""What the tests of transforms share: images, keys, and how far samples of one distribution may lie apart."""

from dataclasses import fields, is_dataclass
from math import log, sqrt

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from fastload import transforms as T

KEY = T.Key(seed=3, epoch=1, place=5)
KEYS = st.builds(T.Key, seed=st.integers(0, 2**31))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
POINTWISE, RESAMPLED = 1e-5, 1e-3  # of full scale, as far as a value may lie from torchvision's
MOVED = {"cpu": 0.0, "cuda": 1e-6}  # of values that only move: products on tensor cores lose their last bits
CHANCE = 1e-9  # of a right implementation to fail a test of its distribution, were the seed not fixed


def images(*shape, seed=0):
    """Floating-point images of 256 levels, so that thresholds are as clear as in uint8."""
    levels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return levels.float() / 255


def sizes(count, height, width):
    return torch.tensor([[height, width]]).repeat(count, 1)


def sizes_of(batch):
    return sizes(len(batch), *batch.shape[-2:])


def assert_becomes(transform, batch, expected, device, tolerance=POINTWISE, key=KEY):
    """What a transform makes of a batch on the device, image by image."""
    for ours, theirs in zip(transform(batch.to(device), key), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, atol=tolerance, rtol=0)


def tensors(parameters):
    """The tensors in what a transform sampled."""
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    if is_dataclass(parameters):
        parameters = [getattr(parameters, field.name) for field in fields(parameters)]
    return [tensor for each in parameters for tensor in tensors(each)]


def assert_parameters_follow_the_sample(transform):
    """A sample's parameters are the same wherever its batch begins, and others' with other keys."""
    given = sizes(12, 40, 60)
    whole = tensors(transform.sample(given, KEY))
    rest = tensors(transform.sample(given[5:], KEY.advanced(5)))
    assert all(torch.equal(one[5:], other) for one, other in zip(whole, rest, strict=True))
    others = [tensors(transform.sample(given, T.Key(seed=3, epoch=epoch))) for epoch in range(2, 5)]
    assert any(not torch.equal(one, each) for other in others for one, each in zip(whole, other, strict=True)), (
        "nothing depends on the key"
    )


def assert_same_distribution(ours, theirs):
    """Two-sample Kolmogorov-Smirnov test; its bound is conservative for numbers that repeat."""
    ours, theirs = (np.sort(np.asarray(values, dtype=np.float64)) for values in (ours, theirs))
    points = np.concatenate([ours, theirs])
    distance = np.abs(
        np.searchsorted(ours, points, "right") / len(ours) - np.searchsorted(theirs, points, "right") / len(theirs)
    ).max()
    assert distance < sqrt(log(2 / CHANCE) / 2 * (1 / len(ours) + 1 / len(theirs)))


def assert_share(chosen, p):
    """As many are chosen as probability ``p`` asks for, to within six standard deviations."""
    assert abs(chosen.double().mean() - p) <= 6 * sqrt(p * (1 - p) / chosen.numel())

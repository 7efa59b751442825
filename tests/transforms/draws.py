"""What the tests of transforms share: images, keys, and how far samples of one distribution may lie apart."""

from dataclasses import fields, is_dataclass
from math import log, sqrt

import numpy as np
import torch

from fastload import transforms as T

KEY = T.Key(seed=3, epoch=1, place=5)
CHANCE = 1e-9  # of a right implementation to fail a test of its distribution, were the seed not fixed


def images(*shape, seed=0):
    """Floating-point images of 256 levels, so that thresholds are as clear as in uint8."""
    levels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return levels.float() / 255


def sizes(count, height, width):
    return torch.tensor([[height, width]]).repeat(count, 1)


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

"""What moves of timm does what the original did."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.stats import ks_2samp
from skimage import data
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload as fl
from fastload.transforms import Key
from tests.counts import count

pytestmark = pytest.mark.long
timm_data = pytest.importorskip("timm.data")
SAMPLES = count(full=2000, here=500)
PICTURE = Image.fromarray(np.ascontiguousarray(data.astronaut()[:180:5, :180:5]))


def erasing(**options):
    kind = timm_data.random_erasing.RandomErasing
    return v1.Compose([v1.ToTensor(), kind(device="cpu", **options)])


RANDOM = {
    "crop": lambda: timm_data.transforms.RandomResizedCropAndInterpolation((20, 30), (0.2, 0.5), (0.5, 1.0)),
    "random interpolation": lambda: timm_data.create_transform(
        24, True, interpolation="random", mean=(0.0,) * 3, std=(1.0,) * 3
    ),
    "bicubic": lambda: timm_data.transforms.RandomResizedCropAndInterpolation((20, 30), interpolation="bicubic"),
    "erasing with noise": lambda: erasing(probability=0.4, min_area=0.1, max_area=0.2, min_aspect=0.5, mode="pixel"),
    "training": lambda: timm_data.create_transform(
        24, True, color_jitter_prob=0.5, grayscale_prob=0.3, re_prob=0.3, mean=(0.0,) * 3, std=(1.0,) * 3
    ),
}


def tensor(image):
    return v2.functional.pil_to_tensor(image) if isinstance(image, Image.Image) else image


def measured(images):
    """Means, spreads and a corner, in levels: (N, 9)."""
    images = images.float() * (1 if images.dtype is torch.uint8 else 255)
    return torch.cat([images.mean((2, 3)), images.std((2, 3)), images[:, :, 2, 2]], dim=1).numpy()


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM.keys())
def test_what_is_random_has_the_distribution_of_timm(make):
    random.seed(3)
    torch.manual_seed(3)
    transform = make()
    theirs = measured(torch.stack([tensor(transform(PICTURE)) for _ in range(SAMPLES)]))
    parts = fl.split(transform)
    assert parts.worker is None
    ours = measured(parts.device(tensor(PICTURE).expand(SAMPLES, -1, -1, -1).contiguous(), Key(seed=7)))
    noise = np.random.default_rng(2).uniform(-8, 8, (2, *ours.shape))  # hides what Pillow rounds
    for one, other in zip((ours + noise[0]).T, (theirs + noise[1]).T, strict=True):
        assert ks_2samp(one, other, method="asymp").pvalue > 0.001

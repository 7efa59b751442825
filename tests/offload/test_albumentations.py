"""What moves of Albumentations does what the original did."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from skimage import data

import fastload as fl
from fastload.transforms import Key
from tests.offload.pipelines import A

pytestmark = pytest.mark.long
SAMPLES = 2000
PHOTOGRAPH = np.ascontiguousarray(data.astronaut()[:151, :203])


def composed(*steps):
    whole = A.Compose([*steps, A.ToTensorV2()])
    for seed, step in enumerate(steps):  # A.Compose gives one seed to all: they would draw the same numbers
        step.set_random_seed(seed)
    return whole


def tensor(array, count=1):
    return torch.from_numpy(array).permute(2, 0, 1).expand(count, -1, -1, -1).contiguous()


@pytest.mark.parametrize("side", [100, 101, 102, 103])
def test_the_odd_pixel_of_a_central_crop_is_where_albumentations_has_it(side):
    crop = composed(A.CenterCrop(side, side))
    assert torch.equal(fl.split(crop).device(tensor(PHOTOGRAPH))[0], crop(image=PHOTOGRAPH)["image"])


def test_a_central_crop_that_is_larger_than_the_image_is_refused_as_albumentations_does():
    crop = fl.split(composed(A.CenterCrop(10_000, 8)))
    with pytest.raises(ValueError, match=r"CenterCrop\(10000, 8\) is larger than an image"):
        crop.device(tensor(PHOTOGRAPH))


@pytest.mark.parametrize("std", [0.25, (0.25, 0.2, 0.3)], ids=["number", "channels"])
def test_a_mean_that_is_one_number_is_for_all_channels(std):
    whole = A.Compose([A.Normalize(mean=0.5, std=std), A.ToTensorV2()])
    ours = fl.split(whole).device(tensor(PHOTOGRAPH))[0]
    torch.testing.assert_close(ours, whole(image=PHOTOGRAPH)["image"], atol=1e-5, rtol=1e-5)


def test_a_mean_in_levels_that_albumentations_multiplies_by_255_stays():
    parts = fl.split(composed(A.Normalize(mean=(123.0, 117.0, 104.0), std=(58.0, 57.0, 57.0))))
    assert parts.steps[0].where == "worker"
    assert parts.steps[0].why.startswith("mean and std are for values from 0 to 255: [123.0, 117.0, 104.0]")


@pytest.mark.parametrize("first", [A.Normalize(), A.ToFloat(255), A.Compose([A.Normalize()])])
def test_a_normalisation_of_floats_stays_in_the_worker_with_what_comes_before_it(first):
    parts = fl.split(A.Compose([first, A.HorizontalFlip(), A.Normalize(), A.ToTensorV2()]))
    assert [step.where for step in parts.steps] == ["worker", "worker", "worker", "device"]
    assert parts.steps[2].why == "comes after a step that makes floats"


def test_a_class_of_the_user_is_not_taken_for_one_of_the_same_name():
    def black(_, img, **__):
        return np.zeros_like(img)

    mine = type("InvertImg", (A.ImageOnlyTransform,), {"apply": black, "__module__": "mine"})
    parts = fl.split(composed(mine(p=1.0)))
    assert [step.where for step in parts.steps] == ["worker", "device"]
    assert not parts.worker(image=PHOTOGRAPH)["image"].any()


def measured(images):
    """Means, spreads and a corner, in levels: (N, 9)."""
    images = images.float()
    return torch.cat([images.mean((2, 3)), images.std((2, 3)), images[:, :, 2, 2]], dim=1).numpy()


@pytest.mark.parametrize(
    "steps",
    [
        (("HorizontalFlip", {"p": 0.3}),),
        (("VerticalFlip", {"p": 0.7}),),
        (("RandomCrop", {"height": 21, "width": 24}),),
        (("ToGray", {"p": 0.4}),),
        (("InvertImg", {"p": 0.3}),),
        (("RandomCrop", {"height": 21, "width": 24}), ("HorizontalFlip", {}), ("ToGray", {"p": 0.3})),
    ],
    ids=lambda steps: " ".join(name for name, _ in steps),
)
def test_what_is_random_has_the_distribution_of_albumentations(steps):
    picture = np.ascontiguousarray(PHOTOGRAPH[::4, ::5])
    whole = composed(*(getattr(A, name)(**options) for name, options in steps))
    theirs = measured(torch.stack([whole(image=picture)["image"] for _ in range(SAMPLES)]))
    ours = measured(fl.split(whole).device(tensor(picture, SAMPLES), Key(seed=7)))
    noise = np.random.default_rng(2).uniform(-8, 8, (2, *ours.shape))  # hides a level that OpenCV rounds
    for one, other in zip((ours + noise[0]).T, (theirs + noise[1]).T, strict=True):
        assert ks_2samp(one, other, method="asymp").pvalue > 0.001

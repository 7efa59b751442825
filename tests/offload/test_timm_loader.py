"""One line around what timm's create_loader returns: the same samples, and pixels as near as two decoders are."""

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data

import fastload as fl

pytestmark = pytest.mark.long
timm_data = pytest.importorskip("timm.data")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
NEAR = 2 / 255 / min(STD)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Folders of two classes, with six photographs each."""
    root = tmp_path_factory.mktemp("timm")
    for number in range(12):
        folder = root / "train" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        picture = np.roll(data.astronaut()[:160:2, : 180 + 10 * number : 2], number, axis=1)
        Image.fromarray(picture).save(folder / f"{number}.jpg", quality=95)
    return root


def loader_of(root, wrap=lambda dataset: dataset, **options):
    dataset = timm_data.create_dataset("", root=root / "train", split="train")
    settings = {"input_size": (3, 64, 64), "batch_size": 5, "mean": MEAN, "std": STD, "num_workers": 0}
    return timm_data.create_loader(wrap(dataset), **settings | {"device": torch.device("cpu")} | options)


@pytest.mark.parametrize("use_prefetcher", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_has_timms_samples_and_pixels(root, interpolation, use_prefetcher):
    theirs = loader_of(root, interpolation=interpolation, use_prefetcher=use_prefetcher)
    ours = fl.offload(theirs)
    for (image, target), (their_image, their_target) in zip(ours, theirs, strict=True):
        assert torch.equal(target, their_target)
        torch.testing.assert_close(image, their_image, atol=NEAR, rtol=0)


def test_training_is_normalised_and_erased_as_timms_prefetcher_does(root, capsys):
    options = {"is_training": True, "interpolation": "random", "re_prob": 1.0, "img_dtype": torch.bfloat16}
    ours = fl.offload(loader_of(root, num_workers=2, persistent_workers=False, **options))
    assert "worker" not in capsys.readouterr().out.splitlines()[1]
    batches = list(ours)
    assert [images.shape for images, _ in batches] == [(5, 3, 64, 64)] * 2  # timm drops the rest in training
    assert all(images.dtype is torch.bfloat16 and targets.dtype is torch.int64 for images, targets in batches)
    assert all((image == 0).all(0).any() for images, _ in batches for image in images)  # the erased box


def test_timms_training_script_finds_what_it_asks_for(root):
    ours = fl.offload(loader_of(root, is_training=True))
    assert ours.mixup_enabled is False
    assert len(ours) == 2
    assert len(ours.dataset) == 12
    assert len(ours.sampler) == 12


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"collate_fn": lambda: timm_data.FastCollateMixup(num_classes=2)}, r"transform=T.MixUp\(...\)"),
        ({"wrap": lambda: timm_data.AugMixDataset, "num_aug_splits": lambda: 2}, "is a property"),
        (
            {"auto_augment": lambda: "rand-m9-mstd0.5-inc1"},
            "T.RandAugment has other strengths",
        ),
        ({"re_prob": lambda: 1.0, "re_mode": lambda: "rand"}, "re_mode='rand'"),
    ],
    ids=["mixup", "splits", "policy", "erasing"],
)
def test_what_timm_does_otherwise_is_refused(root, options, reason):
    loader = loader_of(root, is_training=True, **{name: make() for name, make in options.items()})
    with pytest.raises((TypeError, ValueError), match=reason):
        fl.offload(loader)

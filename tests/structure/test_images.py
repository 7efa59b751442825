"""Which field of a batch holds its images, where the user says so: ``PrefetchLoader(images=...)``."""

import copy
import pickle

import pytest
import torch
from torchvision.tv_tensors import Mask

import fastload as fl
from fastload import transforms as T
from tests.files import jpeg

FLIP = T.RandomHorizontalFlip(1.0)


def pixels(seed, *shape):
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


IDS = torch.arange(10).view(2, 5)
PIXELS, OTHERS = pixels(0, 2, 3, 4, 6), pixels(1, 2, 3, 4, 6)
SINGLES = [pixels(2, 3, 4, 6), pixels(3, 3, 5, 7)]
BATCH = {"input_ids": IDS, "other": OTHERS, "pixel_values": PIXELS, "samples": [{"image": each} for each in SINGLES]}


def flipped(images, batch=BATCH, **options):
    (out,) = fl.PrefetchLoader([batch], transform=FLIP, device="cpu", images=images, **options)
    return out


@pytest.mark.parametrize("images", ["pixel_values", ("pixel_values",), lambda batch: batch["pixel_values"]])
def test_what_the_user_names_is_transformed_and_nothing_else(images):
    out = flipped(images)
    assert torch.equal(out["pixel_values"], PIXELS.flip(-1))
    assert torch.equal(out["input_ids"], IDS)
    assert torch.equal(out["other"], OTHERS)  # looks alike, and is named by no warning
    assert all(torch.equal(new["image"], old) for new, old in zip(out["samples"], SINGLES, strict=True))


def test_two_fields_are_two_views():
    out = flipped(["pixel_values", "other"])
    assert torch.equal(out["pixel_values"], PIXELS.flip(-1))
    assert torch.equal(out["other"], OTHERS.flip(-1))


def test_a_function_may_return_a_list_of_images():
    out = flipped(lambda batch: [sample["image"] for sample in batch["samples"]])
    assert all(torch.equal(new["image"], old.flip(-1)) for new, old in zip(out["samples"], SINGLES, strict=True))
    assert torch.equal(out["pixel_values"], PIXELS)


def test_targets_follow_the_images_that_are_named():
    mask = torch.eye(4, 6).byte()
    _, image, out = flipped(1, (IDS, PIXELS, [Mask(mask), Mask(mask)]))
    assert torch.equal(image, PIXELS.flip(-1))
    assert all(torch.equal(each, mask.flip(-1)) for each in out)


def test_copies_and_pickles_keep_the_rule():
    loader = fl.PrefetchLoader([BATCH], transform=FLIP, device="cpu", images="pixel_values")
    for same in (
        copy.copy(loader),
        copy.deepcopy(loader),
        pickle.loads(pickle.dumps(loader)),
        loader.rewrapped([BATCH]),
    ):
        assert torch.equal(next(iter(same))["pixel_values"], PIXELS.flip(-1))


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ("pixels", "images='pixels'.*there is no 'pixels' in what has 'input_ids'.*batch.'pixel_values'.: Tensor"),
        ("input_ids", r"batch\['input_ids'\] is no image; the batch holds .*int64 \(2, 5\)"),
        (lambda batch: batch["pixel_values"] / 2, "it returns Tensor, which is no field"),
    ],
)
def test_a_rule_that_names_no_image_is_refused(images, said):
    with pytest.raises(TypeError, match=said):
        flipped(images)


def test_the_error_without_a_rule_names_it():
    with pytest.raises(TypeError, match=r"it is batch\['input_ids'\].*say which .* PrefetchLoader\(images=...\)"):
        flipped(None)
    with pytest.raises(TypeError, match=r"the batch holds no image.*PrefetchLoader\(images=...\)"):
        flipped(None, {"label": 3})


def test_files_that_a_rule_leaves_out_are_refused():
    files = fl.collate([[jpeg(), jpeg()]])
    with pytest.raises(TypeError, match=r"batch\[1\] has image files too: pass images= to fl.collate"):
        list(fl.PrefetchLoader([files], transform=T.DecodeJpeg(), device="cpu", images=0))
    left, right = next(iter(fl.PrefetchLoader([files], transform=T.DecodeJpeg(), device="cpu", images=[0, 1])))
    assert left[0].shape == right[0].shape == (3, 48, 72)

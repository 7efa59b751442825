"""What ``print(transform)`` shows is what a run does."""

import re

import pytest
import torch

import fastload as fl
from fastload import transforms as T
from fastload.transforms.lazy import LazyImages
from tests.files import jpeg

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZE = T.Normalize(MEAN, STD)
LARGE = [T.RandomResizedCrop(16), T.GaussianBlur(3)]
SMALL = [T.RandomResizedCrop(8), T.RandomHorizontalFlip()]
COMPOSITIONS = {
    "crop": [T.RandomResizedCrop(16), T.RandomHorizontalFlip(), NORMALIZE],
    "README": [
        T.RandomResizedCrop(16),
        T.RandomHorizontalFlip(),
        T.ColorJitter(0.3, 0.3, 0.3),
        NORMALIZE,
        T.RandomErasing(0.25),
        T.MixUp(0.8, num_classes=1000),
    ],
    "mixing after geometry": [T.RandomResizedCrop(16), T.MixUp(num_classes=2)],
    "recipe": [T.Resize((16, 16)), T.RandAugment(), T.Normalize(MEAN, STD, dtype=torch.float16)],
    "three": [T.RandomCrop(16), T.ThreeAugment(), NORMALIZE, T.RandomErasing(value="random")],
    "contrasts": [T.RandomCrop(16), T.ColorJitter(contrast=0.5), T.RandomAutocontrast(), T.RandomVerticalFlip()],
    "two crops": [T.Resize(20), T.CenterCrop(18), T.RandomResizedCrop(16)],
    "user's own": [T.RandomCrop(16), torch.neg, NORMALIZE],
    "flip": [T.RandomHorizontalFlip()],
    "views": [T.MultiView([LARGE, *[SMALL] * 3]), NORMALIZE],
    "views, user's own": [T.MultiView([LARGE, *[SMALL] * 3]), torch.neg, NORMALIZE],
    "nothing": [],
}


def shown(steps):
    return str(T.Compose(steps)).splitlines()


def lines(steps):
    return [line.strip() for line in shown(steps)[1:]]


@pytest.mark.parametrize("decoded", [False, True])
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_as_many_passes_are_shown_as_a_run_makes(name, decoded, monkeypatch):
    calls = []

    def counted(method):
        original = getattr(LazyImages, method)
        monkeypatch.setattr(LazyImages, method, lambda *args, **kw: calls.append(method) or original(*args, **kw))

    steps = COMPOSITIONS[name]
    images = torch.randint(0, 256, (64, 3, 24, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    if decoded:
        steps, images = [T.DecodeJpeg(device="cpu"), *steps], fl.collate([jpeg(24, 32)] * 64)
    header = shown(steps)[0]
    for method in ("_resample", "_colour", "_flip_normalize", "_mirror", "_step"):
        counted(method)
    T.Compose(steps)(images, T.Key())
    assert header.startswith(f"{len(calls)} pass")


@pytest.mark.parametrize(("dtype", "written"), [(torch.float32, "4.00"), (torch.bfloat16, "2.00")])
def test_bytes_are_multiples_of_an_images(dtype, written):
    normalize = T.Normalize(MEAN, STD, dtype=dtype)
    assert lines([normalize]) == [f"1. Normalize: reads 1.00, writes {written}"]
    halves = [T.Resize((375, 250)), T.CenterCrop(250), normalize]
    crop = 250 * 250 / (375 * 500)
    assert lines(halves) == [
        f"1. Resize + CenterCrop + Normalize: reads {2 * crop:.2f}, writes {float(written) * crop:.2f}"
    ]


def test_transforms_are_named_in_the_passes_that_do_their_work():
    named = [re.sub(r":.*", "", line) for line in lines([T.DecodeJpeg(), *COMPOSITIONS["README"]])]
    assert named == [
        "DecodeJpeg",
        "1. RandomResizedCrop + RandomHorizontalFlip + ColorJitter + statistics",
        "2. ColorJitter + Normalize + RandomErasing + MixUp",
    ]


def test_a_recipe_has_one_line_for_the_passes_of_its_own():
    first, own, last = (re.sub(r":.*", "", line) for line in lines(COMPOSITIONS["recipe"]))
    assert first == "1. Resize + RandAugment + statistics"
    assert own == "2-9. RandAugment + statistics (8 passes)"
    assert last == "10. RandAugment + Normalize"


def test_each_view_has_its_passes_and_those_made_together_are_shown_once():
    named = [re.sub(r": .*", "", line) for line in lines([T.DecodeJpeg(), *COMPOSITIONS["views"]])]
    assert named == [
        "DecodeJpeg",
        "view 1:",
        "1. RandomResizedCrop",
        "2. GaussianBlur",
        "3. Normalize",
        "views 2-4:",
        "4. RandomResizedCrop + RandomHorizontalFlip + Normalize",
    ]


def test_views_made_together_move_the_bytes_of_all():
    one = lines([T.DecodeJpeg(), T.MultiView([T.CenterCrop(150)])])
    eight = lines([T.DecodeJpeg(), T.MultiView([T.CenterCrop(150)] * 8)])
    assert (one[1], eight[1]) == ("view 1:", "views 1-8:")
    assert (one[2], eight[2]) == (
        "1. CenterCrop: reads 0.12, writes 0.12",
        "1. CenterCrop: reads 0.96, writes 0.96",
    )


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_have_as_many_channels_as_normalize(channels):
    assert lines([T.Normalize([0.5] * channels, [0.5] * channels)]) == ["1. Normalize: reads 1.00, writes 4.00"]


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        ([T.RandomCrop(600)], r"RandomCrop cannot be shown: a crop of \(600, 600\) must fit"),
        ([T.DecodeJpeg(), T.GaussianBlur(3)], r"GaussianBlur cannot be shown: .* crop or resize them first"),
    ],
)
def test_print_does_not_raise(steps, line):
    assert re.match(line, lines(steps)[-1])

"""A transform of one image in two parts, which together do what it did."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from skimage import data
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload as fl
from fastload.transforms import Key
from tests.counts import count
from tests.offload.pipelines import JOINT, MEAN, PIPELINES, STD, A, ReferencePreset

NEAR = 2 / 255  # Pillow rounds after each step, of which there are two at most: half a level each, and more for sums
SAMPLES = 2000
# Of these a thousand images take half a minute on the CPU, where the references run.
SLOW, SLOW_SAMPLES = re.compile("RandAugment|Sharpness|Equalize|Blur"), count(full=2000, here=500)
PAGE = Path(__file__).parents[2] / "docs" / "offload.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->"


def photographs():
    pictures = [data.astronaut(), data.coffee(), data.cat()]
    return [Image.fromarray(picture) for picture in pictures]


def ours(parts, image, key=None):
    """What the two parts make of one image."""
    image = image if parts.worker is None else parts.worker(image)
    return parts.device(v2.functional.pil_to_tensor(image) if isinstance(image, Image.Image) else image, key)


def assert_near(ours, theirs, scale=1.0):
    assert ours.shape == theirs.shape
    assert ours.dtype is theirs.dtype
    assert (ours - theirs).abs().max() <= NEAR / scale


@pytest.mark.long
@pytest.mark.parametrize("name", [*PIPELINES, *JOINT])
def test_pipelines_that_others_wrote(name):
    make, stays = (PIPELINES | JOINT)[name]
    parts = fl.split(make(), targets="together" if name in JOINT else "none")
    in_worker = ", ".join(step.name for step in parts.steps if step.where == "worker")
    assert in_worker == ("" if stays == "moves" else stays)
    assert (parts.worker is None) is (stays == "moves")
    assert len(str(parts).splitlines()) == len(parts.steps)
    assert max(map(len, str(parts).splitlines())) <= 80


def presets():
    """The distinct transforms of torchvision's weights for classification."""
    weights = [
        torchvision.models.get_model_weights(name) for name in torchvision.models.list_models(torchvision.models)
    ]
    made = [each.transforms() for several in weights for each in several]
    return {repr(preset): preset for preset in made}


@pytest.mark.long
def test_each_preset_of_classification_gives_the_pixels_of_torchvision():
    for preset in presets().values():
        parts = fl.split(preset)
        assert parts.worker is None
        for image in photographs():
            assert_near(ours(parts, image), preset(image), min(preset.std))


@pytest.mark.parametrize(
    "transform",
    [
        v1.Compose([v1.Resize(70), v1.CenterCrop(64), v1.ToTensor(), v1.Normalize(MEAN, STD)]),
        v2.Compose([v2.ToImage(), v2.Resize((50, 60)), v2.ToDtype(torch.float32, scale=True)]),
        v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float32)]),
        v2.Compose(
            [v2.CenterCrop(40), v2.RGB(), v2.RandomHorizontalFlip(1.0), v2.ToImage(), v2.ToDtype(torch.float32, True)]
        ),
        ReferencePreset(v1.Resize(40, v1.InterpolationMode.BICUBIC), v1.ToTensor()),
        torch.nn.Sequential(v2.PILToTensor(), v2.CenterCrop(30), v2.ConvertImageDtype(torch.float32)),
        [v1.Resize((33, 44)), v1.ToTensor()],
        v1.Compose([v1.CenterCrop(32), v1.RandomInvert(1.0), v1.RandomSolarize(100, 1.0), v1.ToTensor()]),
        v1.Compose([v1.CenterCrop(32), v1.ToTensor(), v1.RandomErasing(1.0, (0.999, 1.0), (1, 1), 0.5)]),
        [v1.ToTensor(), v1.ConvertImageDtype(torch.float64), v1.ConvertImageDtype(torch.float32), v1.CenterCrop(32)],
        [
            v1.ToTensor(),
            v1.ConvertImageDtype(torch.float64),
            v1.ConvertImageDtype(torch.float32),
            v1.Normalize(MEAN, STD),
        ],
    ],
    ids=lambda transform: re.sub(r"\s+", " ", str(getattr(transform, "transforms", transform))),
)
def test_what_is_certain_gives_the_same_pixels(transform):
    parts = fl.split(transform)
    original = v1.Compose(transform) if isinstance(transform, list) else transform
    for image in photographs():
        theirs = original(image)
        assert_near(ours(parts, image), theirs.as_subclass(torch.Tensor), min(STD))


RANDOM = [
    v1.RandomResizedCrop(24),
    v1.RandomResizedCrop((20, 30), scale=(0.2, 0.5), ratio=(0.5, 1.0)),
    v1.RandomCrop(24, padding=6),
    v1.RandomHorizontalFlip(0.3),
    v1.RandomVerticalFlip(0.7),
    v1.ColorJitter(0.4, 0.4, 0.4),
    v1.ColorJitter(brightness=(0.5, 0.8)),
    v1.RandomGrayscale(0.4),
    v1.RandomInvert(0.4),
    v1.RandomSolarize(128, 0.4),
    v1.RandomPosterize(2, 0.4),
    v1.RandomAutocontrast(0.4),
    v1.Compose([v1.Resize((32, 32)), v1.RandomEqualize(0.4)]),
    v1.Compose([v1.Resize((32, 32)), v1.RandomAdjustSharpness(3.0, 0.4)]),
    v1.Compose([v1.Resize((32, 32)), v1.GaussianBlur(9, (0.1, 3.0))]),
    v1.Compose([v1.Resize((32, 32)), v1.TrivialAugmentWide()]),
    v1.Compose([v1.Resize((32, 32)), v1.RandAugment()]),
    v1.Compose([v1.RandomApply([v1.ColorJitter(0.5, 0.5)], 0.3), v1.RandomHorizontalFlip()]),
    v1.RandomChoice([v1.RandomInvert(1.0), v1.RandomVerticalFlip(1.0), v1.ColorJitter(0.5)], p=[1, 2, 3]),
    v1.RandomOrder([v1.RandomInvert(0.5), v1.RandomSolarize(100, 0.5), v1.ColorJitter(brightness=0.5)]),
]


def measured(images):
    """What tells how an image was cut, moved and coloured: means, spreads and a corner, in levels; (N, 9)."""
    images = images.float()
    corner = images[:, :, 2, 2]
    return torch.cat([images.mean((2, 3)), images.std((2, 3)), corner], dim=1).numpy()


@pytest.mark.long
@pytest.mark.parametrize("transform", RANDOM, ids=lambda transform: re.sub(r"\s+", " ", repr(transform)))
def test_what_is_random_has_the_distribution_of_torchvision(transform):
    samples = SLOW_SAMPLES if SLOW.search(repr(transform)) else SAMPLES
    place = np.arange(36)
    texture = np.random.default_rng(0).integers(0, 120, (36, 36))
    picture = np.stack(
        [np.broadcast_to(6 * place, (36, 36)), np.broadcast_to(7 * place[:, None], (36, 36)), texture], 2
    )
    image = Image.fromarray(picture.astype(np.uint8))
    torch.manual_seed(1)
    theirs = measured(torch.stack([v2.functional.pil_to_tensor(transform(image)) for _ in range(samples)]))
    parts = fl.split(transform)
    assert parts.worker is None
    batch = v2.functional.pil_to_tensor(image).expand(samples, -1, -1, -1).contiguous()
    made = measured(parts.device(batch, Key(seed=7)))
    # Pillow's rounding moves values by half a level, which would show where a transform has few outcomes. Noise of
    # eight levels on both hides it: such a shift moves the distributions apart by 1/16, times the share of an outcome.
    noise = np.random.default_rng(2).uniform(-8, 8, (2, *made.shape))
    from scipy.stats import ks_2samp  # noqa: PLC0415  (its import takes seconds, which short tests need not)

    for ours_alone, theirs_alone in zip((made + noise[0]).T, (theirs + noise[1]).T, strict=True):
        assert ks_2samp(ours_alone, theirs_alone, method="asymp").pvalue > 0.001


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (v2.RandomPerspective(), "none like it"),
        (v2.Resize(32, interpolation=v2.InterpolationMode.LANCZOS), "interpolation must be one of"),
        (v2.Resize(32, interpolation=v2.InterpolationMode.NEAREST), "Pillow takes other pixels"),
        (v2.Resize(32, antialias=False), "antialias"),
        (v2.RandomCrop(8, padding=2, padding_mode="reflect"), "padding_mode"),
        (v2.RandomCrop(8, padding=2, fill=(1, 2, 3)), "fill"),
        (v2.RandomCrop(8, padding=2, fill={tv_tensors.Image: 9, "others": 0}), "fill differs"),
        (v2.Grayscale(1), "channels"),
        (v2.Grayscale(3), "channels"),
        (v2.GaussianBlur(3), "one size"),
        (v2.ToDtype(torch.float32, scale=True), "leaves Pillow images as they are"),
        (v2.Normalize([120.0], [60.0]), "0 to 255"),
        (v2.RandomErasing(value="random"), "noise among bytes"),
        (v2.RandomApply([v2.RandomPerspective()]), "holds one that stays"),
        (v2.RandomApply([v2.ToImage()]), "holds a conversion"),
        (v2.RandomApply([type("RandomInvert", (), {"__call__": lambda _, image: image, "p": 1.0})()]), "not know it"),
        (v2.Lambda(torch.neg), "none like it"),
        (abs, "does not know it"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_a_step_that_would_not_be_the_same_stays_with_the_reason(step, why):
    parts = fl.split([v2.RandomHorizontalFlip(), step, v2.RandomInvert()])
    flip, stays, invert = parts.steps
    assert (flip.where, flip.why) == ("worker", "comes before one that stays")
    assert stays.where == "worker"
    assert why in stays.why
    assert invert.where == "device"


@pytest.mark.parametrize(
    ("step", "why"),
    [
        (v2.ToDtype(torch.float32), "does not scale"),
        (v2.ToDtype(torch.float64, scale=True), "float64"),
        (v1.ToTensor(), "takes a Pillow image"),
    ],
    ids=repr,
)
def test_a_conversion_of_tensors_that_would_not_be_the_same_stays(step, why):
    assert why in fl.split([v2.ToImage(), step]).steps[1].why


def test_values_are_converted_to_the_type_of_the_original():
    steps = [v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD)]
    image = photographs()[0]
    assert ours(fl.split(steps), image).dtype is v2.Compose(steps)(image).dtype is torch.bfloat16


@pytest.mark.long
def test_an_array_of_albumentations_stays_an_array():
    assert fl.split(A.Compose([A.HorizontalFlip()])).device is None


def test_subclasses_and_hooks_are_not_known():
    class Mine(v2.RandomHorizontalFlip):
        pass

    hooked = v2.RandomHorizontalFlip()
    hooked.register_forward_hook(lambda *_: None)
    assert [step.where for step in fl.split([v2.RandomInvert(), Mine()]).steps] == ["worker", "worker"]
    assert fl.split(hooked).device is None


def test_an_object_that_does_more_than_to_call_its_transforms_is_not_known():
    class Twice(ReferencePreset):
        def __call__(self, image):
            return self.transforms(self.transforms(image))

    assert fl.split(Twice(v1.RandomInvert())).device is None


@pytest.mark.parametrize(
    ("targets", "where"),
    [
        ("none", ["device"] * 5),
        ("together", ["device", "device", "worker", "device", "device"]),
        ("beside", ["worker", "worker", "worker", "device", "device"]),
    ],
)
def test_steps_move_only_if_targets_stay_right(targets, where):
    steps = [v2.ToImage(), v2.RandomHorizontalFlip(), v2.ClampBoundingBoxes(), v2.RandomInvert(), v2.ToPureTensor()]
    if targets == "none":
        steps[2] = v2.RandomVerticalFlip()
    elif targets == "beside":
        steps[2] = v2.CenterCrop(4)
    assert [step.where for step in fl.split(steps, targets=targets).steps] == where


def test_a_look_at_boxes_stays_after_what_cuts_or_resizes_them():
    steps = [v2.Resize(32), v2.SanitizeBoundingBoxes(), v2.RandomHorizontalFlip()]
    assert [step.where for step in fl.split(steps, targets="together").steps] == ["worker", "worker", "device"]


@pytest.mark.long
def test_albumentations_parts_do_what_the_whole_did():
    whole = A.Compose([A.Resize(64, 64), A.CenterCrop(40, 40), A.HorizontalFlip(p=1.0), A.Normalize(), A.ToTensorV2()])
    parts = fl.split(whole)
    for image in map(np.asarray, photographs()):
        resized = torch.from_numpy(parts.worker(image=image)["image"]).permute(2, 0, 1)
        assert_near(parts.device(resized), whole(image=image)["image"], min(STD))


MOST_USED = {
    "HorizontalFlip": {},
    "VerticalFlip": {},
    "CenterCrop": {"height": 32, "width": 32},
    "RandomCrop": {"height": 32, "width": 32},
    "Normalize": {},
    "ToTensorV2": {},
    "ToGray": {},
    "Resize": {"height": 32, "width": 32},
    "RandomResizedCrop": {"size": (32, 32)},
    "ColorJitter": {},
    "RandomBrightnessContrast": {},
    "HueSaturationValue": {},
    "GaussianBlur": {},
    "CoarseDropout": {},
    "Affine": {},
}


@pytest.mark.long
def test_the_most_used_of_albumentations_move_or_are_named():
    parts = {
        name: fl.split(A.Compose([getattr(A, name)(**options), A.ToTensorV2()])) for name, options in MOST_USED.items()
    }
    moved = {name for name, each in parts.items() if each.worker is None}
    assert moved == {"HorizontalFlip", "VerticalFlip", "CenterCrop", "RandomCrop", "Normalize", "ToTensorV2", "ToGray"}
    assert all(parts[name].steps[0].why for name in parts.keys() - moved)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        lambda: {"p": 0.5},
        lambda: {"bbox_params": A.BboxParams("pascal_voc")},
        lambda: {"additional_targets": {"other": "image"}},
    ],
    ids=["at times", "boxes", "other images"],
)
def test_albumentations_with_more_than_an_image_stays(options):
    assert fl.split(A.Compose([A.HorizontalFlip(), A.ToTensorV2()], **options())).device is None


@pytest.mark.long
def test_of_albumentations_a_compose_is_split():
    with pytest.raises(TypeError, match="got HorizontalFlip"):
        fl.split(A.HorizontalFlip())


def test_the_workers_part_can_be_sent_to_a_spawned_worker():
    parts = fl.split(v2.Compose([v2.RandomRotation(10), v2.RandomHorizontalFlip()]))
    assert repr(pickle.loads(pickle.dumps(parts.worker))) == repr(parts.worker)


@pytest.mark.parametrize("wrong", [None, 3, "Resize", [v2.RandomInvert(), None]])
def test_what_is_no_transform_is_refused(wrong):
    with pytest.raises(TypeError, match=r"got (None|3|'Resize')"):
        fl.split(wrong)


def test_targets_must_be_one_of_three():
    with pytest.raises(ValueError, match="targets must be one of 'none', 'together', 'beside'; got 'maybe'"):
        fl.split(v2.RandomInvert(), targets="maybe")


def test_the_list_of_pipelines_is_that_of_the_docs():
    """``FASTLOAD_WRITE_TABLE=1`` writes it."""
    rows = [
        f"| {name} | {stays if stays == 'moves' else f'stays: {stays}'} |\n"
        for name, (_, stays) in (PIPELINES | JOINT).items()
    ]
    table = "".join(["| pipeline | outcome |\n|---|---|\n", *rows]).replace("<lambda>", "the function")
    head, _, rest = PAGE.read_text().partition(BEGIN)
    written, _, tail = rest.partition(END)
    if os.environ.get("FASTLOAD_WRITE_TABLE"):
        PAGE.write_text(head + BEGIN + table + END + tail)
    else:
        assert written == table

"""Images of any kind: what ``fl.offload`` takes comes out as without it, and what it does not take is refused."""

import numpy as np
import pytest
import torch
from PIL import Image
from skimage import data
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

import fastload as fl

PHOTOGRAPH = Image.fromarray(data.astronaut()).resize((40, 32))
NEAR = 2  # levels of 255
NEAR_HUES = 8  # Pillow rounds hue and saturation to bytes
MODES = ["1", "L", "P", "PA", "LA", "La", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"]
ALONE = ["L", "RGB", "YCbCr", "HSV", "CMYK"]  # modes of which Pillow resizes each channel alone
BETWEEN = {"PA": "P", "La": "LA", "RGBa": "RGBA", "I;16": "I"}
GEOMETRY = [
    v1.Resize((20, 24)),
    v1.Resize(24, v1.InterpolationMode.BICUBIC),
    v1.CenterCrop(16),
    v1.CenterCrop(50),
    v1.RandomCrop((36, 44), padding=2, fill=7),
    v1.RandomResizedCrop((20, 24), scale=(1.0, 1.0), ratio=(1.25, 1.25)),
    v1.RandomHorizontalFlip(1.0),
    v1.RandomVerticalFlip(1.0),
    v1.RandomApply([v1.RandomHorizontalFlip(1.0)], 1.0),
]
COLOURS = [
    v1.ColorJitter(brightness=(0.5, 0.5)),
    v1.ColorJitter(contrast=(0.5, 0.5)),
    v1.ColorJitter(saturation=(0.5, 0.5)),
    v1.ColorJitter(hue=(0.2, 0.2)),
    v1.RandomGrayscale(1.0),
    v1.RandomInvert(1.0),
    v1.RandomSolarize(128, 1.0),
    v1.RandomPosterize(3, 1.0),
    v1.RandomAutocontrast(1.0),
    v1.RandomEqualize(1.0),
    v1.RandomAdjustSharpness(2.0, 1.0),
    v1.GaussianBlur(3, (1.0, 1.0)),
    v1.RandomApply([v1.RandomGrayscale(1.0)], 1.0),
]
UNIT = v2.ToDtype(torch.float32, scale=True)
BYTES = v2.ToDtype(torch.uint8, scale=True)
NORMALIZE = v2.Normalize([0.5] * 3, [0.25] * 3)
WHOLE = v2.CenterCrop((32, 40))


class Images(Dataset):
    def __init__(self, image, *steps):
        self.image, self.transform = image, v1.Compose(steps)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.transform(self.image)


def of_mode(mode):
    return PHOTOGRAPH.convert(BETWEEN.get(mode, mode)).convert(mode)


def tensor(dtype):
    image = v2.functional.pil_to_tensor(PHOTOGRAPH)
    return (image / 255).to(dtype) if dtype.is_floating_point else image.to(dtype)


def offloaded(dataset, **options):
    return fl.offload(DataLoader(dataset, 2), device="cpu", verbose=False, **options)


def assert_same(dataset, near=NEAR):
    [ours], [theirs] = offloaded(dataset), DataLoader(dataset, 2)
    assert ours.dtype is theirs.dtype
    assert ours.shape == theirs.shape
    levels = 255 if theirs.dtype.is_floating_point else 1
    assert (ours.double() - theirs.double()).abs().max() * levels <= near + 0.01


@pytest.mark.parametrize("step", [*GEOMETRY, *COLOURS], ids=repr)
@pytest.mark.parametrize("mode", MODES)
def test_a_pillow_image_is_as_without_offload_or_its_mode_is_refused(mode, step):
    dataset = Images(of_mode(mode), WHOLE, step, v1.ToTensor())
    if mode in (ALONE if step in GEOMETRY else ["L", "RGB"]):
        assert_same(dataset, NEAR_HUES if getattr(step, "hue", None) else NEAR)
    else:
        with pytest.raises(TypeError, match=rf"mode '{mode}'.*'L', 'RGB'.*image.convert\(\"RGB\"\)"):
            offloaded(dataset)


@pytest.mark.parametrize("step", [v1.RandAugment(), v1.TrivialAugmentWide()])
@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "CMYK"])
def test_an_augmentation_policy_changes_colours_too(mode, step):
    with pytest.raises(TypeError, match=f"mode '{mode}'"):
        offloaded(Images(of_mode(mode), WHOLE, step, v1.ToTensor()))


@pytest.mark.parametrize("conversion", [v1.ToTensor(), v1.PILToTensor()], ids=repr)
@pytest.mark.parametrize("mode", ["YCbCr", "HSV"])
def test_the_colours_of_a_tensor_are_those_of_torchvision_whatever_mode_it_was_of(mode, conversion):
    assert_same(Images(of_mode(mode), conversion, v1.RandomGrayscale(1.0)))


def test_a_mode_that_a_later_image_has_is_refused_when_it_comes():
    class Modes(Images):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return self.transform(of_mode("RGB" if index < 4 else "HSV"))

    with pytest.raises(TypeError, match="mode 'HSV'"):
        list(offloaded(Modes(None, WHOLE, v1.RandomGrayscale(1.0), v1.ToTensor())))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int16])
@pytest.mark.parametrize("rest", [[], [v2.RandomHorizontalFlip(1.0)], [v2.Resize(20), UNIT, NORMALIZE]], ids=repr)
def test_what_would_be_converted_to_bytes_must_be_bytes(dtype, rest):
    assert_same(Images(tensor(torch.uint8), v2.ToImage(), BYTES, *rest), NEAR / min(NORMALIZE.std))
    with pytest.raises(TypeError, match=f"an image of {dtype}, .*make it torch.uint8 in the data set"):
        offloaded(Images(tensor(dtype), v2.ToImage(), BYTES, *rest))


def test_an_array_that_would_be_converted_to_bytes_must_be_bytes():
    array = np.array(PHOTOGRAPH)
    assert_same(Images(array, v2.ToImage(), BYTES))
    with pytest.raises(TypeError, match=r"an image of torch.float32, .*make it torch.uint8 in the data set"):
        offloaded(Images((array / 255).astype(np.float32), v2.ToImage(), BYTES))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_normalisation_alone_must_be_given_the_dtype_that_it_gives(dtype):
    assert_same(Images(tensor(torch.float32), NORMALIZE))
    with pytest.raises(TypeError, match=rf"{dtype} without a conversion .* torch.float32 in the data set, .*dtype="):
        offloaded(Images(tensor(dtype), NORMALIZE))


@pytest.mark.parametrize("steps", [[UNIT, NORMALIZE], [NORMALIZE, UNIT]], ids=["before", "after"])
def test_a_conversion_gives_the_dtype(steps):
    assert_same(Images(tensor(torch.float16), v2.ToImage(), *steps), NEAR / min(NORMALIZE.std))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_an_argument_gives_the_dtype(dtype):
    images = Images(tensor(torch.float16), NORMALIZE)
    [ours], [theirs] = offloaded(images, dtype=dtype), DataLoader(images, 2)
    assert ours.dtype is dtype
    torch.testing.assert_close(ours.float(), theirs.float(), atol=0.02, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("step", [v2.RandomEqualize(1.0), v2.RandAugment(), v2.TrivialAugmentWide()], ids=repr)
def test_equalising_floats_of_16_bits_in_which_torchvision_makes_white_black(dtype, step):
    with pytest.raises(TypeError, match=f"an image of {dtype}, .*make it torch.uint8 or torch.float32"):
        offloaded(Images(tensor(dtype), v2.ToImage(), WHOLE, step))
    assert fl.split([v2.ToImage(), WHOLE, v2.ToDtype(dtype, scale=True), step]).steps[-1].where == "worker"


def test_floats_of_16_bits_are_equalised_after_their_conversion():
    assert_same(Images(tensor(torch.float16), v2.ToImage(), WHOLE, UNIT, v2.RandomEqualize(1.0)))


def test_a_split_tells_which_images_it_takes():
    takes = fl.split([v2.RandomHorizontalFlip(), v2.RandomGrayscale(), v2.ToImage(), BYTES]).takes
    assert takes.modes == ("L", "RGB")
    assert takes.dtypes == (torch.uint8,)
    assert fl.split([NORMALIZE]).takes.keeps is torch.float32

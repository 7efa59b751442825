"""Pipelines of torchvision's transforms in any order give what torchvision gives."""

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from skimage import data
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import fastload as fl
from fastload import transforms as T
from tests.counts import examples

IMAGES = [
    Image.fromarray(data.astronaut()).resize((53, 41)),
    Image.fromarray(data.coffee()).resize((40, 55)).convert("L"),
]
STEPS = 6  # at most; Pillow rounds or cuts off less than a level in each, and none makes differences larger
DTYPES = [torch.float32, torch.float16, torch.uint8, torch.float64]
FLIPS = [lambda v: v.RandomHorizontalFlip(1.0), lambda v: v.RandomVerticalFlip(1.0)]
GEOMETRY = [
    lambda v: v.Resize((31, 37)),
    lambda v: v.Resize(30, max_size=35),
    lambda v: v.Resize(30, v1.InterpolationMode.BICUBIC),
    lambda v: v.CenterCrop((21, 60)),
]
COLOURS = [
    lambda v: v.ColorJitter(brightness=(0.7, 0.7)),
    lambda v: v.ColorJitter(contrast=(0.7, 0.7)),
    lambda v: v.ColorJitter(saturation=(0.3, 0.3)),
    lambda v: v.RandomGrayscale(1.0),
    lambda v: v.RandomInvert(1.0),
    lambda v: v.Grayscale(3),
    lambda v: v.RandomApply([v.RandomInvert(1.0), v.RandomVerticalFlip(1.0)], p=1.0),
]
CONVERSIONS = [
    lambda v: v.ToTensor(),
    lambda v: v.PILToTensor(),
    lambda v: v.Normalize([0.5, 0.4, 0.3], [0.5, 0.5, 0.5]),
    lambda v: v.Normalize([0.5], [0.5]),
    lambda v: v.RandomErasing(1.0, (0.9999, 1.0), (1.0, 1.0), value=0.5),
    *(lambda v, dtype=dtype: v.ConvertImageDtype(dtype) for dtype in DTYPES),
]
VERSION_2 = [
    lambda _: v2.ToImage(),
    lambda _: v2.ToPureTensor(),
    lambda _: v2.RGB(),
    *(lambda _, dtype=dtype: v2.ToDtype(dtype, scale=True) for dtype in DTYPES),
    lambda _: v2.ToDtype(torch.float32),
]
ON_TARGETS = [
    lambda _: v2.SanitizeBoundingBoxes(),
    lambda _: v2.ClampBoundingBoxes(),
    lambda _: v2.ConvertBoundingBoxFormat("CXCYWH"),
]


def pipelines(*kinds):
    return st.tuples(
        st.sampled_from([v1, v2]), st.lists(st.one_of(*map(st.sampled_from, kinds)), min_size=1, max_size=STEPS)
    )


def tensor(image):
    return v2.functional.pil_to_tensor(image) if isinstance(image, Image.Image) else image.as_subclass(torch.Tensor)


def answer(function, *inputs):
    """What torchvision makes of the inputs; what it refuses is not looked at."""
    try:
        return function(*inputs)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        assume(False)


def assert_same_image(ours, theirs):
    assert ours.dtype is theirs.dtype
    assert ours.shape == theirs.shape
    level = 1.0 if theirs.max() > 2 else 2 / 255  # of bytes, or of values from 0 to 1 that a std of 0.5 doubled
    assert (ours.double() - theirs.double()).abs().max() <= STEPS * level


@examples(full=500, here=60)
@given(image=st.sampled_from(IMAGES), pipeline=pipelines(FLIPS, GEOMETRY, COLOURS, CONVERSIONS, VERSION_2))
def test_any_pipeline_gives_torchvisions_pixels(image, pipeline):
    version, make = pipeline
    steps = [each(version) for each in make]
    assume(image.mode == "RGB" or not any(len(getattr(step, "mean", [])) == 3 for step in steps))  # refused when run
    theirs = tensor(answer(version.Compose(steps), image))
    parts = fl.split(steps)
    kept = image if parts.worker is None else parts.worker(image)
    assert_same_image(tensor(kept) if parts.device is None else tensor(parts.device(tensor(kept))), theirs)


def target():
    image = IMAGES[0]
    corners = torch.tensor([[3.0, 4.0, 20.0, 30.0], [11.0, 2.0, 52.0, 19.0]])
    masks = torch.zeros(2, image.height, image.width, dtype=torch.uint8)
    masks[0, 4:30, 3:20] = masks[1, 2:19, 11:52] = 1
    boxes = tv_tensors.BoundingBoxes(corners, format="XYXY", canvas_size=(image.height, image.width))
    return image, {"boxes": boxes, "labels": torch.tensor([7, 8]), "masks": tv_tensors.Mask(masks)}


@examples(full=500, here=40)
@given(pipeline=pipelines(FLIPS, GEOMETRY, COLOURS, VERSION_2, ON_TARGETS))
def test_any_joint_pipeline_gives_torchvisions_targets(pipeline):
    steps = [each(v2) for each in pipeline[1]]
    image, expected = answer(v2.Compose(steps), *target())
    parts = fl.split(steps, targets="together")
    kept, targets = target() if parts.worker is None else parts.worker(*target())
    loader = fl.PrefetchLoader([(tensor(kept)[None], [targets])], transform=parts.device or T.Compose([]), device="cpu")
    [(images, [targets])] = loader
    assert_same_image(tensor(images[0]), tensor(image))
    for name, values in expected.items():
        torch.testing.assert_close(tensor(targets[name]), tensor(values), atol=1e-3, rtol=0)

"""Every public argument is checked where it is given: a TypeError or ValueError names it and quotes the value.

A row is a call that is right, and for each of its arguments values that are not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fastload as fl
from fastload import kernels
from fastload import transforms as T

NAN, INF = math.nan, math.inf
NO_NUMBER = ("1", True, None, object(), [1])
NO_INT = (1.5, "1", True, None, object(), [1])
NO_PROBABILITY = (*NO_NUMBER, -0.1, 1.1, NAN)
NO_FLAG = (0, 1, "True", None)
NO_SIZE = (224.0, "224", True, 0, -1, (), (1, 2, 3), (8, 8.5), (8, -8), None, object())
NO_PAIR = (0.5, "ab", (0.5,), (0.1, 0.2, 0.3), (0.2, 0.1), (NAN, 1.0), (0.1, INF), ("a", "b"), None)
NO_INTERPOLATION = ("linear", 3, None)
NO_SEQUENCE = (0.5, "0.5", (), (0.5, "a", 0.5), (NAN, 0.5, 0.5), (INF, 0.5, 0.5), object())
NO_FILL = ("black", True, object(), (1, 2, 3), {"Mask": 0})
NO_FIELD = (1.5, True, object(), (), [], [()], [[0]], ("image", 1.5), {"image": 0})
NO_DEVICE = ("gpu", "cuda:-1", 1.5, True, object())


@dataclass
class Row:
    call: Callable[..., Any]
    right: dict[str, Any]
    wrong: dict[str, tuple[Any, ...]]


def batches():
    return [torch.zeros(2, 3, 4, 4, dtype=torch.uint8)]


def prefetched(loader=None, mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu", **options):
    return fl.PrefetchLoader(batches() if loader is None else loader, mean, std, device=device, **options)


def trained(model=None, optimizer=None, loss_fn=None, **options):
    model = nn.Linear(2, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1) if optimizer is None else optimizer
    return fl.TrainStep(model, optimizer, nn.MSELoss() if loss_fn is None else loss_fn, **options)


ROWS = [
    Row(
        prefetched,
        {},
        {
            "loader": (3, object()),
            "mean": NO_SEQUENCE,
            "std": (*NO_SEQUENCE, (0.0, 1.0, 1.0), (-1.0, 1.0, 1.0), (0.5, 0.5)),
            "device": NO_DEVICE,
            "transform": (3, "flip", [T.RandomHorizontalFlip()]),
            "dtype": (torch.int32, "float16", float),
            "memory_format": (torch.preserve_format, "channels_last"),
            "depth": (*NO_INT, 0, -1, 2.0),
            "static": (1, "pads", None, object()),
            "seed": (*NO_INT, -1, 2**63),
            "shard": (1, "01", (1,), (0, 1, 2), (2, 2), (-1, 2), (0.0, 2)),
            "images": NO_FIELD,
        },
    ),
    Row(lambda epoch: prefetched().set_epoch(epoch), {"epoch": 3}, {"epoch": (*NO_INT, -1, 2**32, NAN)}),
    Row(lambda state: prefetched().load_state_dict(state), {}, {"state": (None, 3, [], {"epoch": 1})}),
    Row(fl.Static, {}, {"short": ("pads", True, 3), "poison": NO_FLAG, "refuse": NO_FLAG}),
    Row(
        trained,
        {},
        {
            "optimizer": (3, "sgd", torch.optim.SGD),
            "loss_fn": (3, "mse"),
            "precision": ("half", 16, None, torch.float16),
            "accumulate": (*NO_INT, 0, -1),
            "max_norm": ("1", True, 0, -1, NAN, object()),
            "clip_value": ("1", True, 0, -1, NAN, object()),
            "scheduler": (3, "cosine"),
            "ema": ("0.9", True, -0.1, 1.0, 1.5, NAN, object()),
            "on_nonfinite": ("stop", None, True, 0),
            "scaler": (3, "scaler"),
            "losses": (3, (), ("a", 3)),
            "keep_output": NO_FLAG,
        },
    ),
    Row(
        fl.collate,
        {"samples": [(b"", 1)]},
        {
            "samples": ([], (), None, 3, {}, {"jpg": b"", "label": 3}),
            "images": (*NO_FIELD, 1, 2, "jpg", [0, 1], len),
            "masks": (*NO_FIELD, 1, 2, "png"),
            "most_bytes": (*NO_INT, 0),
            "decode": NO_FLAG,
            "upright": NO_FLAG[:-1],
        },
    ),
    Row(fl.data.sample_data, {"root": "photographs"}, {"images": (*NO_INT, 19, 100_001), "seed": (*NO_INT,)}),
    Row(
        T.Compose,
        {"transforms": []},
        {"transforms": (None, 3, T.RandomHorizontalFlip(), [3], ["flip"]), "per_box": (3, "names")},
    ),
    Row(
        T.Normalize,
        {"mean": (0.5,), "std": (0.5,)},
        {
            "mean": NO_SEQUENCE,
            "std": (*NO_SEQUENCE, (0.0,)),
            "inplace": (True, None, 0),
            "dtype": (torch.int8, "float32", None),
            "memory_format": (None, torch.preserve_format),
        },
    ),
    Row(T.Normalize, {"mean": (123.0,), "std": (58.0,)}, {"std": ((0.225,),)}),
    Row(
        T.Resize,
        {"size": 8},
        {
            "size": (*NO_SIZE[:-2], object()),
            "interpolation": NO_INTERPOLATION,
            "max_size": (*(each for each in NO_INT if each is not None), 0, 8),
            "antialias": (False, "yes", 0),
        },
    ),
    Row(
        T.RandomResizedCrop,
        {"size": 8},
        {
            "size": NO_SIZE,
            "scale": NO_PAIR,
            "ratio": (*NO_PAIR, (0.0, 1.0)),
            "interpolation": NO_INTERPOLATION,
            "antialias": (False, 1),
        },
    ),
    Row(T.CenterCrop, {"size": 8}, {"size": NO_SIZE}),
    Row(
        T.RandomCrop,
        {"size": 8},
        {
            "size": NO_SIZE,
            "padding": (1.5, "1", True, -1, (1, 2, 3), (1, -1), object()),
            "pad_if_needed": NO_FLAG,
            "fill": NO_FILL,
            "padding_mode": ("reflect", None),
        },
    ),
    Row(
        T.ColorJitter,
        {},
        {
            name: ("1", True, -0.1, NAN, INF, (0.5,), (1.0, 0.5), object())
            for name in ("brightness", "contrast", "saturation", "hue")
        },
    ),
    Row(T.ColorJitter, {}, {"hue": (0.6, (-0.6, 0.0))}),
    Row(T.Grayscale, {}, {"num_output_channels": (1, 2, 3.0, "3", True, None)}),
    Row(T.RandomSolarize, {"threshold": 128}, {"threshold": (*NO_NUMBER, -1, 256, NAN), "p": NO_PROBABILITY}),
    Row(T.RandomPosterize, {"bits": 4}, {"bits": (*NO_INT, -1, 9), "p": NO_PROBABILITY}),
    Row(
        T.RandomAdjustSharpness,
        {"sharpness_factor": 2},
        {"sharpness_factor": (*NO_NUMBER, -1, NAN, INF), "p": NO_PROBABILITY},
    ),
    Row(
        T.GaussianBlur,
        {"kernel_size": 3},
        {
            "kernel_size": (*NO_SIZE, 4, (3, 5)),
            "sigma": ("1", True, 0, NAN, INF, (1,), (2, 1), None),
            "p": NO_PROBABILITY,
        },
    ),
    Row(
        T.RandomErasing,
        {},
        {
            "p": NO_PROBABILITY,
            "scale": (*NO_PAIR, (0.0, 1.1)),
            "ratio": NO_PAIR,
            "value": ("noise", True, None, NAN, (), (1, "a")),
            "inplace": (True, None),
        },
    ),
    Row(
        T.RandAugment,
        {},
        {
            "num_ops": (*NO_INT, 0),
            "magnitude": (*NO_INT, -1, 31),
            "num_magnitude_bins": (*NO_INT, 1),
            "interpolation": NO_INTERPOLATION,
            "fill": NO_FILL,
        },
    ),
    Row(
        T.TrivialAugmentWide,
        {},
        {"num_magnitude_bins": (*NO_INT, 1), "interpolation": NO_INTERPOLATION, "fill": NO_FILL},
    ),
    Row(
        T.ThreeAugment,
        {},
        {"color_jitter": (*NO_NUMBER, -1, NAN), "kernel_size": (*NO_SIZE, 4), "sigma": ("1", True, 0, (2, 1))},
    ),
    *(
        Row(
            mix,
            {},
            {
                "alpha": (*NO_NUMBER, 0, -1, NAN, INF),
                "num_classes": (1.5, "1", True, 0, object()),
                "label_smoothing": (*NO_NUMBER, -0.1, 1, NAN),
                "labels_getter": (3, "labels"),
            },
        )
        for mix in (T.MixUp, T.CutMix)
    ),
    Row(
        T.MixUpCutMix,
        {},
        {"mixup_alpha": (*NO_NUMBER, 0), "cutmix_alpha": (*NO_NUMBER, INF), "switch_prob": NO_PROBABILITY},
    ),
    *(
        Row(flip, {}, {"p": NO_PROBABILITY})
        for flip in (
            T.RandomHorizontalFlip,
            T.RandomVerticalFlip,
            T.RandomGrayscale,
            T.RandomInvert,
            T.RandomAutocontrast,
            T.RandomEqualize,
        )
    ),
    Row(T.DecodeJpeg, {}, {"on_error": ("ignore", None, True), "device": NO_DEVICE}),
    Row(T.Photometric, {"function": abs}, {"function": (3, None)}),
]

WRONG = [(row, name, value) for row in ROWS for name, values in row.wrong.items() for value in values]


def id_of(case):
    row, name, value = case
    return f"{getattr(row.call, '__name__', row.call)}-{name}={type(value).__name__} {str(value)[:16]}"


@pytest.mark.parametrize("case", WRONG, ids=id_of)
def test_a_wrong_argument_is_named_and_quoted(case):
    row, name, value = case
    with pytest.raises((TypeError, ValueError)) as caught:
        row.call(**row.right | {name: value})
    message = str(caught.value)
    assert name.rpartition("_")[2] in message
    quoted = (
        repr(value),
        str(value),
        type(value).__name__,
        *map(repr, value if isinstance(value, tuple | list | dict) else ()),
    )
    assert any(quote in message for quote in quoted), message


@pytest.mark.parametrize("row", ROWS[2:], ids=lambda row: getattr(row.call, "__name__", str(row.call)))
def test_the_call_without_them_is_right(row):
    if row.call is not fl.data.sample_data and "state" not in row.wrong:
        row.call(**row.right)


@pytest.mark.parametrize(
    "call",
    [T.RandomHorizontalFlip, T.Resize, T.DecodeJpeg, T.Compose, lambda images: T.Compose([images]), fl.collate],
    ids=["a number", "a size", "a choice", "a list", "a transform", "samples"],
)
def test_a_batch_in_the_place_of_an_argument_is_not_printed(call):
    with pytest.raises((TypeError, ValueError), match=r"got Tensor torch.float32 \((16, )?3, 224, 224\)") as caught:
        call(torch.zeros(16, 3, 224, 224))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "call",
    [
        lambda batch: prefetched(static=batch),
        lambda batch: prefetched(images=batch),
        lambda batch: prefetched(images=[batch]),
        T.GaussianBlur,
        lambda batch: T.CutMix(classes=2)((batch, batch[:, 0]), labels_getter=lambda _: batch + 1),
        lambda batch: T.Compose([lambda _: [batch] * 3])(batch),
    ],
    ids=["static", "images", "paths", "a size", "labels", "what a function returns"],
)
def test_no_error_is_as_long_as_a_batch(call):
    with pytest.raises((TypeError, ValueError)) as caught:
        call(torch.zeros(16, 3, 224, 224))
    assert len(str(caught.value)) < 600


def test_a_long_value_is_cut_short():
    with pytest.raises(TypeError, match=r"p must be a number; got 'aaa.*\.\.\.$") as caught:
        T.RandomHorizontalFlip("a" * 10_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "call",
    [
        lambda flip: T.Compose([flip]),
        lambda flip: T.RandomApply([flip]),
        lambda flip: T.MultiView([flip]),
        T.Photometric,
        lambda flip: prefetched(transform=flip),
    ],
    ids=["Compose", "RandomApply", "MultiView", "Photometric", "PrefetchLoader"],
)
def test_a_class_in_the_place_of_a_transform_is_refused(call):
    with pytest.raises(TypeError, match=r"got the class RandomHorizontalFlip: write RandomHorizontalFlip\(\)"):
        call(T.RandomHorizontalFlip)


def test_the_limits_of_large_integers_are_told_exactly():
    with pytest.raises(ValueError, match=f"seed must be an int from 0 to {2**63 - 1}; got {2**63}"):
        prefetched(seed=2**63)


def test_numbers_of_numpy_are_taken():
    assert T.Resize(np.int64(224)).size == T.Resize(224).size
    assert T.RandomHorizontalFlip(np.float32(0.5)).p == 0.5
    assert T.Normalize(np.full(3, 0.5), torch.full((3,), 0.25)).mean == [0.5, 0.5, 0.5]
    loader = prefetched(depth=np.int64(3), seed=np.int64(4))
    loader.set_epoch(np.int64(5))
    assert (loader.depth, loader.seed, loader.epoch) == (3, 4, 5)


def test_keywords_of_torchvision_are_taken_where_they_mean_the_same():
    T.Resize(8, antialias=True)
    T.RandomResizedCrop(8, antialias=None)
    T.Normalize([0.5], [0.5], False)
    T.RandomErasing(0.5, (0.02, 0.33), (0.3, 3.3), 0, inplace=False)


IMAGES = {
    "no images": torch.zeros(0, 3, 8, 8, dtype=torch.uint8),
    "one dimension": torch.zeros(8),
    "a number": torch.tensor(1),
    "no tensor": 3,
    "nothing": [],
    "no pixels": torch.zeros(2, 3, 0, 8, dtype=torch.uint8),
    "no channels": torch.zeros(2, 0, 8, 8, dtype=torch.uint8),
}
TRANSFORMS = [
    T.Resize(4),
    T.RandomResizedCrop(4),
    T.RandomCrop(4),
    T.CenterCrop(4),
    T.RandomHorizontalFlip(1.0),
    T.ColorJitter(0.4),
    T.GaussianBlur(3),
    T.Normalize([0.5] * 3, [0.5] * 3),
    T.RandomErasing(1.0),
    T.RandAugment(),
    T.TrivialAugmentWide(),
    T.ThreeAugment(),
    T.MixUp(num_classes=2),
    T.RandomSolarize(0.5),
    T.RandomEqualize(1.0),
    T.RandomAdjustSharpness(2.0, 1.0),
    T.RandomApply([T.RandomCrop(4)], 1.0),
    T.RandomChoice([T.RandomCrop(4), T.Resize(4)]),
    T.RandomOrder([T.RandomInvert(), T.RandomVerticalFlip()]),
    T.MultiView([T.Resize(4)] * 2),
]


@pytest.mark.parametrize("images", IMAGES.values(), ids=IMAGES)
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda transform: type(transform).__name__)
def test_images_that_are_none_are_refused(transform, images):
    with pytest.raises((TypeError, ValueError), match=r"images|batch"):
        transform(images)


def test_normalising_twice_is_refused():
    with pytest.raises(ValueError, match="leave out one"):
        prefetched(transform=T.Compose([T.Normalize([0.5] * 3, [0.5] * 3)]))


def test_random_noise_in_bytes_is_named():
    with pytest.warns(UserWarning, match="behind Normalize"):
        T.RandomErasing(1.0, value="random")(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


def test_a_threshold_for_bytes_is_refused_for_floats():
    with pytest.raises(ValueError, match="threshold for floating-point images must be from 0 to 1; got 128"):
        T.RandomSolarize(128, p=1.0)(torch.zeros(2, 3, 8, 8))


UINT8 = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
KERNELS = {
    "mean and std": lambda: kernels.flip_normalize(UINT8, [0.5], [0.5]),
    "std": lambda: kernels.flip_normalize(UINT8, [0.5] * 3, [0.0, 1.0, 1.0]),
    "flip": lambda: kernels.flip_normalize(UINT8, [0.5] * 3, [0.5] * 3, torch.tensor([True])),
    "matrices": lambda: kernels.warp(UINT8, torch.eye(2, 3).reshape(1, 6)),
    "interpolation": lambda: kernels.warp(UINT8, torch.eye(2, 3).reshape(1, 6).repeat(2, 1), interpolation="bicubic"),
    "sigmas": lambda: kernels.blur(UINT8, torch.ones(1), 3),
    "kernel_size": lambda: kernels.blur(UINT8, torch.ones(2), 4),
    "factors": lambda: kernels.sharpen(UINT8, torch.ones(2, dtype=torch.float64)),
    "chosen": lambda: kernels.equalize(UINT8, torch.ones(3, dtype=torch.bool)),
}


@pytest.mark.parametrize("name", KERNELS)
def test_parameters_that_a_kernel_would_read_behind_the_end_of_are_refused(name):
    with pytest.raises(ValueError, match=name):
        KERNELS[name]()

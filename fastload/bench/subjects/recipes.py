"""Recipes that begin with a crop of images of different sizes, and who can cook them: further cases of ``kernels``.

Each builder returns a function of the images and of what was drawn for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torchvision.transforms import v2

from fastload import transforms as T  # noqa: N812  (as users write it)
from fastload.bench.harness.check import WrongValuesError, check_close, check_form
from fastload.bench.imagenet import MEAN, STD
from fastload.bench.subjects.normalizers import OUT
from fastload.structure.ragged import Ragged

__all__ = [
    "BYTES",
    "DEIT_RECIPE",
    "FULL_SIDE",
    "RESAMPLING",
    "RRC_FLIP_NORMALIZE",
    "Crops",
    "Recipe",
    "RecipeCase",
    "random_images",
]

CLASSES = 1000
LONG_SIDE, SHORT_SIDE = (470, 530), (350, 400)  # those of the sample photographs
FULL_SIDE = 224  # of the crops cut from such; smaller ones are cut from smaller images
PITCH = 16  # bytes; as decoders align rows
SIGMAS = 6
JITTER = 0.3
ERASED = 0.25
ALPHA = 0.8

Recipe = Callable[["Crops"], torch.Tensor]


@dataclass(frozen=True)
class Crops:
    """Decoded images of different sizes in one block of memory, and the key that all randomness comes from.

    Random bytes, since zeros can run faster; or ramps, on which it hardly matters how an image is filtered.
    """

    images: Ragged
    side: int
    key: T.Key

    @classmethod
    def random(cls, batch: int, side: int, scale: float, device: torch.device, number: int) -> Crops:
        images = random_images(batch, (SHORT_SIDE, LONG_SIDE), scale, device, number)
        return cls(images, side, T.Key(seed=0, place=number * batch))

    def ramps(self) -> Crops:
        """The same crops of images that rise evenly from left to right, top to bottom, and along the diagonal."""
        return Crops(Ragged.of([_ramps(image) for image in self.images]), self.side, self.key)

    @cached_property
    def boxes(self) -> torch.Tensor:
        """The crops that fastload's transform draws, which the others are given: top, left, height, width."""
        boxes: torch.Tensor = T.RandomResizedCrop(self.side).sample(self.images.sizes, self.key.for_draw(0))
        return boxes

    @cached_property
    def flips(self) -> torch.Tensor:
        """Which images are mirrored, on the CPU."""
        flips: torch.Tensor = T.RandomHorizontalFlip().sample(self.images.sizes, self.key.for_draw(1))
        return flips

    def cropped(self) -> list[torch.Tensor]:
        """The images cropped, resized and mirrored one by one by torchvision, uint8."""
        return [
            v2.functional.horizontal_flip(crop) if flip else crop
            for crop, flip in zip(
                map(self._resized, self.images, self.boxes.tolist()), self.flips.tolist(), strict=True
            )
        ]

    def exact(self) -> torch.Tensor:
        """What the first recipe should deliver, in float32."""
        floats = Crops(Ragged.of([image / 255 for image in self.images]), self.side, self.key)
        normalized: torch.Tensor = v2.functional.normalize(torch.stack(floats.cropped()), MEAN, STD)
        return normalized

    @cached_property
    def reference_deit(self) -> torch.Tensor:
        """What fastload's own reference makes of the second recipe, in float32."""
        cpu = Ragged.of([image.cpu() for image in self.images])
        transform = _deit(self.side, torch.float32, torch.contiguous_format)
        return _batch(transform(cpu, self.key)).to(self.images.device)

    def _resized(self, image: torch.Tensor, box: Sequence[int]) -> torch.Tensor:
        crop: torch.Tensor = v2.functional.resized_crop(image, *box, size=[self.side, self.side], antialias=True)
        return crop


def random_images(
    batch: int, sides: Sequence[tuple[int, int]], scale: float, device: torch.device, number: int
) -> Ragged:
    """Random bytes as a decoder leaves images: in one block, rows aligned; ``sides`` bounds their height and width."""
    generator = torch.Generator().manual_seed(number)
    drawn = [torch.randint(low, high + 1, (batch,), generator=generator) for low, high in sides]
    sizes = (torch.stack(drawn, dim=1) * scale).long()
    pitches = -(-sizes[:, 1] // PITCH) * PITCH
    planes = sizes[:, 0] * pitches
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), (3 * planes).cumsum(0)])
    block = torch.randint(0, 256, (int(starts[-1]),), dtype=torch.uint8, device=device)
    table = torch.stack(
        [block.data_ptr() + starts[:-1], sizes[:, 0], sizes[:, 1], planes, pitches, torch.ones_like(planes)], dim=1
    )
    return Ragged(block, table, 3)


def _ramps(image: torch.Tensor) -> torch.Tensor:
    _, height, width = image.shape
    y, x = (torch.linspace(0, 255, count, device=image.device) for count in (height, width))
    rows, columns = y[:, None].expand(height, width), x.expand(height, width)
    return torch.stack([columns, rows, (rows + columns) / 2]).round().to(torch.uint8)


# Crop, resize, mirror, normalise


def fastload(side: int, memory_format: torch.memory_format) -> Recipe:
    transform = T.Compose(
        [
            T.RandomResizedCrop(side),
            T.RandomHorizontalFlip(),
            T.Normalize(MEAN, STD, dtype=OUT, memory_format=memory_format),
        ]
    )
    return lambda crops: _batch(transform(crops.images, crops.key))


def torchvision(_side: int, memory_format: torch.memory_format) -> Recipe:
    """Crop, resize and mirror image by image, as it must; what a batch can share is done at once."""
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    return lambda crops: normalize(torch.stack(crops.cropped())).to(OUT, memory_format=memory_format)


def kornia(side: int, memory_format: torch.memory_format) -> Recipe:
    """Pad the images to one size: kornia's augmentations are for batches."""
    from kornia import augmentation  # noqa: PLC0415  (a peer that may be missing)

    crop = augmentation.RandomResizedCrop((side, side), cropping_mode="resample")
    mirror = augmentation.RandomHorizontalFlip(p=0.5)
    normalize = augmentation.Normalize(torch.tensor(MEAN), torch.tensor(STD))

    def cook(crops: Crops) -> torch.Tensor:
        images = _padded(crops.images)
        images = crop(images, params=_kornia_boxes(crops.boxes, side, images))
        chosen = {"batch_prob": crops.flips.float(), "forward_input_shape": torch.tensor(images.shape)}
        out: torch.Tensor = normalize(mirror(images, params=chosen))
        return out.to(OUT, memory_format=memory_format)

    return cook


# And jitter the colours, erase a box, mix


def fastload_deit(side: int, memory_format: torch.memory_format) -> Recipe:
    transform = _deit(side, OUT, memory_format)
    return lambda crops: _batch(transform(crops.images, crops.key))


def _deit(side: int, dtype: torch.dtype, memory_format: torch.memory_format) -> T.Compose:
    return T.Compose(
        [
            T.RandomResizedCrop(side),
            T.RandomHorizontalFlip(),
            T.ColorJitter(JITTER, JITTER, JITTER),
            T.Normalize(MEAN, STD, dtype=dtype, memory_format=memory_format),
            T.RandomErasing(ERASED),
            T.MixUp(ALPHA, num_classes=CLASSES),
        ]
    )


def torchvision_deit(_side: int, memory_format: torch.memory_format) -> Recipe:
    jitter = v2.ColorJitter(JITTER, JITTER, JITTER)
    normalize = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)])
    erase = v2.RandomErasing(ERASED, inplace=True)
    mix = v2.MixUp(alpha=ALPHA, num_classes=CLASSES)

    def cook(crops: Crops) -> torch.Tensor:
        images = normalize(torch.stack([jitter(image) for image in crops.cropped()]))
        for image in images:
            erase(image)
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        mixed: torch.Tensor = mix(images.to(OUT, memory_format=memory_format), labels)[0]
        return mixed.contiguous(memory_format=memory_format)

    return cook


def kornia_deit(side: int, memory_format: torch.memory_format) -> Recipe:
    from kornia import augmentation  # noqa: PLC0415  (a peer that may be missing)

    crop = augmentation.RandomResizedCrop((side, side), cropping_mode="resample")
    rest = augmentation.AugmentationSequential(
        augmentation.RandomHorizontalFlip(p=0.5),
        augmentation.ColorJitter(JITTER, JITTER, JITTER, p=1.0),
        augmentation.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
        augmentation.RandomErasing(p=ERASED),
        augmentation.RandomMixUpV2(p=1.0, data_keys=["input"]),
        data_keys=["input"],
    )

    def cook(crops: Crops) -> torch.Tensor:
        images = _padded(crops.images)
        out: torch.Tensor = rest(crop(images, params=_kornia_boxes(crops.boxes, side, images)))
        return out.to(OUT, memory_format=memory_format)

    return cook


def _batch(images: object) -> torch.Tensor:
    if not isinstance(images, torch.Tensor):
        raise WrongValuesError(f"fastload is wrong: it delivers a {type(images).__name__} of images, not one batch")
    return images


def _padded(images: Ragged) -> torch.Tensor:
    height, width = images.sizes.amax(0).tolist()
    batch = torch.zeros(len(images), images.channels, height, width, device=images.device)
    for image, place in zip(images, batch, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    return batch.div_(255)


def _kornia_boxes(boxes: torch.Tensor, side: int, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """The crops as kornia's own draws are: the corners of each box, and where they come to lie."""
    return {
        "src": _corners(boxes).to(images.device),
        "dst": _corners(torch.tensor([[0, 0, side, side]]).expand(len(boxes), 4)).to(images.device),
        "input_size": torch.tensor(images.shape[-2:]).expand(len(boxes), 2),
        "output_size": torch.tensor([side, side]).expand(len(boxes), 2),
        "batch_prob": torch.ones(len(boxes)),
        "forward_input_shape": torch.tensor(images.shape),
    }


def _corners(boxes: torch.Tensor) -> torch.Tensor:
    top, left, height, width = boxes.float().unbind(1)
    bottom, right = top + height - 1, left + width - 1
    return torch.stack([left, top, right, top, right, bottom, left, bottom], dim=1).view(-1, 4, 2)


@dataclass(frozen=True)
class RecipeCase:
    """A recipe: who can cook it, and how what they deliver is checked."""

    recipes: dict[str, Callable[[int, torch.memory_format], Recipe]]
    check_values: Callable[[str, Recipe, Crops, torch.Tensor], None]

    @property
    def subjects(self) -> Sequence[str]:
        return tuple(self.recipes)

    def inputs(self, batch: int, side: int, device: torch.device, number: int) -> Crops:
        return Crops.random(batch, side, side / FULL_SIDE, device, number)

    def build(self, name: str, side: int, _device: torch.device, memory_format: torch.memory_format) -> Recipe:
        return self.recipes[name](side, memory_format)

    def check(self, name: str, recipe: Recipe, crops: Crops, memory_format: torch.memory_format) -> None:
        out = recipe(crops)
        check_form(name, out, (len(crops.images), 3, crops.side, crops.side), OUT, memory_format)
        self.check_values(name, recipe, crops, out)

    def bytes_to_move(self, crops: Crops) -> int:
        """Count what any implementation must move: each source byte within a crop once, and two bytes a value out."""
        inside = 3 * int(crops.boxes[:, 2:].long().prod(1).sum())
        return inside + len(crops.images) * 3 * crops.side**2 * OUT.itemsize


RESAMPLING = 1e-3  # of full scale: what the order of float32 sums, and weights in them, may do
BYTES = 1 / 255  # where each of two passes, along x and y, rounds to bytes
HALF_PRECISION = 4e-3  # of full scale: a value kept in float16 between passes, then brightened by 1.3 three times over
UNFILTERED = 2.5 / 255  # on ramps: half a pixel to either side, and a byte's rounding


def _check_crops(name: str, recipe: Recipe, crops: Crops, out: torch.Tensor) -> None:
    """Compare every value: on ramps for kornia, which does not filter where it makes smaller."""
    if name == "kornia":
        crops, allowed = crops.ramps(), UNFILTERED
        out = recipe(crops)
    else:
        allowed = RESAMPLING + (BYTES if name == "torchvision" else 0)
    check_close(name, out, crops.exact(), allowed)


def _check_deit(name: str, _recipe: Recipe, crops: Crops, out: torch.Tensor) -> None:
    """Compare fastload with its own reference, on the CPU; of those that draw for themselves, the mean image value."""
    if name == "fastload":
        check_close(name, out, crops.reference_deit, HALF_PRECISION)
        return
    means, usual = out.float().mean((1, 2, 3)), crops.reference_deit.mean((1, 2, 3))
    allowed = SIGMAS * (2 / len(means)) ** 0.5 * usual.std()
    off = (means.mean() - usual.mean()).abs()
    if not off <= allowed:
        raise WrongValuesError(
            f"{name} is wrong: its images' mean is off by {off:.3g}, and chance allows {allowed:.3g}"
        )


RRC_FLIP_NORMALIZE = RecipeCase({"fastload": fastload, "torchvision": torchvision, "kornia": kornia}, _check_crops)
DEIT_RECIPE = RecipeCase(
    {"fastload": fastload_deit, "torchvision": torchvision_deit, "kornia": kornia_deit}, _check_deit
)

"""``RandAugment``, ``TrivialAugmentWide`` and ``ThreeAugment``: random operations, chosen for each image."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from fastload.arguments import integer, interpolation_name, number
from fastload.kernels.spec import Op
from fastload.transforms.amounts import flat_span, posterize_op, solarize_threshold
from fastload.transforms.blur import kernel_side, sigma_range
from fastload.transforms.colour import ColorJitter
from fastload.transforms.fill import Fill, FillArgument
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.sampling import between
from fastload.transforms.transform import Transform

__all__ = ["Augmentation", "Drawn", "RandAugment", "ThreeAugment", "TrivialAugmentWide"]


class Augmentation(IntEnum):
    """The operations of RandAugment and TrivialAugmentWide."""

    IDENTITY = 0
    SHEAR_X = 1
    SHEAR_Y = 2
    TRANSLATE_X = 3
    TRANSLATE_Y = 4
    ROTATE = 5
    BRIGHTNESS = 6
    COLOR = 7
    CONTRAST = 8
    SHARPNESS = 9
    POSTERIZE = 10
    SOLARIZE = 11
    AUTO_CONTRAST = 12
    EQUALIZE = 13


SIGNED = (Augmentation.SHEAR_X, Augmentation.SHARPNESS)  # first and last operation with a magnitude of random sign

OPS = {
    Augmentation.BRIGHTNESS: Op.BRIGHTNESS,
    Augmentation.COLOR: Op.SATURATION,
    Augmentation.CONTRAST: Op.CONTRAST,
    Augmentation.POSTERIZE: Op.POSTERIZE,
    Augmentation.SOLARIZE: Op.SOLARIZE,
    Augmentation.AUTO_CONTRAST: Op.AUTOCONTRAST,
}
CODES = np.array([OPS.get(each, Op.NONE) for each in Augmentation], dtype=np.float32)
GEOMETRIC = np.arange(Augmentation.SHEAR_X, Augmentation.ROTATE + 1)

THREE = np.array([[Op.GRAYSCALE, 0.0], [Op.SOLARIZE, 0.5], [Op.NONE, 0.0]], dtype=np.float32)  # the last is the blur


@dataclass(frozen=True)
class Drawn:
    """The S operations of each image, in order.

    Magnitudes are signed and in torchvision's units: slopes for shear, pixels for translation, degrees for rotation,
    factors minus 1 for brightness, colour, contrast and sharpness, bits to posterize, and thresholds from 0 to 1 to
    solarize.

    Attributes:
        augmentations: members of ``Augmentation``, int64 (N, S).
        magnitudes: float64 (N, S).
    """

    augmentations: torch.Tensor
    magnitudes: torch.Tensor


class _AutoAugment(Transform):
    """Base of RandAugment and TrivialAugmentWide: records the drawn operations."""

    def __init__(self, interpolation: Any, fill: FillArgument) -> None:
        self.interpolation = interpolation_name(interpolation, ("nearest", "bilinear"))
        self.fill = Fill.of(fill)

    def record(self, work: LazyImages, parameters: Drawn) -> None:
        """Record the kernels for each of the S operations.

        Each image uses one kernel for each operation, so their order does not matter. It is reversed every other time:
        colours that meet share passes. All kernels are recorded even if no image uses them, so that an image does not
        depend on the others of its batch.
        """
        columns = zip(parameters.augmentations.numpy().T, parameters.magnitudes.numpy().T, strict=True)
        for index, (augmentations, magnitudes) in enumerate(columns):
            steps = (self._colour, self._warp, self._sharpen, self._equalize)
            for step in steps if index % 2 == 0 else reversed(steps):
                step(work, augmentations, magnitudes)

    def _colour(self, work: LazyImages, augmentations: np.ndarray, magnitudes: np.ndarray) -> None:
        ops = np.empty((len(augmentations), 1, 2), dtype=np.float32)
        codes, amounts = ops[:, 0].T
        codes[:] = CODES[augmentations]
        codes[augmentations == Augmentation.POSTERIZE] = posterize_op(work)
        amounts[:] = np.where(_signed(augmentations), 1 + magnitudes, magnitudes)
        solarized = augmentations == Augmentation.SOLARIZE
        amounts[solarized] = solarize_threshold(magnitudes[solarized], work)
        amounts[augmentations == Augmentation.AUTO_CONTRAST] = flat_span(work)
        work.colour(torch.from_numpy(ops))

    def _warp(self, work: LazyImages, augmentations: np.ndarray, magnitudes: np.ndarray) -> None:
        matrices = inverse_matrices(augmentations, magnitudes, work.sizes.numpy())
        work.warp(torch.from_numpy(matrices), self.interpolation, self.fill)

    def _sharpen(self, work: LazyImages, augmentations: np.ndarray, magnitudes: np.ndarray) -> None:
        factors = np.where(augmentations == Augmentation.SHARPNESS, 1 + magnitudes, 1)
        work.sharpen(torch.from_numpy(factors.astype(np.float32)))

    def _equalize(self, work: LazyImages, augmentations: np.ndarray, magnitudes: np.ndarray) -> None:  # noqa: ARG002
        work.equalize(torch.from_numpy(augmentations == Augmentation.EQUALIZE))


class RandAugment(_AutoAugment):
    """Apply ``num_ops`` random operations out of 14 to each image, all of the same magnitude.

    >>> RandAugment()(torch.full((2, 3, 32, 32), 7, dtype=torch.uint8)).shape
    torch.Size([2, 3, 32, 32])

    Operations and magnitudes are those of torchvision v2, but drawn for each image. Images have one size and 3 channels
    or 1, and are uint8, or floating-point from 0 to 1. RandAugment: Practical automated data augmentation with a
    reduced search space, Cubuk et al., 2019.

    Args:
        num_ops: operations for each image.
        magnitude: index of the magnitude, from 0 to ``num_magnitude_bins - 1``.
        num_magnitude_bins: number of magnitudes.
        interpolation: for shear, translation and rotation: "nearest" or "bilinear".
        fill: the value outside of the image, in units of its values, in masks too; or by type, as torchvision's:
            ``{tv_tensors.Mask: 255, "others": 0}``. None, as in torchvision, is black, without the blend of image and
            fill that a number gives at an interpolated border.

    Raises:
        ValueError: ``num_ops`` is not positive, ``magnitude`` or ``num_magnitude_bins`` is out of range, or
            ``interpolation`` is neither of the two.
    """

    def __init__(
        self,
        num_ops: int = 2,
        magnitude: int = 9,
        num_magnitude_bins: int = 31,
        interpolation: Any = "nearest",
        fill: FillArgument = None,
    ) -> None:
        super().__init__(interpolation, fill)
        self.num_ops = integer("num_ops", num_ops, least=1)
        self.num_magnitude_bins = _bins(num_magnitude_bins)
        self.magnitude = integer("magnitude", magnitude, 0, self.num_magnitude_bins - 1)
        self._levels = _levels(self.num_magnitude_bins, slope=0.3, pixels=0.0, degrees=30.0, factor=0.9, bits=4)

    def __repr__(self) -> str:
        return (
            f"RandAugment({self.num_ops}, {self.magnitude}, {self.num_magnitude_bins}, {self.interpolation!r}, "
            f"fill={self.fill})"
        )

    def sample(self, sizes: torch.Tensor, key: Key) -> Drawn:
        numbers = key.numbers(len(sizes), 2 * self.num_ops)
        augmentations = (numbers[:, : self.num_ops] * len(Augmentation)).astype(np.int64)
        magnitudes = self._levels[augmentations, self.magnitude]
        down, right = self._translations(sizes.numpy().T)[:, :, None]
        magnitudes = np.where(augmentations == Augmentation.TRANSLATE_X, right, magnitudes)
        magnitudes = np.where(augmentations == Augmentation.TRANSLATE_Y, down, magnitudes)
        return _drawn(augmentations, magnitudes, numbers[:, self.num_ops :])

    def _translations(self, sides: np.ndarray) -> np.ndarray:
        """``linspace(0, 150 / 331 * side, bins)[magnitude]``, to the last bit, since it is truncated to pixels."""
        most = (150 / 331 * sides).astype(np.float32)
        last = self.num_magnitude_bins - 1
        step = most / np.float32(last)
        near_zero = self.magnitude < self.num_magnitude_bins // 2
        translations: np.ndarray = (
            step * np.float32(self.magnitude) if near_zero else most - step * np.float32(last - self.magnitude)
        )
        return translations


class TrivialAugmentWide(_AutoAugment):
    """Apply one random operation out of 14 to each image, with a random magnitude.

    >>> TrivialAugmentWide()(torch.full((2, 3, 32, 32), 7, dtype=torch.uint8)).shape
    torch.Size([2, 3, 32, 32])

    Operations and magnitudes are those of torchvision v2, but drawn for each image. Images have one size and 3 channels
    or 1, and are uint8, or floating-point from 0 to 1. TrivialAugment: Tuning-free Yet State-of-the-Art Data
    Augmentation, Müller and Hutter, 2021.

    Args:
        num_magnitude_bins: number of magnitudes.
        interpolation: for shear, translation and rotation: "nearest" or "bilinear".
        fill: the value outside of the image, in units of its values, in masks too; or by type, as torchvision's:
            ``{tv_tensors.Mask: 255, "others": 0}``. None, as in torchvision, is black, without the blend of image and
            fill that a number gives at an interpolated border.

    Raises:
        ValueError: ``num_magnitude_bins`` is below 2, or ``interpolation`` is neither of the two.
    """

    def __init__(self, num_magnitude_bins: int = 31, interpolation: Any = "nearest", fill: FillArgument = None) -> None:
        super().__init__(interpolation, fill)
        self.num_magnitude_bins = _bins(num_magnitude_bins)
        self._levels = _levels(self.num_magnitude_bins, slope=0.99, pixels=32.0, degrees=135.0, factor=0.99, bits=6)

    def __repr__(self) -> str:
        return f"TrivialAugmentWide({self.num_magnitude_bins}, {self.interpolation!r}, fill={self.fill})"

    def sample(self, sizes: torch.Tensor, key: Key) -> Drawn:
        operation, strength, sign = key.numbers(len(sizes), 3).T[:, :, None]
        augmentations = (operation * len(Augmentation)).astype(np.int64)
        magnitudes = self._levels[augmentations, (strength * self.num_magnitude_bins).astype(np.int64)]
        return _drawn(augmentations, magnitudes, sign)


class ThreeAugment(Transform):
    """Convert to grey, solarise or blur each image, one of the three at random; then jitter its colours.

    >>> ThreeAugment()
    ThreeAugment(color_jitter=0.3, kernel_size=13, sigma=(0.1, 2.0))
    >>> ThreeAugment()(torch.full((2, 3, 32, 32), 7, dtype=torch.uint8)).shape
    torch.Size([2, 3, 32, 32])

    Images have one size and 3 channels or 1, and are uint8, or floating-point from 0 to 1. The threshold to solarise is
    half of the full scale. DeiT III: Revenge of the ViT, Touvron et al., 2022; the paper crops and mirrors before.

    Args:
        color_jitter: brightness, contrast and saturation of ``ColorJitter``; 0 for no jitter.
        kernel_size: side of the blur's kernel in pixels; 13 covers three times the greatest default sigma.
        sigma: least and greatest standard deviation of the blur in pixels.

    Raises:
        ValueError: ``color_jitter`` is negative, or ``GaussianBlur`` refuses ``kernel_size`` or ``sigma``.
    """

    def __init__(
        self, color_jitter: float = 0.3, kernel_size: int = 13, sigma: float | tuple[float, float] = (0.1, 2.0)
    ) -> None:
        self.color_jitter = number("color_jitter", color_jitter, least=0)
        self.kernel_size = kernel_side(kernel_size)
        self.sigma = sigma_range(sigma)
        self._jitter = ColorJitter(color_jitter, color_jitter, color_jitter)

    def __repr__(self) -> str:
        return f"ThreeAugment(color_jitter={self.color_jitter}, kernel_size={self.kernel_size}, sigma={self.sigma})"

    def sample(self, sizes: torch.Tensor, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
        """Standard deviations of the blur, float32 (N,), 0 for no blur; and colour operations, float32 (N, S, 2)."""
        numbers = key.numbers(len(sizes), 2 + self._jitter.numbers)
        choice = (numbers[:, 0] * len(THREE)).astype(np.int64)
        sigmas = between(numbers[:, 1], *self.sigma) * (choice == len(THREE) - 1)
        ops = np.concatenate([THREE[choice][:, None], self._jitter.ops(numbers[:, 2:])], axis=1)
        return torch.from_numpy(sigmas.astype(np.float32)), torch.from_numpy(ops)

    def record(self, work: LazyImages, parameters: tuple[torch.Tensor, torch.Tensor]) -> None:
        sigmas, ops = parameters
        work.blur(sigmas, self.kernel_size)
        work.colour(ops)


def inverse_matrices(augmentations: np.ndarray, magnitudes: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Affine maps from output to input positions, relative to the image's centre: float32 (N, 6), rows x and y.

    >>> inverse_matrices(np.array([Augmentation.TRANSLATE_X]), np.array([3.7]), np.array([[10, 20]]))
    array([[ 1.,  0., -3.,  0.,  1.,  0.]], dtype=float32)

    As in torchvision, a shear keeps the top left corner in place, a rotation is anticlockwise about the centre, and a
    translation is by whole pixels. Only the terms of an image's own operation are not 0.
    """
    height, width = sizes.T
    slope_x, slope_y, right, down, degrees = np.where(augmentations == GEOMETRIC[:, None], magnitudes, 0)
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
    # A shear about the corner is a shear about the centre and a shift: the slope times the corner's distance to it.
    row_x = (cos, slope_x - sin, slope_x * height / 2 - np.trunc(right))
    row_y = (slope_y + sin, cos, slope_y * width / 2 - np.trunc(down))
    return np.stack([*row_x, *row_y], axis=1, dtype=np.float32)


def _levels(bins: int, *, slope: float, pixels: float, degrees: float, factor: float, bits: int) -> np.ndarray:
    """All magnitudes of each operation, float64 (14, bins), with the values that torchvision computes in float32."""

    def up_to(most: float) -> torch.Tensor:
        return torch.linspace(0.0, most, bins)

    levels = torch.zeros(len(Augmentation), bins)
    levels[Augmentation.SHEAR_X : Augmentation.SHEAR_Y + 1] = up_to(slope)
    levels[Augmentation.TRANSLATE_X : Augmentation.TRANSLATE_Y + 1] = up_to(pixels)
    levels[Augmentation.ROTATE] = up_to(degrees)
    levels[Augmentation.BRIGHTNESS : Augmentation.SHARPNESS + 1] = up_to(factor)
    levels[Augmentation.POSTERIZE] = (8 - torch.arange(bins) / ((bins - 1) / bits)).round()
    levels[Augmentation.SOLARIZE] = torch.linspace(1.0, 0.0, bins)
    return levels.double().numpy()


def _signed(augmentations: np.ndarray) -> np.ndarray:
    """Whether an operation's magnitude has a random sign."""
    return (augmentations >= SIGNED[0]) & (augmentations <= SIGNED[1])


def _drawn(augmentations: np.ndarray, magnitudes: np.ndarray, numbers: np.ndarray) -> Drawn:
    """Magnitudes are negated where the operation has a sign and ``numbers``, uniform in [0, 1), is below a half."""
    negative = _signed(augmentations) & (numbers < 0.5)  # noqa: PLR2004
    magnitudes = np.where(negative, -magnitudes, magnitudes)
    return Drawn(torch.from_numpy(augmentations), torch.from_numpy(magnitudes))


def _bins(count: int) -> int:
    return integer("num_magnitude_bins", count, least=2)

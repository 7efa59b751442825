"""Random and fixed changes of colour: ColorJitter, and one operation with a probability."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from numbers import Real

import numpy as np
import torch

from fastload.arguments import integer, interval, number, probability
from fastload.kernels.spec import Op
from fastload.transforms.amounts import flat_span, posterize_op, solarize_threshold
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.sampling import between
from fastload.transforms.transform import Transform
from fastload.transforms.with_probability import WithProbability

__all__ = [
    "ColorJitter",
    "Grayscale",
    "RandomAutocontrast",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]

Range = float | Sequence[float] | None
BITS = 8  # of a uint8 value


class ColorJitter(Transform):
    """Change brightness, contrast, saturation and hue of each image by random amounts, in a random order.

    >>> ColorJitter(brightness=0.4, hue=(-0.1, 0.1))
    ColorJitter(brightness=(0.6, 1.4), hue=(-0.1, 0.1))
    >>> images = torch.full((2, 3, 4, 4), 200, dtype=torch.uint8)
    >>> ColorJitter(brightness=(0.5, 0.5))(images).unique()
    tensor([100], dtype=torch.uint8)

    Images are uint8, or floating-point from 0 to 1, and have 3 channels, or 1, where saturation and hue change nothing.
    Amounts and order are drawn for each image. None and 0 leave a property as it is.

    Args:
        brightness: least and greatest factor, or x for ``max(0, 1 - x)`` to ``1 + x``; uniform. Factor 0 gives black,
            factor 1 the original.
        contrast: the same; factor 0 gives uniform grey.
        saturation: the same; factor 0 gives no colour.
        hue: least and greatest shift in turns of the colour wheel, from -0.5 to 0.5, or x for -x to x; uniform.
        p: probability that an image is changed.

    Raises:
        TypeError: an argument is neither a number nor two numbers.
        ValueError: an argument is out of order or out of range.
    """

    def __init__(
        self,
        brightness: Range = None,
        contrast: Range = None,
        saturation: Range = None,
        hue: Range = None,
        p: float = 1.0,
    ) -> None:
        given = {
            Op.BRIGHTNESS: _factor_range("brightness", brightness),
            Op.CONTRAST: _factor_range("contrast", contrast),
            Op.SATURATION: _factor_range("saturation", saturation),
            Op.HUE: _hue_range("hue", hue),
        }
        self.ranges = {op: bounds for op, bounds in given.items() if bounds is not None}
        self.p = probability(p)
        self.uniform_count = max(2, self.numbers + (self.p < 1))

    def __repr__(self) -> str:
        ranges = [f"{op.name.lower()}={bounds}" for op, bounds in self.ranges.items()]
        return f"ColorJitter({', '.join([*ranges, *[f'p={self.p}'] * (self.p < 1)])})"

    def sample(self, sizes: torch.Tensor, key: Key) -> torch.Tensor:
        """Each image's S operations in order, float32 (N, S, 2): code (``Op``) and amount."""
        drawn = key.numbers(len(sizes), self.uniform_count)
        ops = self.ops(drawn)
        if self.p < 1:
            ops[drawn[:, self.numbers] >= self.p] = Op.NONE
        return torch.from_numpy(ops)

    @property
    def numbers(self) -> int:
        """Random numbers needed for each image."""
        return 2 * len(self.ranges)

    def ops(self, numbers: np.ndarray) -> np.ndarray:
        """The result of :meth:`sample`, from ``numbers``, (N, ``self.numbers``), uniform in [0, 1)."""
        count = len(self.ranges)
        ops = np.empty((len(numbers), count, 2), dtype=np.float32)
        for column, (op, bounds) in enumerate(self.ranges.items()):
            ops[:, column, 0] = float(op)  # NumPy takes 4 µs to see that an enumeration's member is a number
            ops[:, column, 1] = between(numbers[:, column], *bounds)
        order = numbers[:, count : 2 * count].argsort(axis=1)
        order += count * np.arange(len(numbers))[:, None]
        ordered = ops.view(np.int64).reshape(-1).take(order)  # code and amount, moved as one number
        return ordered[..., None].view(np.float32)

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        if self.ranges:
            work.colour(parameters)


class _RandomColour(WithProbability):
    """One colour operation, applied to each image with probability ``p``."""

    op: Op

    def operation(self, work: LazyImages) -> tuple[Op, float]:  # noqa: ARG002  (subclasses use it)
        """The operation and its amount, in the units that ``Op`` states."""
        return self.op, 0.0

    def record(self, work: LazyImages, parameters: torch.Tensor) -> None:
        ops = np.zeros((len(parameters), 1, 2), dtype=np.float32)
        ops[parameters.numpy()] = self.operation(work)
        work.colour(torch.from_numpy(ops))


class RandomGrayscale(_RandomColour):
    """Convert each image to grey with probability ``p``; it keeps its number of channels.

    >>> RandomGrayscale(p=1.0)(torch.tensor([[[[1.0]], [[0.0]], [[0.0]]]])).flatten()
    tensor([0.2989, 0.2989, 0.2989])

    Grey is 0.2989 red + 0.587 green + 0.114 blue, as in torchvision. Images are uint8, or floating-point from 0 to 1,
    and have 3 channels, or 1, which stays as it is.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    op = Op.GRAYSCALE

    def __init__(self, p: float = 0.1) -> None:
        super().__init__(p)


class Grayscale(_RandomColour):
    """Convert all images to grey; they keep their 3 channels, and those of one channel are grey already.

    >>> Grayscale()(torch.tensor([[[[1.0]], [[0.0]], [[0.0]]]])).flatten()
    tensor([0.2989, 0.2989, 0.2989])

    For a result with one channel, put torchvision's ``v2.Grayscale(1)`` into the ``Compose``.

    Raises:
        ValueError: ``num_output_channels`` is not 3.
    """

    op = Op.GRAYSCALE

    def __init__(self, num_output_channels: int = 3) -> None:
        if integer("num_output_channels", num_output_channels) != len("RGB"):
            raise ValueError(
                f"num_output_channels must be 3; got {num_output_channels}: for 1, use torchvision's v2.Grayscale(1)"
            )
        super().__init__(p=1.0)

    def __repr__(self) -> str:
        return "Grayscale(3)"


class RandomInvert(_RandomColour):
    """Invert each image's values with probability ``p``.

    >>> RandomInvert(p=1.0)(torch.tensor([[[[0, 55]]]], dtype=torch.uint8))
    tensor([[[[255, 200]]]], dtype=torch.uint8)

    Images are uint8, or floating-point from 0 to 1.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    op = Op.INVERT


class RandomAutocontrast(_RandomColour):
    """Stretch each channel of an image to the full range of values, with probability ``p``.

    >>> RandomAutocontrast(p=1.0)(torch.tensor([[[[0.25, 0.5, 0.75]]]]))
    tensor([[[[0.0000, 0.5000, 1.0000]]]])

    The least value of a channel becomes 0, the greatest 1 (255 in uint8). A channel of one value stays as it is, also
    where a resize before it has left rounding errors. Images are uint8, or floating-point from 0 to 1.

    Raises:
        ValueError: ``p`` is not in [0, 1].
    """

    def operation(self, work: LazyImages) -> tuple[Op, float]:
        return Op.AUTOCONTRAST, flat_span(work)


class RandomSolarize(_RandomColour):
    """Invert the values of an image that are ``threshold`` or more, with probability ``p``.

    >>> RandomSolarize(threshold=128, p=1.0)(torch.tensor([[[[100, 200]]]], dtype=torch.uint8))
    tensor([[[[100,  55]]]], dtype=torch.uint8)

    Images are uint8, or floating-point from 0 to 1; ``threshold`` is in the same units as their values.

    Raises:
        ValueError: ``p`` is not in [0, 1], or ``threshold`` is not in [0, 255]; when called, images are floating-point
            and ``threshold`` is above 1.
    """

    def __init__(self, threshold: float, p: float = 0.5) -> None:
        super().__init__(p)
        self.threshold = number("threshold", threshold, 0, 255)

    def __repr__(self) -> str:
        return f"RandomSolarize({self.threshold}, p={self.p})"

    def operation(self, work: LazyImages) -> tuple[Op, float]:
        if work.are_bytes:
            threshold = self.threshold / 255
        else:
            threshold = number("threshold for floating-point images", self.threshold, 0, 1)
        return Op.SOLARIZE, float(solarize_threshold(threshold, work))


class RandomPosterize(_RandomColour):
    """Keep the ``bits`` highest bits of an image's values and clear the others, with probability ``p``.

    >>> RandomPosterize(bits=1, p=1.0)(torch.tensor([[[[100, 200]]]], dtype=torch.uint8))
    tensor([[[[  0, 128]]]], dtype=torch.uint8)

    Images are uint8, or floating-point from 0 to 1.

    Raises:
        ValueError: ``p`` is not in [0, 1], or ``bits`` is not an int from 0 to 8.
    """

    def __init__(self, bits: int, p: float = 0.5) -> None:
        super().__init__(p)
        self.bits = integer("bits", bits, 0, BITS)

    def __repr__(self) -> str:
        return f"RandomPosterize({self.bits}, p={self.p})"

    def operation(self, work: LazyImages) -> tuple[Op, float]:
        return posterize_op(work), float(self.bits)


def _factor_range(name: str, given: Range) -> tuple[float, float] | None:
    return _range(name, given, 1, (0, inf))


def _hue_range(name: str, given: Range) -> tuple[float, float] | None:
    return _range(name, given, 0, (-0.5, 0.5))


def _range(name: str, given: Range, centre: float, bounds: tuple[float, float]) -> tuple[float, float] | None:
    """The least and greatest value; None if every image would stay as it is."""
    if given is None:
        return None
    if isinstance(given, Real):
        reach = number(name, given, 0, bounds[1])
        least = centre - reach
        given = (max(0.0, least) if centre else least, centre + reach)
    low, high = interval(name, given, *bounds)
    return None if low == high == centre else (low, high)

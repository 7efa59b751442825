"""``MixUp`` and ``CutMix``: mix the images of a batch with one another, and their labels with the same weights."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import torch

from fastload.arguments import integer, number, probability
from fastload.kernels.spec import Mix
from fastload.kernels.upload import upload
from fastload.structure.labels import LabelsGetter, find_labels, labels_getter_of
from fastload.structure.targets import first_target
from fastload.structure.tree import Tree, name_of
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["CutMix", "MixUp", "MixUpCutMix", "Mixing", "Mixture", "soft_labels"]

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class Mixture:
    """The parameters of MixUp and CutMix for a batch.

    Attributes:
        mix: how pixels are mixed, as the kernels take it.
        own: the weight of an image's own label, float32 (N,).
    """

    mix: Mix
    own: torch.Tensor


class Mixing(Transform):
    """Base of MixUp and CutMix: each image's partner is the one before it; one draw is used for the whole batch."""

    is_before_views = True

    def __init__(self, num_classes: int | None, label_smoothing: float, labels_getter: LabelsGetter) -> None:
        self.num_classes = None if num_classes is None else integer("num_classes", num_classes, least=1)
        self.label_smoothing = number("label_smoothing", label_smoothing, 0, 1)
        if self.label_smoothing == 1:
            raise ValueError(f"label_smoothing must be below 1, which leaves nothing of a label; got {label_smoothing}")
        self.labels_getter = labels_getter_of(labels_getter)

    def check(self, tree: Tree) -> None:
        """Refuse boxes, masks and keypoints, as torchvision does; and wrong class numbers, while they are on the host.

        Raises:
            TypeError: the batch has boxes, masks or keypoints, or no labels.
            ValueError: class numbers are negative or not below ``num_classes``.
        """
        if (target := first_target(tree)) is not None:
            raise TypeError(
                f"{type(self).__name__} mixes images and labels, and {name_of(target)} is "
                f"{type(tree.leaves[target]).__name__}, which would not be mixed: leave out {type(self).__name__}"
            )
        if (path := find_labels(tree, self.labels_getter)) is not None:
            _check_classes(tree.leaves[path], self.num_classes)

    def sample(self, sizes: torch.Tensor, key: Key) -> Mixture:
        whole = sizes.numpy()
        count = len(whole)
        if not (whole == whole[:1]).all():
            raise TypeError(
                "only images of one size can be mixed, and the batch has different ones: crop or resize them first"
            )
        height, width = whole[0].tolist() if count else (1, 1)
        # All views of a batch are mixed alike, as its labels are.
        box, inside, outside, own = self._draw(key.for_view(0).generator(), height, width)
        weights = {weight: _repeated(weight, count) for weight in {inside, outside, own}}
        mix = Mix(_partners(count), _boxes(box, count), weights[inside], weights[outside])
        return Mixture(mix, weights[own])

    @abstractmethod
    def _draw(self, generator: np.random.Generator, height: int, width: int) -> tuple[Box, float, float, float]:
        """The box, and the weights of an image's own pixels inside and outside of it, and of its own label."""

    def record(self, work: LazyImages, parameters: Mixture) -> None:
        work.mix(parameters.mix, partial(self.with_labels, parameters=parameters))

    def with_labels(self, tree: Tree, parameters: Mixture) -> Tree:
        """A flattened batch with its labels mixed as its images were."""
        path = find_labels(tree, self.labels_getter)
        return tree if path is None else tree.replaced({path: self.labels(tree.leaves[path], parameters)})

    def labels(self, labels: torch.Tensor, parameters: Mixture) -> torch.Tensor:
        """The batch's labels, (N,) or (N, num_classes), mixed as its images were: float32 (N, num_classes)."""
        soft = soft_labels(labels, self.num_classes, self.label_smoothing)
        if len(soft) != len(parameters.own):
            raise ValueError(
                f"{len(parameters.own)} images are mixed, and there are {len(soft)} labels: give one an image"
            )
        partners, own = upload(soft.device, parameters.mix.partners, parameters.own)
        return torch.lerp(soft[partners.long()], soft, own[:, None])


class MixUp(Mixing):
    """Blend each image with the one before it in the batch, and their labels with the same weights.

    >>> images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    >>> mixed = MixUp(alpha=0.8, num_classes=10)(images)
    >>> mixed.sum()
    tensor(1.)

    The result is ``lam * image + (1 - lam) * partner``, with one ``lam`` for each batch from Beta(alpha, alpha), as in
    torchvision v2. Batches must be shuffled, since partners are neighbours. mixup: Beyond Empirical Risk Minimization,
    Zhang et al., 2017.

    Args:
        alpha: parameter of the Beta distribution. At 1 ``lam`` is uniform; near 0 it is mostly close to 0 or 1.
        num_classes: required if labels are class numbers.
        label_smoothing: the share of a label that is spread over all classes.
        labels_getter: where a batch's labels are, as torchvision's: "default" takes the second element of a tuple, or
            the key "labels", else the first key that contains "label", of a mapping; a callable takes the batch and
            returns its labels; None mixes images alone.

    Raises:
        ValueError: ``alpha`` or ``num_classes`` is not positive, ``label_smoothing`` is not in [0, 1), or
            ``labels_getter`` is none of these; when called, a class number is not from 0 to ``num_classes - 1``.
        TypeError: when called, the images differ in size; or the batch has no labels, or boxes, masks or keypoints.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        labels_getter: LabelsGetter = "default",
    ) -> None:
        super().__init__(num_classes, label_smoothing, labels_getter)
        self.alpha = _positive("alpha", alpha)

    def __repr__(self) -> str:
        return f"MixUp(alpha={self.alpha}, num_classes={self.num_classes}, label_smoothing={self.label_smoothing})"

    def _draw(
        self,
        generator: np.random.Generator,
        height: int,  # noqa: ARG002
        width: int,  # noqa: ARG002
    ) -> tuple[Box, float, float, float]:
        return _mix_up(generator, self.alpha)


class CutMix(Mixing):
    """Paste a box of the previous image of the batch into each image, and mix their labels by area.

    >>> images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 1, 8, 8)
    >>> CutMix(num_classes=10)(images).sum()
    tensor(64.)

    As in torchvision v2, the box is the same for all images of a batch. Its area as a share of the image's is from
    Beta(alpha, alpha), its centre is anywhere, and it is clipped to the image; labels are weighted by the clipped area.
    Batches must be shuffled, since partners are neighbours. CutMix: Regularization Strategy to Train Strong Classifiers
    with Localizable Features, Yun et al., 2019.

    Args:
        alpha: parameter of the Beta distribution; at 1 the share is uniform.
        num_classes: required if labels are class numbers.
        label_smoothing: the share of a label that is spread over all classes.
        labels_getter: where a batch's labels are, as torchvision's: "default" takes the second element of a tuple, or
            the key "labels", else the first key that contains "label", of a mapping; a callable takes the batch and
            returns its labels; None mixes images alone.

    Raises:
        ValueError: ``alpha`` or ``num_classes`` is not positive, ``label_smoothing`` is not in [0, 1), or
            ``labels_getter`` is none of these; when called, a class number is not from 0 to ``num_classes - 1``.
        TypeError: when called, the images differ in size; or the batch has no labels, or boxes, masks or keypoints.
    """

    def __init__(
        self,
        alpha: float = 1.0,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        labels_getter: LabelsGetter = "default",
    ) -> None:
        super().__init__(num_classes, label_smoothing, labels_getter)
        self.alpha = _positive("alpha", alpha)

    def __repr__(self) -> str:
        return f"CutMix(alpha={self.alpha}, num_classes={self.num_classes}, label_smoothing={self.label_smoothing})"

    def _draw(self, generator: np.random.Generator, height: int, width: int) -> tuple[Box, float, float, float]:
        return _cut_mix(generator, self.alpha, height, width)


class MixUpCutMix(Mixing):
    """``MixUp`` or ``CutMix``, chosen at random for each batch, as in the recipes of DeiT and timm.

    >>> MixUpCutMix(num_classes=1000)
    MixUpCutMix(mixup_alpha=0.8, cutmix_alpha=1.0, switch_prob=0.5, num_classes=1000, label_smoothing=0.0)

    Args:
        mixup_alpha: ``alpha`` of ``MixUp``.
        cutmix_alpha: ``alpha`` of ``CutMix``.
        switch_prob: probability of ``CutMix``.
        num_classes: as in ``MixUp``.
        label_smoothing: as in ``MixUp``.
        labels_getter: as in ``MixUp``.

    Raises:
        ValueError: ``switch_prob`` is not in [0, 1]; or as ``MixUp``.
        TypeError: as ``MixUp``.
    """

    def __init__(
        self,
        mixup_alpha: float = 0.8,
        cutmix_alpha: float = 1.0,
        switch_prob: float = 0.5,
        num_classes: int | None = None,
        label_smoothing: float = 0.0,
        labels_getter: LabelsGetter = "default",
    ) -> None:
        super().__init__(num_classes, label_smoothing, labels_getter)
        self.mixup_alpha = _positive("mixup_alpha", mixup_alpha)
        self.cutmix_alpha = _positive("cutmix_alpha", cutmix_alpha)
        self.switch_prob = probability(switch_prob, "switch_prob")

    def __repr__(self) -> str:
        return (
            f"MixUpCutMix(mixup_alpha={self.mixup_alpha}, cutmix_alpha={self.cutmix_alpha}, "
            f"switch_prob={self.switch_prob}, num_classes={self.num_classes}, label_smoothing={self.label_smoothing})"
        )

    def _draw(self, generator: np.random.Generator, height: int, width: int) -> tuple[Box, float, float, float]:
        if generator.random() < self.switch_prob:
            return _cut_mix(generator, self.cutmix_alpha, height, width)
        return _mix_up(generator, self.mixup_alpha)


def soft_labels(labels: torch.Tensor, num_classes: int | None, label_smoothing: float = 0.0) -> torch.Tensor:
    """Labels as probabilities, float32 (N, num_classes), from class numbers (N,) or soft labels (N, num_classes).

    >>> soft_labels(torch.tensor([1]), 4, label_smoothing=0.2)
    tensor([[0.0500, 0.8500, 0.0500, 0.0500]])

    Raises:
        ValueError: ``num_classes`` is None for class numbers, or differs from the width of soft labels; or class
            numbers on the CPU are out of range. On a GPU they are not looked at, which would wait for it:
            ``PrefetchLoader`` looks before it copies them.
    """
    _check_classes(labels, num_classes)
    if _are_classes(labels):
        if num_classes is None:
            raise ValueError("num_classes must be given where labels are class numbers (N,); got None")
        labels = torch.nn.functional.one_hot(labels.long(), num_classes)
    elif labels.ndim != len(("N", "classes")) or num_classes not in (None, labels.shape[1]):
        raise ValueError(
            f"labels must be class numbers (N,), or soft, (N, {num_classes or 'num_classes'}); "
            f"got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.float() * (1 - label_smoothing) + label_smoothing / labels.shape[1]


def _are_classes(labels: torch.Tensor) -> bool:
    return labels.ndim == 1 and not labels.is_floating_point()


def _check_classes(labels: torch.Tensor, num_classes: int | None) -> None:
    """Refuse class numbers that lie on the CPU and are out of range."""
    if num_classes is None or not _are_classes(labels) or not labels.is_cpu or not len(labels):
        return
    low, high = (int(label) for label in labels.aminmax())
    if low < 0 or high >= num_classes:
        raise ValueError(
            f"labels must be class numbers from 0 to {num_classes - 1}, num_classes being {num_classes}; got labels "
            f"from {low} to {high}: raise num_classes, or say where the labels are by labels_getter"
        )


@lru_cache(maxsize=16)
def _partners(count: int) -> torch.Tensor:
    """The image before each of ``count``, int32 (count,)."""
    return torch.from_numpy(np.roll(np.arange(count, dtype=np.int32), 1))


@lru_cache(maxsize=16)  # MixUp has one for all batches
def _boxes(box: Box, count: int) -> torch.Tensor:
    return torch.from_numpy(np.full((count, 4), box, dtype=np.int32))


def _repeated(weight: float, count: int) -> torch.Tensor:
    return torch.from_numpy(np.full(count, weight, dtype=np.float32))


def _mix_up(generator: np.random.Generator, alpha: float) -> tuple[Box, float, float, float]:
    share = generator.beta(alpha, alpha)
    return (0, 0, 0, 0), share, share, share


def _cut_mix(generator: np.random.Generator, alpha: float, height: int, width: int) -> tuple[Box, float, float, float]:
    half = 0.5 * (1 - generator.beta(alpha, alpha)) ** 0.5
    top, bottom = _clipped_span(generator, int(half * height), height)
    left, right = _clipped_span(generator, int(half * width), width)
    own = 1 - (bottom - top) * (right - left) / (height * width)
    return (top, left, bottom - top, right - left), 0.0, 1.0, own


def _clipped_span(generator: np.random.Generator, half: int, length: int) -> tuple[int, int]:
    """Start and end of a span of ``2 * half`` pixels around a random centre, clipped to ``length``."""
    centre = int(generator.integers(length))
    return max(centre - half, 0), min(centre + half, length)


def _positive(name: str, value: float) -> float:
    if not number(name, value) > 0:
        raise ValueError(f"{name} must be positive; got {value}")
    return float(value)

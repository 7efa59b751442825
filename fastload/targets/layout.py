"""What of a batch is a target, and whose."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.structure.images import find_images, is_single
from fastload.structure.loaded_types import is_vision
from fastload.structure.targets import TARGETS, has_targets
from fastload.structure.tree import Path, Tree, is_in_list, name_of
from fastload.targets.rows import Field

__all__ = ["FROM_CORNERS", "TO_CORNERS", "IsListed", "Layout", "Target", "of_kind", "one_size"]

ENTRIES = (torch.Tensor, np.ndarray, tuple, MutableSequence)  # what may have a row for each box

# Says of a path and the list or tuple there whether it has an entry for each sample, or fields; None: it is not known.
IsListed = Callable[[Path, Any], bool | None]

# What rows of boxes of each format are multiplied by to become x1, y1, x2, y2.
TO_CORNERS = {
    "XYXY": np.eye(4),
    "XYWH": np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]]),
    "CXCYWH": np.array([[1.0, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]]),
}
FROM_CORNERS = {name: np.linalg.inv(matrix) for name, matrix in TO_CORNERS.items()}


@dataclass(frozen=True, eq=False)
class Target:
    """One tensor of boxes, keypoints or masks, and whose it is."""

    path: Path
    value: Any
    sample: int | None  # None: each image's, along the first dimension
    owner: Path  # the path of what holds it, without the sample's index

    @property
    def canvas(self) -> tuple[int, int]:
        size = self.value.shape[-2:] if is_vision(self.value, "Mask") else self.value.canvas_size
        return int(size[0]), int(size[1])

    @property
    def count(self) -> int:
        """How many boxes or points there are."""
        return int(self.value.numel()) // self._columns

    @property
    def _columns(self) -> int:
        return len("xyxy") if is_vision(self.value, "BoundingBoxes") else len("xy")

    @property
    def format(self) -> str | None:
        """Of boxes; None for points."""
        return self.value.format.name if is_vision(self.value, "BoundingBoxes") else None

    @property
    def coordinates(self) -> np.ndarray:
        """x1, y1, x2, y2 of the boxes, or x, y of the points, float64."""
        values = _numbers(self.value).reshape(self.count, self._columns)
        return values if self.format in {None, "XYXY"} else values @ TO_CORNERS[self.format]

    def rows(self, count: int, samples: int) -> np.ndarray:
        """The image of each of ``count`` boxes, points or masks, int64 (count,)."""
        if self.sample is not None:
            return np.full(count, self.sample)
        return np.arange(samples).repeat(count // max(samples, 1))


@dataclass(frozen=True)
class Layout:
    """Where things lie in a batch."""

    entries: dict[Path, Any]  # its tensors, lists and tuples, outer before inner
    images: frozenset[Path]
    listings: tuple[frozenset[Path], frozenset[Path]]  # the lists and the tuples that have an entry for each sample
    samples: int
    alone: bool  # it is one image, not a batch or a list of them

    @classmethod
    def of(
        cls, tree: Tree, images: Mapping[Path, torch.Tensor] | None = None, is_listed: IsListed | None = None
    ) -> Layout | None:
        """None if the batch has no targets; ``images`` are found by torchvision's rule if they are not known."""
        if not has_targets(tree):
            return None
        entries = {path: value for path, value in tree.walk() if isinstance(value, ENTRIES)}
        images = find_images(tree) if images is None else images
        own = _own_images(images, entries)
        image = images[own[0]]
        samples = len(own) if is_single(image) else len(image)
        above = {path[:depth] for path in images for depth in range(len(path))}
        listings = _listings({path: each for path, each in entries.items() if path not in above}, samples, is_listed)
        return cls(entries, frozenset(images), listings, samples, alone=is_single(image) and not is_in_list(own[0]))

    def targets(self) -> Iterator[Target]:
        for path, value in self.entries.items():
            if is_vision(value, *TARGETS):
                sample, free = self.place(path)
                if sample is None and value.shape[0] != self.samples:
                    raise TypeError(
                        f"{name_of(path)} is {type(value).__name__} {tuple(value.shape)} beside {self.samples} images: "
                        f"its first dimension must be {self.samples}, or it must be in a list with one entry an image"
                        f"{self._hint()}"
                    )
                yield Target(path, value, sample, free[:-1])

    def _hint(self) -> str:
        """What to do if a video in a list was taken for a batch of images, and its frames for samples."""
        batches = [path for path in self.images if is_in_list(path) and not is_single(self.entries[path])]
        if not batches:
            return ""
        return (
            f"; if {name_of(batches[0])} is a video, let collate_fn stack all to one tv_tensors.Video (N, T, C, H, W)"
        )

    def place(self, path: Path) -> tuple[int | None, Path]:
        """The sample to which an entry belongs, and its path without the sample's index."""
        if self.alone:
            return 0, path
        depth = self._depth(path)
        return (None, path) if depth is None else (path[depth], (*path[:depth], *path[depth + 1 :]))  # type: ignore[return-value]

    def _depth(self, path: Path) -> int | None:
        """Where in the path of an entry the index of its sample is."""
        for listing in self.listings:  # a pair of lists may stand beside two images
            for depth in range(len(path)):
                if path[:depth] in listing:
                    return depth
        return None

    def fields(self) -> dict[tuple[int | None, Path], list[Field]]:
        """What may have a row for each box, by the sample and what holds it."""
        fields: dict[tuple[int | None, Path], list[Field]] = defaultdict(list)
        for path, value in self.entries.items():
            sample, free = self.place(path)
            if free and path not in self.images:
                fields[sample, free[:-1]].append(Field(path, self._name(path), value))
        return fields

    def _name(self, path: Path) -> Hashable:
        is_entry_of_list = not self.alone and self._depth(path) == len(path) - 1
        *owner, key = path[:-1] if is_entry_of_list else path
        container = self.entries.get(tuple(owner))
        names: Sequence[str] | None = getattr(container, "_fields", None)
        return key if names is None else names[key]  # type: ignore[call-overload]


def _own_images(images: Mapping[Path, torch.Tensor], entries: Mapping[Path, Any]) -> list[Path]:
    """Where the images are to which targets belong: a batch, a list or a single one, the first of several."""
    first, image = next(iter(images.items()))
    if not is_single(image):
        return [first]
    single = [path for path, each in images.items() if is_single(each)]
    own = [path for path in single if path[:-1] == first[:-1]] if is_in_list(first) else [first]
    if len(own) < len(single) and not _are_views(single, entries, len(own)):
        raise TypeError(
            "it cannot be told which boxes, masks and keypoints belong to which image: the batch has single images "
            f"at {', '.join(map(name_of, single))}; collate them to one tensor or one list"
        )
    return own


def _are_views(images: Sequence[Path], entries: Mapping[Path, Any], samples: int) -> bool:
    """Whether single images stand in lists of nothing else, one for each view, which are fields of the batch.

    Lists in a list, or within a field, may be samples instead, of several views each.
    """
    views = Counter(path[:-1] for path in images)
    are_fields = all(len(path) == 1 for path in views) and not isinstance(entries.get(()), MutableSequence)
    return are_fields and all(len(entries.get(path, ())) == count == samples for path, count in views.items())


def _listings(
    entries: Mapping[Path, Any], samples: int, is_listed: IsListed | None
) -> tuple[frozenset[Path], frozenset[Path]]:
    """The paths of the lists, and of the tuples, that have an entry for each sample."""
    long_enough = [
        (path, value)
        for path, value in entries.items()
        if isinstance(value, MutableSequence | tuple) and not hasattr(value, "_fields") and len(value) == samples
    ]
    listing = [(path, value) for path, value in long_enough if _is_listing(path, value, is_listed)]
    tuples = frozenset(path for path, value in listing if isinstance(value, tuple))
    return frozenset(path for path, _ in listing) - tuples, tuples


def _is_listing(path: Path, value: Sequence[Any], is_listed: IsListed | None) -> bool:
    """Whether a list or tuple, as long as the batch, has an entry for each sample, as far as can be told.

    Entries of several types that have a row for each sample, such as masks and labels or names, are fields: of tuples,
    ``default_collate`` makes such lists.
    """
    known = None if is_listed is None else is_listed(path, value)
    if known is not None:
        return known
    return len(set(map(type, value))) == 1 or not all(_is_column(each, len(value)) for each in value)


def _is_column(value: Any, samples: int) -> bool:
    """Whether it is a tensor with a row, or a list with a word, for each sample."""
    if isinstance(value, torch.Tensor):
        return value.shape[:1] == (samples,)
    return isinstance(value, list) and len(value) == samples and all(isinstance(each, str | bytes) for each in value)


def _numbers(value: torch.Tensor) -> np.ndarray:
    """The values as float64, without an operation of PyTorch where that can be: there is a tensor for each image."""
    if value.is_cpu and value.dtype is not torch.bfloat16:  # which NumPy has not
        return value.detach().numpy().astype(np.float64)
    numbers: np.ndarray = value.detach().to("cpu", torch.float64).numpy()
    return numbers


def of_kind(kind: str, targets: Sequence[Target]) -> list[Target]:
    """Those of one type of ``torchvision.tv_tensors``."""
    return [target for target in targets if is_vision(target.value, kind)]


def one_size(sizes: torch.Tensor, what: str) -> tuple[int, int]:
    """The height and width that all images have, int64 (N, 2); refused if they differ."""
    if not (sizes == sizes[:1]).all():
        raise ValueError(
            f"{what}: batched targets must come to be of one size; got {sorted(map(tuple, sizes.tolist()))}: crop "
            "or resize the images to one, or give a list of targets"
        )
    return int(sizes[0, 0]), int(sizes[0, 1])

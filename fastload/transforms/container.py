"""``Container``: base of transforms that apply others to some of the images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fastload.arguments import not_a_class, quoted
from fastload.structure.tree import Tree
from fastload.transforms.compose import Compose, numbered
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.normalize import Normalize
from fastload.transforms.transform import Transform

__all__ = ["Choice", "Container"]


@dataclass(frozen=True)
class Choice:
    """What a container draws for a batch.

    Attributes:
        drawn: which transforms each image gets; its form is the container's.
        key: of the container, from which its transforms draw.
    """

    drawn: np.ndarray
    key: Key


class Container(Transform):
    """Base of transforms that apply others, each to some of the images.

    Raises:
        TypeError: ``transforms`` is no list of transforms of ``fastload.transforms``, or one of them takes the batch as
            a whole.
    """

    def __init__(self, transforms: Sequence[Transform]) -> None:
        name = type(self).__name__
        if not isinstance(transforms, Iterable) or isinstance(transforms, Compose):
            raise TypeError(
                f"transforms must be a list of transforms; got {quoted(transforms)}: write [{quoted(transforms)}]"
            )
        self.transforms = list(transforms)
        if not self.transforms:
            raise ValueError(f"transforms of {name} must be at least one; got []")
        for transform in self.transforms:
            _check(name, transform)

    @property
    def draw_count(self) -> int:
        return 1 + sum(transform.draw_count for transform in self.transforms)

    def check(self, tree: Tree) -> None:
        for transform in self.transforms:
            transform.check(tree)

    def _members(self, key: Key) -> Iterator[tuple[Transform, Key]]:
        """The transforms, each with a key of its own."""
        for draw, transform in numbered(self.transforms, key.draw + 1):
            yield transform, key.for_draw(draw)

    @staticmethod
    def _apply(work: LazyImages, transform: Transform, key: Key, chosen: np.ndarray) -> None:
        """Record ``transform`` for the images ``chosen``, bool (N,), as if there were no others."""
        rows = torch.from_numpy(np.flatnonzero(chosen))
        if len(rows):
            with work.only(rows):
                transform.add_to(work, key.for_rows(rows))


def _check(name: str, transform: Any) -> None:
    not_a_class("transforms must be instances", transform)
    for each in transform.transforms if isinstance(transform, Compose) else [transform]:
        if not isinstance(each, Transform):
            raise TypeError(
                f"{name} takes transforms of fastload.transforms, which draw for each image; got {quoted(each)}: apply "
                f"it in the data set, or beside {name} in T.Compose"
            )
        if isinstance(each, Normalize) or each.is_before_views:
            raise TypeError(f"{type(each).__name__} is for all images of a batch: put it beside {name}, not in it")

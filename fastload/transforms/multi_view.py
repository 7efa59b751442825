"""``MultiView``: several views of each image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch

from fastload.arguments import quoted
from fastload.structure.ragged import Ragged
from fastload.structure.targets import first_target
from fastload.structure.tree import Tree, name_of
from fastload.transforms.batch import Batch, Images
from fastload.transforms.compose import Compose
from fastload.transforms.for_each_image import is_for_each_image
from fastload.transforms.key import VIEWS, Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["MultiView"]


class MultiView(Transform):
    """Make several views of each image, each by a transform of its own: a list of batches, one for each view.

    >>> from fastload.transforms import CenterCrop, RandomHorizontalFlip
    >>> views = MultiView([CenterCrop(4), [CenterCrop(2), RandomHorizontalFlip()]])(torch.zeros(3, 3, 8, 8))
    >>> [view.shape for view in views]
    [torch.Size([3, 3, 4, 4]), torch.Size([3, 3, 2, 2])]

    SimCLR has two views, ``[augment] * 2``; DINO two large and eight small ones, ``[large, other, *[small] * 8]``. What
    comes before it in a ``Compose``, decoding above all, is done once for all views; what comes after it is done to
    each view, as if it stood at its end. Each view draws random numbers of its own. In a batch the list stands where
    the images stood; labels stay as they are, one for each sample. Neighbouring views of one transform, as the small
    ones, are made together from decoded files, and lie one after another in memory.

    Args:
        transforms: one for each view: a transform, a ``Compose``, or a list of transforms.

    Raises:
        TypeError: ``transforms`` is no list, or a view decodes or mixes; when called by a ``PrefetchLoader``, the batch
            has boxes, masks or keypoints, or its images are a list.
        ValueError: there is no view, or there are more than 127.
    """

    makes_views = is_before_views = True

    def __init__(self, transforms: Sequence[Any]) -> None:
        if not isinstance(transforms, Iterable) or isinstance(transforms, Compose):
            raise TypeError(f"transforms must be a list with one for each view; got {quoted(transforms)}")
        self.transforms = [Compose(list(each) if isinstance(each, list | tuple) else [each]) for each in transforms]
        if not 1 <= len(self.transforms) < VIEWS // 2:
            raise ValueError(f"transforms must be those of 1 to {VIEWS // 2 - 1} views; got {len(self.transforms)}")
        for view in self.transforms:
            for step in view.transforms:
                if getattr(step, "is_before_views", False):
                    raise TypeError(f"{type(step).__name__} is for all views: put it before MultiView")

    def then(self, transforms: Sequence[Any]) -> MultiView:
        """The same views, with more transforms at the end of each."""
        return MultiView([[*view.transforms, *transforms] for view in self.transforms])

    def __repr__(self) -> str:
        return f"MultiView({[each.transforms for each in self.transforms]})"

    def check(self, tree: Tree) -> None:
        if (target := first_target(tree)) is not None:
            kind = type(tree.leaves[target]).__name__
            raise TypeError(
                f"T.MultiView makes several images of one, and {name_of(target)} is {kind}, which can follow only one: "
                "leave it out of the batch, or make the views in the data set"
            )
        for transform in self.transforms:
            transform.check(tree)

    def run(self, batch: Batch, key: Key) -> None:
        runs = list(self.runs(batch.images))
        batch.views = [_repeated(batch, views) for _, views in runs]
        for (transform, _), (view, view_key) in zip(runs, batch.parts(key, transforms=()), strict=True):
            transform.run(view, view_key)

    def runs(self, images: Images) -> Iterator[tuple[Compose, int]]:
        """The transforms to run, each with the number of neighbouring views that it makes together."""
        for _, group in groupby(self.transforms, key=lambda view: [id(each) for each in view.transforms]):
            same = list(group)
            # A tensor would be copied, once for each view, where images of several sizes are named by their addresses.
            if isinstance(images, Ragged) and all(map(is_for_each_image, same[0].transforms)):
                yield same[0], len(same)
            else:
                yield from ((each, 1) for each in same)

    def sample(self, sizes: torch.Tensor, key: Key) -> None:  # noqa: ARG002  (each view samples)
        return None

    def record(self, work: LazyImages, parameters: None) -> None:  # noqa: ARG002
        raise TypeError("T.MultiView makes several batches: put it beside other transforms, not in one of them")


def _repeated(batch: Batch, views: int) -> Batch:
    """A batch of the same images, once for each of some views."""
    images = batch.images
    if views > 1 and isinstance(images, Ragged):
        images = images.take(torch.arange(len(images)).repeat(views))
    return Batch(images, batch.device, view_count=views)

"""``Transform``: the base class of all transforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from fastload.arguments import quoted
from fastload.structure.ragged import Ragged
from fastload.structure.tree import Tree
from fastload.transforms.batch import Batch
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages

__all__ = ["Transform"]


class Transform(ABC):
    """A transform of a batch of images, in two steps.

    >>> class RandomCorner(Transform):
    ...     def sample(self, sizes, key):
    ...         return key.uniform(len(sizes), 2) < 0.5  # at the bottom, at the right
    ...
    ...     def record(self, work, parameters):
    ...         starts = parameters * (work.sizes - 4)
    ...         work.crop(torch.cat([starts, torch.full_like(starts, 4)], dim=1).int())
    >>> RandomCorner()([torch.zeros(3, 6, 9), torch.zeros(3, 8, 5)]).shape
    torch.Size([2, 3, 4, 4])

    :meth:`sample` draws random parameters from a key. :meth:`record` adds operations with these parameters to a
    ``LazyImages``, which runs the operations of several transforms together: ``flip``, ``crop``, ``crop_resize``,
    ``colour``, ``warp``, ``blur``, ``sharpen``, ``equalize``, ``normalize``, ``erase`` and ``mix``. So kernels and
    their references can use the same parameters, and transforms share passes over memory.
    """

    def __call__(
        self, images: torch.Tensor | Sequence[torch.Tensor] | Ragged, key: Key | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Transform a batch (N, C, H, W), one image (C, H, W), a video, or a list of images of different sizes.

        The result for a list is one batch if all its images have one size by then, else a list.

        Raises:
            TypeError: ``key`` is none, such as labels, which follow in a loader only.
        """
        if key is not None and not isinstance(key, Key):
            raise TypeError(
                f"key must be a T.Key, from which random parameters are drawn, or None; got {quoted(key)}: labels and "
                "targets follow the images where the transform is fl.PrefetchLoader(loader, transform=...)"
            )
        batch = Batch(images)
        self.run(batch, key or Key.fresh())
        result: torch.Tensor | list[torch.Tensor] = batch.result()
        return result

    def run(self, batch: Batch, key: Key) -> None:
        """Transform ``batch`` in place."""
        with batch.work() as work:
            self.add_to(work, key)

    def add_to(self, work: LazyImages, key: Key) -> None:
        """Sample the parameters and record the operations, under the name of this transform."""
        work.recording = type(self).__name__
        self.record(work, self.sample(work.sizes, key))

    def check(self, tree: Tree) -> None:  # noqa: B027  (most transforms take any batch)
        """Refuse a flattened batch, with its labels and targets, that this transform cannot take, before it begins.

        Raises:
            TypeError, ValueError: of what is refused.
        """

    uniform_count = 0  # of ``Key.uniform``'s numbers, those that ``sample`` takes of each image; 0 if it depends
    resizes = False  # whether images may come out in another size
    makes_views = False  # whether it makes several batches of one
    is_before_views = False  # whether it is for one batch only, and not for each of several views

    @property
    def draw_count(self) -> int:
        """How many values of ``Key.draw`` it takes, from its key's on."""
        return 1

    @abstractmethod
    def sample(self, sizes: torch.Tensor, key: Key) -> Any:
        """The parameters for images of ``sizes``, int64 (N, 2), on the CPU; None if there are none."""

    @abstractmethod
    def record(self, work: LazyImages, parameters: Any) -> None:
        """Add this transform's operations to ``work``, with the parameters from :meth:`sample`."""

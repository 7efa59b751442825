"""What the transforms of this package have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from fastload.structure.ragged import Ragged
from fastload.transforms.batch import Batch
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages

__all__ = ["Transform"]


class Transform(ABC):
    """A transform of a batch of images, in two steps.

    :meth:`sample` draws the parameters from a key; :meth:`record` asks for the work that they mean, which is done
    together with what the transforms before and after ask for. So a reference, a kernel and a repetition can share the
    parameters, and many transforms can share a pass over memory.
    """

    def __call__(
        self, images: torch.Tensor | Sequence[torch.Tensor] | Ragged, key: Key | None = None
    ) -> torch.Tensor | list[torch.Tensor]:
        """Transform a batch (N, C, H, W), one image (C, H, W), a video, or a list of images of different sizes.

        A list comes back as one batch where all its images have come to be of one size, else as a list.
        """
        batch = Batch(images)
        self.run(batch, key or Key.fresh())
        return batch.result()

    def run(self, batch: Batch, key: Key) -> None:
        """Do to ``batch`` all that there is to do."""
        with batch.work() as work:
            self.record(work, self.sample(work.sizes, key))

    @abstractmethod
    def sample(self, sizes: torch.Tensor, key: Key) -> Any:
        """The parameters for images of ``sizes``, int64 (N, 2), on the CPU; None if there are none."""

    @abstractmethod
    def record(self, work: LazyImages, parameters: Any) -> None:
        """Ask ``work`` for what is to be done; the images given are left as they were."""

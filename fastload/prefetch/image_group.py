"""``ImageGroup``: images of a batch that go through the transform together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastload.data.encoded import EncodedImages
from fastload.structure.images import is_single
from fastload.structure.loaded_types import is_vision
from fastload.structure.tree import Path
from fastload.transforms.batch import Batch

__all__ = ["ImageGroup", "ImagePlaces", "places_of", "skip_together"]


@dataclass(frozen=True)
class ImagePlaces:
    """Where the images of a group are in the batch, the number of the first's sample, and which view they are."""

    paths: list[Path]
    sample: int
    view: int


@dataclass(frozen=True, eq=False)
class ImageGroup:
    """Images of ``samples`` samples, which the transform takes as one ``batch``."""

    batch: Batch
    samples: int
    places: ImagePlaces

    @property
    def are_files(self) -> bool:
        """Whether they were files when they came."""
        return self.batch.is_decoded or isinstance(self.batch.images, EncodedImages)

    @property
    def skipped(self) -> set[int]:
        """The indices of the samples that are skipped."""
        return set() if self.batch.kept is None else set(range(self.samples)) - set(self.batch.kept.tolist())


def places_of(images: dict[Path, Any]) -> Iterator[ImagePlaces]:
    """The groups of the images.

    Those of a list go together where they agree in all but size; else each alone. Each list and each batch of images is
    a view of the samples.
    """
    views: dict[Path, list[Path]] = {}
    for path, image in images.items():
        views.setdefault(_list_of(path) if _is_single_image(image) else path, []).append(path)
    for view, paths in enumerate(views.values()):
        if len(paths) == 1 or len({(images[path].shape[0], images[path].dtype) for path in paths}) == 1:
            yield ImagePlaces(paths, 0, view)
        else:
            yield from (ImagePlaces([path], sample, view) for sample, path in enumerate(paths))


def skip_together(groups: Sequence[ImageGroup]) -> None:
    """Leave out of each group, of decoded files, the samples whose file in another is bad."""
    for samples in {group.samples for group in groups}:
        fields = [group for group in groups if group.samples == samples]
        skipped = set().union(*(group.skipped for group in fields))
        for group in fields:
            if group.skipped != skipped:
                group.batch.leave_out(skipped)


def _list_of(path: Path) -> Path:
    """The path without its last index, which is that of the sample."""
    depth = max((depth for depth, key in enumerate(path) if isinstance(key, int)), default=len(path))
    return path[:depth] + path[depth + 1 :]


def _is_single_image(image: Any) -> bool:
    return isinstance(image, torch.Tensor) and is_single(image) and not is_vision(image, "Video")

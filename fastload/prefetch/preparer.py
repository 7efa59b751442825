"""What happens to each batch on the side stream: its images are decoded, transformed, and the rest follows them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torchvision import tv_tensors

from fastload.data.encoded import EncodedImages
from fastload.prefetch.decode_ahead import Decoded
from fastload.prefetch.static import Slot
from fastload.streams import SideStream, SyncStream
from fastload.structure.images import find_images, find_labels, is_single, remark_on_range
from fastload.structure.tree import Path, at, find, put, take_rows, tensors
from fastload.targets.follow import followed
from fastload.targets.layout import has_targets
from fastload.transfer.transfer import DeviceBatch, Transfer
from fastload.transforms import Compose, Key, Normalize, RandomHorizontalFlip, Transform
from fastload.transforms.batch import Batch

__all__ = ["Arrival", "Preparer"]


@dataclass
class Arrival:
    """A batch that has been given to the device, and the point from which it is whole."""

    sent: DeviceBatch
    ready: Any
    remark: str | None


class Preparer:
    """What happens to each batch of one pass on the side stream.

    1. All is copied to the device, but for files, and for the targets of images.
    2. The images are decoded if they are files, and transformed.
    3. What belongs to them follows: skipped samples are taken out, boxes, masks and keypoints move with the pixels,
       labels are mixed. What was left on the host is copied.
    4. If batches have fixed addresses, it is copied there.
    """

    def __init__(
        self,
        side: SideStream | SyncStream,
        transform: Callable[..., Any] | None,
        key: Key,
        counts: Counter[str] | None = None,
        samples: int = 0,
    ) -> None:
        self.side = side
        self._transfer = Transfer(side)
        self._transform = transform if transform is None or isinstance(transform, Transform) else Compose([transform])
        self._normalize = _normalize_of(self._transform)
        self._key = key.advanced(samples)
        self._counts = Counter() if counts is None else counts
        self.samples = samples

    def __call__(
        self, batch: Any, slot: Slot | None = None, decoded: dict[Path, Decoded] | None = None
    ) -> Arrival | None:
        """Queue all that there is to do to ``batch``, which comes to lie in ``slot``; None if nothing of it is left.

        Those of its files that ``decoded`` has are decoded already.
        """
        remark = None
        if self._transform is not None:
            images = find(batch, EncodedImages) or find_images(batch)
            remark = self._remark(images)
            if not has_targets(batch):  # all copies are queued before any transform; boxes are moved on the host
                batch = self._transfer.move(batch)
                images = {path: at(batch, path) for path in images}
            batch = self._transformed(batch, images, self._transform, decoded or {})
            if batch is None:
                return None
        sent: DeviceBatch | None = self._transfer.send(batch)
        if slot is not None and sent is not None:
            sent = slot.fill(sent)
        return None if sent is None else Arrival(sent, self.side.prepared(), remark)

    def close(self) -> None:
        """Give back what was only lent for the pass."""
        self._transfer.close()

    def _transformed(
        self, batch: Any, images: dict[Path, Any], transform: Transform, decoded: dict[Path, Decoded]
    ) -> Any:
        done: list[tuple[Batch, int]] = []
        results: dict[Path, Any] = {}
        for paths in _groups(images):
            with self._group([images[path] for path in paths], decoded.get(paths[0])) as (group, samples):
                transform.run(group, self._key)
            results |= _returned(group, {path: images[path] for path in paths})
            done.append((group, samples))
        most = max(samples for _, samples in done)
        self._key = self._key.advanced(most)
        self.samples += most
        return self._followed(put(batch, results), _by_path(results), done)

    def _followed(self, batch: Any, images: dict[Path, torch.Tensor], done: list[tuple[Batch, int]]) -> Any:
        """``batch`` with what belongs to ``images``, which are in it; None if all have been skipped."""
        for group, samples in done:
            self._counts.update(group.counts)
            if group.kept is not None:
                batch = take_rows(batch, group.kept, samples)
        first, _ = done[0]  # to whose images targets and labels belong
        if first.is_empty:
            return None
        for mix in first.mixes:
            batch = put(batch, {path: mix(labels) for path, labels in find_labels(batch, len(first)).items()})
        return followed(batch, images, first.moves, self._transfer.move) if first.moves else batch

    @contextmanager
    def _group(self, images: list[Any], decoded: Decoded | None) -> Iterator[tuple[Batch, int]]:
        """Images that go through the transform together, and how many samples: decoded, or files, or on the device."""
        if decoded is not None:
            decoded.hand_over(self.side)
            yield decoded.group, decoded.samples
        elif isinstance(images[0], EncodedImages):
            with self._transfer.pinned(images[0]) as files:
                yield Batch(files, self.side.device), len(files)
        else:
            moved = self._transfer.move(images)
            group = Batch(moved if len(moved) > 1 else moved[0], self.side.device)
            yield group, len(group)

    def _remark(self, images: dict[Path, Any]) -> str | None:
        """Look once at what is normalised, while it is still on the host."""
        normalize, self._normalize = self._normalize, None
        image = next(iter(images.values()), None)
        if normalize is None or not isinstance(image, torch.Tensor) or image.device.type != "cpu":
            return None
        return remark_on_range(image, normalize.full_scale)


def _groups(images: dict[Path, Any]) -> Iterator[list[Path]]:
    """The paths of images that go through the transform together: those of a list, where they agree in all but size."""
    singles = [path for path, image in images.items() if isinstance(image, torch.Tensor) and _is_in_list(path, image)]
    alike = {(images[path].shape[0], images[path].dtype) for path in singles}
    together = singles if len(alike) == 1 else []
    if together:
        yield together
    yield from ([path] for path in images if path not in together)


def _returned(group: Batch, images: dict[Path, Any]) -> dict[Path, Any]:
    """The transformed images by the paths of those that they were."""
    result = group.result()
    if len(images) == 1:
        return dict.fromkeys(images, result)
    return {path: _typed(new, like=old) for (path, old), new in zip(images.items(), result, strict=True)}


def _by_path(results: dict[Path, Any]) -> dict[Path, torch.Tensor]:
    """Each tensor of the results; images of different sizes are in a list where their files were."""
    return {(*path, *inner): image for path, result in results.items() for inner, image in tensors(result).items()}


def _typed(image: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return tv_tensors.wrap(image, like=like) if isinstance(like, tv_tensors.TVTensor) else image


def _is_in_list(path: Path, image: torch.Tensor) -> bool:
    return is_single(image) and not isinstance(image, tv_tensors.Video) and isinstance(path[-1] if path else None, int)


def _normalize_of(transform: Callable[..., Any] | None) -> Normalize | None:
    """The normalisation that the loader's own values meet, if nothing but a flip comes before it."""
    transforms = transform.transforms if isinstance(transform, Compose) else [transform]
    first = next((each for each in transforms if not isinstance(each, RandomHorizontalFlip)), None)
    return first if isinstance(first, Normalize) else None

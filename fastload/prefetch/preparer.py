"""``Preparer``: all that is done to a batch on the side stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from fastload.data.encoded import EncodedImages, are_listed
from fastload.data.files import is_word
from fastload.data.vision_collate import listed_by_default
from fastload.prefetch.decode_ahead import decoder_of
from fastload.prefetch.image_group import ImageGroup, ImagePlaces, places_of, skip_together
from fastload.prefetch.item import Item
from fastload.resume.samplers import SamplerState
from fastload.stats.contents import note_contents
from fastload.streams import SideStream, SyncStream
from fastload.structure.field import Rule
from fastload.structure.images import find_images, is_single, remark_on_grey, remark_on_others, remark_on_range
from fastload.structure.loaded_types import is_vision
from fastload.structure.targets import has_targets
from fastload.structure.tree import (
    Path,
    Tree,
    is_in_list,
    name_of,
    retyped,
    take_rows,
    tensors,
    tree_flatten,
    tree_unflatten,
)
from fastload.structure.unstacked import Unstacked
from fastload.targets.follow import follow
from fastload.transfer.transfer import Transfer, device_blocks, has_unmoved
from fastload.transforms import Compose, Key, Normalize, RandomHorizontalFlip, Transform
from fastload.transforms.batch import Batch

__all__ = ["Preparer"]


class Preparer:
    """All that is done to the batches of one pass on the side stream.

    1. The batch is copied to the device, except files, and except targets and the images that they describe.
    2. Its images are decoded if they are files, and transformed.
    3. What belongs to the images follows: skipped samples are taken out, labels are mixed, boxes, masks and keypoints
       move with the pixels. What was left on the host is copied.
    4. With ``static``, the batch is copied to its fixed addresses.
    """

    def __init__(
        self,
        side: SideStream | SyncStream,
        transform: Callable[..., Any] | None,
        key: Key,
        counts: Counter[str] | None = None,
        samples: int = 0,
        images: Rule = None,
        samplers: SamplerState | None = None,
        *,
        by_default: bool = False,
    ) -> None:
        """``by_default`` says that the batches come as ``default_collate`` makes them."""
        self.side = side
        self._transfer = Transfer(side)
        self._transform = transform if transform is None or isinstance(transform, Transform) else Compose([transform])
        self._normalize = _normalize_of(self._transform)
        self._key = key.advanced(samples)
        self._has_looked = False
        self._counts = Counter() if counts is None else counts
        self._samples = samples
        self._images = images
        self._samplers = samplers or SamplerState(None)
        self._by_default = by_default
        self._files: set[Path] = set()  # where files have been

    @torch.no_grad()
    def __call__(self, item: Item) -> bool:
        """Queue all work on an item's batch, which lies in the item's slot then; False if nothing of it is left."""
        assert item.tree is not None
        tree: Tree | None = item.tree
        note_contents(item.tree, item.times)
        item.times.mark("copy begins", self.side)
        if self._transform is not None:
            tree = self._transformed(item, item.tree, self._transform)
        if tree is not None:
            tree = tree.replaced(self._transfer.move(tree.leaves))
            item.times.mark("copy ends" if self._transform is None else "transform ends", self.side)
            if item.slot is not None and item.slot.buffer is not None:
                tree = item.slot.buffer.fill(tree, self._missing(item))
        if tree is None:
            return False
        leaves = tree.leaves.values()
        item.images = {}
        item.batch, item.memory, item.has_unmoved = tree_unflatten(tree), device_blocks(leaves), has_unmoved(leaves)
        item.position = replace(item.position, samples=self._samples)
        item.ready = self.side.prepared()
        return True

    def close(self) -> None:
        """Drop the pinned memory of the pass."""
        self._transfer.close()

    def _missing(self, item: Item) -> int:
        """How many samples fewer than a whole batch it is known to have."""
        return item.skipped + self._samplers.missing(item.times.samples, item.position.drawn)

    def _transformed(self, item: Item, tree: Tree, transform: Transform) -> Tree | None:
        """The batch with its images transformed, and all that belongs to them; None if all samples are skipped."""
        encoded = {path: leaf for path, leaf in tree.leaves.items() if isinstance(leaf, EncodedImages)}
        self._check_files(tree, encoded)
        images = find_images(tree, self._images, encoded)
        transform.check(tree)
        item.remark = self._remark(tree, images)
        if has_targets(tree):  # boxes are moved on the host
            images = self._transfer.move(images)
        else:  # all copies are queued before any transform
            tree = tree.replaced(self._transfer.move(tree.leaves))
            images = {path: tree.leaves[path] for path in images}
        item.times.mark("copy ends", self.side)
        results: dict[Path, Any] = {}
        most = 0
        with ExitStack() as pinned:
            groups = [pinned.enter_context(self._group(places, images, item)) for places in places_of(images)]
            files = [group for group in groups if group.are_files]
            if len(files) > 1:
                self._decode(files)
                skip_together(files)
            item.times.mark("transform begins", self.side)  # what was decoded ahead is waited for before
            for group in groups:
                places = group.places
                transform.run(group.batch, self._key.from_sample(places.sample).for_view(places.view))
                results |= _returned(group.batch, {path: images[path] for path in places.paths}, tree)
                most = max(most, places.sample + group.samples)
        item.skipped = max((len(group.skipped) for group in files), default=0)
        self._key = self._key.advanced(most)
        self._samples += most
        return self._followed(tree.replaced(results), _by_path(results), groups, encoded)

    def _check_files(self, tree: Tree, encoded: dict[Path, EncodedImages]) -> None:
        """Refuse a batch with bytes where others have files: none of its own begins as an image does.

        A word there may be a label, of a data set that has its files elsewhere.
        """
        for path in self._files - encoded.keys():
            if not is_word(tree.leaves.get((*path, 0), b"")):
                raise TypeError(
                    f"{name_of(path)} has image files in other batches, and in this one bytes of which none begins as "
                    "an image: say which fields are files, such as collate_fn=functools.partial(fl.collate, "
                    f"images={[each[0] if len(each) == 1 else each for each in sorted(self._files, key=str)]!r})"
                )
        self._files |= encoded.keys()

    def _decode(self, files: list[ImageGroup]) -> None:
        """Decode what was not decoded ahead: it must be known which files are bad before any image is transformed."""
        decode = decoder_of(self._transform)
        for group in files:
            if decode is not None and not group.batch.is_decoded:
                decode.run(group.batch, self._key)
                group.batch.is_decoded = True

    def _followed(
        self,
        tree: Tree,
        images: dict[Path, torch.Tensor],
        groups: list[ImageGroup],
        encoded: dict[Path, EncodedImages],
    ) -> Tree | None:
        """The batch with what belongs to its transformed ``images``; None if all samples are skipped."""
        kept = {group.samples: group.batch.kept for group in groups if group.batch.kept is not None}
        whole = {path for group in groups if group.batch.kept is not None for path in group.places.paths}
        is_listed = listed_by_default if self._by_default else are_listed(encoded)
        for samples, rows in kept.items():
            tree = tree_flatten(take_rows(tree_unflatten(tree), rows, samples, whole, is_listed))
        for group in groups:
            self._counts.update(group.batch.counts)
        first = groups[0].batch  # targets and labels belong to its images
        if first.is_empty:
            return None
        for mix in first.mixes:
            tree = mix(tree)
        if first.moves and has_targets(tree):
            _refuse_several([group.places for group in groups if group.places.view == 0], images)
            _refuse_listed_videos(images)
        per_box = self._transform.per_box if isinstance(self._transform, Compose) else None
        return follow(tree, images, first.moves, self._transfer.move, per_box, is_listed) if first.moves else tree

    @contextmanager
    def _group(self, places: ImagePlaces, images: dict[Path, Any], item: Item) -> Iterator[ImageGroup]:
        """The images at these places: decoded ahead, or files in pinned memory, or moved to the device."""
        paths = places.paths
        image, decoded = images[paths[0]], item.images.get(paths[0])
        if decoded is not None:
            decoded.hand_over(self.side)
            yield ImageGroup(decoded.group, decoded.samples, places)
        elif isinstance(image, EncodedImages):
            with self._transfer.pinned(image) as files:
                yield ImageGroup(Batch(files, self.side.device), len(files), places)
        else:
            here = [images[path] for path in paths]
            batch = Batch(here if len(here) > 1 else here[0], self.side.device)
            yield ImageGroup(batch, len(batch), places)

    def _remark(self, tree: Tree, images: dict[Path, Any]) -> str | None:
        """Look once at what the loader yields: at tensors that look like images, and at the values to be normalised."""
        image = next(iter(images.values()), None)
        if self._has_looked or not isinstance(image, torch.Tensor):
            return None
        self._has_looked = True
        remarks = [remark_on_grey(tree, images)]
        if self._images is None:
            remarks.append(remark_on_others(tree, images))
        if self._normalize is not None and image.device.type == "cpu":
            remarks.append(remark_on_range(image, self._normalize.full_scale))
        return "\n".join(filter(None, remarks)) or None


def _returned(group: Batch, images: dict[Path, Any], tree: Tree) -> dict[Path, Any]:
    """The transformed images by the paths of those that they were."""
    result = group.result()
    first = next(iter(images))
    if isinstance(tree.holder(first), Unstacked):
        return {first[:-1]: result}
    if len(images) == 1:
        container = getattr(images[first], "container", None)  # of files
        return {first: result if container is None or group.views else container(result)}
    if group.views:
        raise TypeError(
            f"T.MultiView takes a batch of images or of files; got a list of {len(images)} images: stack them in "
            "collate_fn, or hand over files by fl.collate"
        )
    return {path: retyped(new, like=old) for (path, old), new in zip(images.items(), result, strict=True)}


def _refuse_listed_videos(images: dict[Path, torch.Tensor]) -> None:
    """Refuse targets beside a list of videos: each of them was transformed as a view of its own."""
    videos = [path for path, image in images.items() if is_vision(image, "Video") and is_single(image)]
    listed = [path for path in videos if is_in_list(path)]
    if len(listed) > 1:
        raise TypeError(
            "boxes, masks and keypoints follow videos that are one tensor (N, T, C, H, W); got "
            f"{', '.join(map(name_of, listed))}: let collate_fn stack them to one tv_tensors.Video"
        )


def _refuse_several(places: list[ImagePlaces], images: dict[Path, torch.Tensor]) -> None:
    """Refuse targets of a list whose images differ in more than size, so that each was transformed alone."""
    if len(places) > 1:
        kinds = {(images[path].shape[0], images[path].dtype) for each in places for path in each.paths}
        described = " and ".join(sorted(f"{channels} channels of {dtype}" for channels, dtype in kinds))
        raise TypeError(
            "boxes, masks and keypoints follow the images of a list if these agree in their channels and dtype; got "
            f"{described}: let the data set convert them, to RGB for example"
        )


def _by_path(results: dict[Path, Any]) -> dict[Path, torch.Tensor]:
    """Each tensor of the results; images of different sizes are in a list where their files were."""
    return {(*path, *inner): image for path, result in results.items() for inner, image in tensors(result).items()}


def _normalize_of(transform: Callable[..., Any] | None) -> Normalize | None:
    """The normalisation that the loader's own values meet, if nothing but a flip comes before it."""
    transforms = transform.transforms if isinstance(transform, Compose) else [transform]
    first = next((each for each in transforms if not isinstance(each, RandomHorizontalFlip)), None)
    return first if isinstance(first, Normalize) else None

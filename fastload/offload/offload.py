"""``offload``: an ordinary loader, with its data set's transform and its decoding moved to the device."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from fastload.arguments import chosen, resolved_device
from fastload.environment import float_on
from fastload.loader import PrefetchLoader
from fastload.offload.collation import OffloadCollate, handed, is_like_jpeg
from fastload.offload.dataset import FileDataset, containers_restored, transform_of
from fastload.offload.error import CannotOffloadError
from fastload.offload.handover import HandedImage, Handover
from fastload.offload.loader_copy import with_dataset
from fastload.offload.opening import opened_files
from fastload.offload.package import package_of
from fastload.offload.place import Place
from fastload.offload.seed_watch import SeedWatch
from fastload.offload.split import Split, split
from fastload.offload.timm_loader import TimmLoader, device_steps, fast_collate, is_prefetcher
from fastload.structure.loaded_types import loaded_types
from fastload.structure.targets import has_targets
from fastload.structure.tree import Path, Tree, name_of, tree_flatten
from fastload.transforms import Compose, DecodeJpeg, Normalize
from fastload.transforms.decode import POLICIES

__all__ = ["offload"]

TAKE_ARRAYS = ("ToTensor", "ToImage", "MaybeToTensor")
PROBED = 4  # samples that are read to see what the data set and collate_fn do with an image


def offload(
    loader: Any,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    *,
    transform: Callable[..., Any] | None = None,
    dtype: torch.dtype | str | None = None,
    memory_format: torch.memory_format | None = None,
    on_error: str = "raise",
    verbose: bool = True,
    **settings: Any,
) -> PrefetchLoader:
    """Move the transform of a loader's data set, and the decoding of its files, to the device.

    >>> loader = DataLoader(ImageFolder(root, transform=augment), 256, shuffle=True, num_workers=8)  # doctest: +SKIP
    >>> loader = fl.offload(loader)  # doctest: +SKIP

    Batches have the same samples in the same order and the same structure. The transform is :func:`split`: what cannot
    move stays in the workers, and all else is done for each image on the device. Where nothing stays, workers read JPEG
    files and do not decode them. Sampler, batch size, workers, generator, ``worker_init_fn`` and ``collate_fn`` are the
    loader's own; the loader and its data set are left as they are.

    The data set may be any with an attribute ``transform`` or ``transforms``, among them those of torchvision, wrapped
    for ``tv_tensors`` too, and timm; also as a ``Subset`` or ``ConcatDataset``. The first samples are read, to see
    that the data set and ``collate_fn`` only pass images on: an image that they compute with is refused, since its
    values are not what the whole transform would give.

    Args:
        loader: a ``DataLoader`` over a map-style data set; or what ``timm.data.create_loader`` returns, whose
            normalisation and erasing are kept.
        mean: as of :class:`PrefetchLoader`, if the transform does not normalise.
        std: the same.
        transform: for the device, after what is moved there: ``T.MixUp``, for example.
        dtype: of the normalised images; by default what the transform makes of them. ``"auto"`` as of
            :class:`PrefetchLoader`.
        memory_format: of the normalised images, such as ``torch.channels_last``.
        on_error: what ``T.DecodeJpeg`` does about files that cannot be decoded.
        verbose: print what moved and what did not.
        settings: further arguments of :class:`PrefetchLoader`: ``device``, ``depth``, ``seed``, ``static``, ``shard``.

    Raises:
        CannotOffloadError: it is not certain that the result would be the same, or there is nothing to move. It is a
            TypeError; the message has the reason and the lines to write instead.
        ValueError: the data set is empty, ``on_error`` is none of the three, or an argument is refused by
            :class:`PrefetchLoader`.
    """
    if "images" in settings:
        raise TypeError(
            f"fl.offload finds the images of a batch itself; got images={settings['images']!r}: leave it out"
        )
    chosen("on_error", on_error, POLICIES)
    theirs = loader if is_prefetcher(loader) else None
    try:
        with _same_random_numbers():
            plan = _planned(
                loader if theirs is None else theirs.loader,
                on_error,
                of_timm=theirs is not None,
                is_typed=dtype is not None,
            )
        after = [] if theirs is None else device_steps(theirs)
    except CannotOffloadError as error:
        raise CannotOffloadError(f"fl.offload does not know how to do this: {error}.\n{INSTEAD}") from error
    moved = Compose([step for step in (plan.split.device, *after) if step is not None])
    if theirs is not None:
        settings = {"device": theirs.device} | settings
    floats = float_on(resolved_device(settings.get("device")), dtype)
    if mean is None:
        moved, floats, memory_format = _normalized(moved, floats, memory_format), None, None
    steps = [DecodeJpeg(on_error) if plan.files else None, moved, transform]
    dataset = FileDataset(plan.dataset) if plan.files else plan.dataset
    wrapped = (PrefetchLoader if theirs is None else TimmLoader)(
        with_dataset(plan.loader, dataset, plan.collate),
        mean,
        std,
        transform=Compose([step for step in steps if step is not None]),
        dtype=floats,
        memory_format=memory_format,
        images=plan.images if all(plan.images) else None,  # a batch may be its images and nothing else
        **settings,
    )
    if plan.files:
        plan.collate.decode = wrapped.device.type == "cpu"
    if verbose and not _is_other_rank():
        print(plan.described(wrapped.device))
    return wrapped


INSTEAD = """Write it yourself:
    dataset = ...  # without its transform: let it return (pathlib.Path or bytes of the file, label)
    loader = DataLoader(dataset, ..., collate_fn=fl.collate)
    loader = fl.PrefetchLoader(loader, transform=T.Compose([T.DecodeJpeg(), ...]))"""


SEEDING = (
    "Random steps move if the data set leaves the generators of torch and random alone. In the place of one seed for "
    "an image and its mask, give both to one call of a transform of torchvision's v2, the mask as a tv_tensors.Mask: "
    "flips and colours move then"
)


@dataclass
class OffloadPlan:
    """What is done with a loader.

    Attributes:
        loader: the ``DataLoader``.
        place: where its data set keeps the transform.
        split: of the transform.
        files: whether workers hand over files.
        dataset: a copy of the data set with the worker's part.
        collate: its ``collate_fn``, which packs images.
        images: where in a batch they stand.
    """

    loader: DataLoader[Any]
    place: Place
    split: Split
    files: bool
    dataset: Any
    collate: OffloadCollate
    images: list[Path]

    def described(self, device: torch.device) -> str:
        """What moved, for the user."""
        if self.files:
            on_device = f"read in the workers, decoded on {device} (JPEG; other formats in the workers)"
            decoding = "read and decoded in the workers" if device.type == "cpu" else on_device
        else:
            decoding = "decoded in the workers, by the data set"
        return f"{self.place.attribute}\n{self.split}\nimages: {decoding}"


def _planned(loader: Any, on_error: str, *, of_timm: bool, is_typed: bool) -> OffloadPlan:
    """What is done with a loader; ``is_typed`` if the user names the dtype of what the transform normalises."""
    if isinstance(loader, PrefetchLoader):
        raise CannotOffloadError("the loader is a PrefetchLoader already; pass the DataLoader that it wraps")
    if not isinstance(loader, DataLoader):
        raise CannotOffloadError(f"the loader is a {type(loader).__name__} and no DataLoader")
    if isinstance(loader.dataset, IterableDataset):
        raise CannotOffloadError(
            "the data set is an IterableDataset, whose samples cannot be looked at without using them up"
        )
    if loader.batch_sampler is None:
        raise CannotOffloadError("batch_size is None, so the data set makes the batches")
    if not len(loader.dataset):  # type: ignore[arg-type]
        raise ValueError("the loader's data set must have a sample; it is empty")
    place = transform_of(loader.dataset)
    parts = _split(place)
    takes = replace(parts.takes, keeps=None) if is_typed else parts.takes
    dataset = place.with_other(Handover(parts.worker, _arrays(place.transform, parts), takes=takes))
    before = opened_files()
    samples = _samples(dataset, PROBED)
    # Decoded images count as files only where something is to be done about bad ones.
    may_be_files = on_error != "raise" and parts.worker is None and opened_files() > before
    images = [image for sample in samples for image in _handed_of(sample)]
    files = _are_files(images, may_be_files)
    collate = OffloadCollate(fast_collate(loader) if of_timm else loader.collate_fn, files=files)
    plan = OffloadPlan(loader, place, parts, files, dataset, collate, _images_of(samples, collate))
    if not files:
        pixels = [image.value for image in images if isinstance(image.value, torch.Tensor)]
        for image in {(each.dtype, each.shape[:-2]): each for each in pixels}.values():
            _try(parts.device, image)
    return plan


def _are_files(images: list[HandedImage], may_be_files: bool) -> bool:
    """Whether images are files: some undecoded, or, if they may be, all decoded to what a JPEG would be.

    Raises:
        CannotOffloadError: they are not, and one of them is a bad file.
    """
    if any(isinstance(image.value, bytes) and not image.problem for image in images):
        return True
    decoded = [image.value for image in images if isinstance(image.value, torch.Tensor)]
    if may_be_files and all(map(is_like_jpeg, decoded)):
        return True
    if bad := next((image for image in images if image.problem), None):
        raise CannotOffloadError(f"the data set cannot open or decode {bad.name or 'a file'}: {bad.problem}")
    return False


def _try(device: Any, image: torch.Tensor) -> None:
    """Do what moves, on the CPU, with an image as a batch of its own.

    Raises:
        CannotOffloadError: it cannot take images of this kind.
    """
    try:
        device(image[None])
    except (TypeError, ValueError) as error:
        raise CannotOffloadError(
            f"what is to move cannot take an image of {image.dtype} {tuple(image.shape)}: {error}. Make it a Pillow "
            "image in RGB, or a uint8 tensor (3, H, W), in the data set"
        ) from error


def _arrays(transform: Any, parts: Split) -> tuple[str, ...]:
    """The dtypes of NumPy arrays that may be given to what moves."""
    if package_of(transform) == "albumentations":
        return ("uint8",)  # its Normalize divides floats by 255, too
    first = next((step.name for step in parts.steps if step.where == "device"), "")
    return ("uint8", "float32") if first in TAKE_ARRAYS else ()


def _split(place: Place) -> Split:
    """Split the transform of a data set, whose samples tell what becomes of targets.

    Raises:
        CannotOffloadError: nothing can move.
    """
    watch = SeedWatch()
    handover = Handover(None, watch=watch)
    tree = tree_flatten(_samples(place.with_other(handover), PROBED))
    watch.look()
    targets = "together" if handover.was_given_targets else "beside" if has_targets(tree) else "none"
    if handover.was_given_targets:
        _refuse_pillow_images(tree)
    if handover.was_given_images:
        raise CannotOffloadError(
            "the transform is given a second image in one call, and each image on the device draws random numbers of "
            "its own"
        )
    try:
        parts = split(place.transform, targets=targets, seeded=watch.was_seeded)
    except TypeError as error:
        raise CannotOffloadError(str(error)) from error
    if parts.device is None:
        hint = f"\n{SEEDING}" if watch.was_seeded else ""
        raise CannotOffloadError(f"nothing of {place.attribute} can move:\n{parts}{hint}")
    return parts


def _refuse_pillow_images(tree: Tree) -> None:
    for path, leaf in tree.leaves.items():
        if isinstance(leaf, loaded_types("PIL.Image", "Image")):
            raise CannotOffloadError(
                f"{name_of(path, of='samples')} is a Pillow image among the targets: wrap the data set by "
                "torchvision.datasets.wrap_dataset_for_transforms_v2, or let it yield a tv_tensors.Mask"
            )


def _normalized(transform: Compose, dtype: torch.dtype | None, memory_format: torch.memory_format | None) -> Compose:
    """``transform`` with its normalisation in another form.

    Raises:
        ValueError: a form is given, and it does not normalise.
    """
    if dtype is None and memory_format is None:
        return transform
    if not any(isinstance(step, Normalize) for step in transform.transforms):
        raise ValueError(
            f"dtype and memory_format are those of normalised images; got dtype={dtype} and "
            f"memory_format={memory_format}, and the data set's transform does not normalise: give mean and std too"
        )
    return Compose(
        [
            Normalize(step.mean, step.std, dtype=dtype or step.dtype, memory_format=memory_format or step.memory_format)
            if isinstance(step, Normalize)
            else step
            for step in transform.transforms
        ]
    )


def _samples(dataset: Any, count: int) -> list[Any]:
    """The first samples of a copy of the data set."""
    read = FileDataset(dataset)
    with containers_restored(dataset):
        return [_sample(read, index) for index in range(min(count, len(read)))]


def _sample(dataset: FileDataset, index: int) -> Any:
    try:
        return dataset[index]
    except CannotOffloadError:
        raise
    except Exception as error:
        raise CannotOffloadError(
            f"dataset[{index}] fails where its transform hands an image over: {_told(error)}"
        ) from error


def _images_of(samples: list[Any], collate: OffloadCollate) -> list[Path]:
    """Where in a batch the images stand."""
    if not all(map(_handed_of, samples)):
        raise CannotOffloadError(
            "the data set does not return what its transform returns; if it keeps what it has read, give it to "
            "fl.offload before it is read"
        )
    try:
        batch = collate.collate(samples)
    except CannotOffloadError:
        raise
    except Exception as error:
        raise CannotOffloadError(f"collate_fn does more with images than to stack them: {_told(error)}") from error
    tree = tree_flatten(batch)
    images = [path for path, _ in handed(tree)]
    if len(images) != len(_handed_of(samples[0])):
        raise CannotOffloadError("collate_fn leaves out images")
    collate.packed(tree)  # images that differ in kind are refused now, and not within training
    return images


def _handed_of(sample: Any) -> list[HandedImage]:
    return [leaf for leaf in tree_flatten(sample).leaves.values() if isinstance(leaf, HandedImage)]


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Put the generators of Python, NumPy and PyTorch back where they were."""
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


def _is_other_rank() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_rank() > 0

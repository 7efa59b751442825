"""``collate``: samples with image files to one batch, for a ``DataLoader`` whose workers read and do not decode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from fastload.arguments import flag, integer, quoted
from fastload.data.by_value import unshared
from fastload.data.encoded import CHANNELS, SAY_UPRIGHT, Beside, EncodedImages
from fastload.data.files import is_file, name, read
from fastload.data.image_fields import described, find_files, stated_files
from fastload.data.packing import MOST_DECODED, pack
from fastload.data.pixels import UPRIGHT, UndecodableError, values
from fastload.structure.field import Rule, checked_rule
from fastload.structure.loaded_types import is_vision
from fastload.structure.targets import TARGETS
from fastload.structure.tree import ATOMS, Path, children_of, name_of, tensors, with_children

__all__ = ["collate", "lists_by_default", "tell_files"]

TARGET_NAMES = {"boxes", "masks", "keypoints"}  # as in the targets of torchvision's detection models
OF_NO_OBJECTS = {"image_id"}  # what torchvision's wrapped CocoDetection yields for an image without objects
LISTED_NAMES = ("bbox", "bboxes")  # of COCO's and Hugging Face's annotations, as lists with an entry a box


def collate(
    samples: Sequence[Any] | Mapping[Any, Any],
    *,
    images: Rule = None,
    masks: Rule = None,
    decode: bool = False,
    upright: bool | None = None,
    most_bytes: int = MOST_DECODED,
) -> Any:
    """Pack the image files of a batch's samples into one block, and collate everything else as PyTorch does.

    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader([(b"...", 3), (b"...", 5)], batch_size=2, collate_fn=collate)
    >>> next(iter(loader))
    (EncodedImages(2 files, 0 bytes, 2 of them bad), tensor([3, 5]))

    A sample is a file, or a tuple, named tuple, list, mapping or dataclass that holds files at any depth; the batch has
    the same structure. ``images`` says which fields are files, for example
    ``collate_fn=functools.partial(fl.collate, images="jpg")``; docs/sources.md has more. Without it, they are those of
    the first of these kinds that occurs in the first sample:

    1. mappings of "bytes" and "path", as Hugging Face's ``Image(decode=False)`` yields them;
    2. what ``PIL.Image.open`` returns, as long as its pixels are not decoded, nor another page than the first chosen;
    3. bytes: ``bytes``, ``bytearray``, ``memoryview``;
    4. paths: ``os.PathLike``;
    5. uint8 tensors and arrays of one dimension;
    6. strings that end as image files do: ``.jpg``, ``.png`` and so on.

    Of these, contents that begin as no image in any sample of the batch, such as a label in bytes, and paths that end
    as none are left alone, if there is another that does. Fields of the other kinds are collated, so an image in bytes
    may come with its path, and a path with uint8 labels.

    Fields that cannot be stacked become a list with one entry for each sample. So do annotations, whatever their
    shapes: a list of mappings, as COCO's, a mapping with "bbox" or "bboxes" in lists, and all that stands in a tuple or
    mapping beside ``BoundingBoxes``, ``Mask`` or ``KeyPoints`` of ``tv_tensors`` or an item "boxes", "masks" or
    "keypoints".

    A file that cannot be read or decoded raises no error here. ``EncodedImages.problems`` has the reason, and
    ``T.DecodeJpeg(on_error=...)`` decides. Baseline JPEGs are packed undecoded; other files are decoded here by Pillow:
    in RGB, turned ``upright`` by EXIF, grey of 16 bits scaled to 8. docs/guarantees.md states what hostile files cannot
    do.

    Args:
        samples: the samples of one batch; or a mapping of columns, each with an entry for each sample, as Ray Data
            gives them.
        images: which field of a sample is its image file, or holds a list of them: a key, an index, a path such as
            ``("image", "bytes")``, a list of these, or a function of the sample that returns the field. It is called
            with the first sample.
        masks: which field is the file of a mask, stated as ``images`` is. Its values are kept as they are stored, as
            ``tv_tensors.Mask``, (H, W) uint8, bool, int32 for more than 8 bits, or float32; masks come as a list and
            follow the images.
        decode: decode baseline JPEGs here too, by torchcodec: for devices without a JPEG decoder, where many workers
            decode faster than the training process. Pass ``collate_fn=functools.partial(fl.collate, decode=True)``.
        upright: whether EXIF turns images, and masks in files. True: they are as they are seen; False: as they are
            stored, which is how ``torchvision.datasets`` load them. By default they are turned, and a file that is
            turned beside boxes, masks or keypoints is an error: data sets differ in which of the two these describe.
        most_bytes: how many bytes the files of a batch may have, and how many their pixels, by their headers; 16 GiB by
            default. A file that would exceed this is a bad file. Set it by ``functools.partial`` too. An image of more
            than ``PIL.Image.MAX_IMAGE_PIXELS`` is one in any case.

    Raises:
        TypeError: there is no sample, the first has no file, or another has something else in the place of one; it
            cannot be told which of several fields is the image, or which is a mask; or ``images`` or ``masks`` name no
            file.
        ValueError: ``most_bytes`` is not positive, a mask cannot be decoded, or EXIF turns it and ``upright`` is None.
    """
    most_bytes = integer("most_bytes", most_bytes, least=1)
    flag("decode", decode)
    if upright is not None:
        flag("upright", upright)
    rules = checked_rule("images", images), checked_rule("masks", masks)
    if isinstance(samples, Mapping):
        samples = _samples_of(samples)
    if not isinstance(samples, Sequence) or not samples:
        raise TypeError(f"samples must be a list of at least one sample; got {quoted(samples)}")
    mask_files = [] if masks is None else stated_files(samples[0], rules[1], "masks")
    files = find_files(samples, mask_files) if images is None else stated_files(samples[0], rules[0], "images")
    fields = _Fields(
        dict.fromkeys(mask_files, partial(_masks, upright=upright, most_bytes=most_bytes))
        | dict.fromkeys(files, partial(_pack, decode=decode, upright=upright, most_bytes=most_bytes))
    )
    batch = fields.collated(samples)
    fields.tell_files(samples, most_bytes)
    return batch


Collate = Callable[[Sequence[Any]], Any]


def _samples_of(columns: Mapping[Any, Any]) -> list[dict[Any, Any]]:
    """The samples of a batch that comes as columns."""
    lengths = {
        len(column) if isinstance(column, np.ndarray | torch.Tensor | list) else -1 for column in columns.values()
    }
    if len(lengths) != 1 or -1 in lengths:
        raise TypeError(
            "samples must be a list of samples, or a mapping of arrays or lists that have an entry for each sample; "
            f"got {described(columns)}"
        )
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


class _Fields:
    """Collates samples field by field: those of ``special`` by their own functions, the others as PyTorch does."""

    def __init__(self, special: dict[Path, Collate]) -> None:
        self._special = special
        self._above = {path[:depth] for path in special for depth in range(len(path))}
        self._files: dict[Path, EncodedImages] = {}
        self._masks: list[list[torch.Tensor]] = []
        self._lists: dict[Path, tuple[bool, type]] = {}

    def collated(self, fields: Sequence[Any], path: Path = (), *, listed: bool = False) -> Any:
        """Collate one field of all samples; what is not special as PyTorch does, or as a list."""
        if path in self._special:
            return self._collated_files(fields, path)
        if path not in self._above:
            return self._stacked(fields, path, listed=listed)
        listed = listed or _is_target(fields[0])
        columns = _columns(fields, path)
        inner = [(key, self.collated(column, (*path, key), listed=listed)) for key, column in columns.items()]
        self._lists[path] = False, type(inner[0][1])
        return with_children(fields[0], inner)

    def tell_files(self, samples: Sequence[Any], most_bytes: int) -> None:
        """Tell the files of a collated batch what is beside them."""
        for path, files in self._files.items():
            described = list(zip(samples, *self._masks, strict=True)) if files.problems else []
            tell_files(files, Beside(path, self._lists), described, most_bytes)

    def _collated_files(self, fields: Sequence[Any], path: Path) -> Any:
        collated = self._special[path](fields)
        if isinstance(collated, EncodedImages):
            self._files[path] = collated
        else:
            self._masks.append(collated)
            self._lists[path] = True, type(collated[0])
        return collated

    def _stacked(self, fields: Sequence[Any], path: Path, *, listed: bool) -> Any:
        if not listed and (type(fields[0]) in ATOMS or not any(map(_is_target, fields))):
            # Those that raise are of different shapes, or of a type that PyTorch does not collate.
            with suppress(KeyError, RuntimeError, TypeError, ValueError):
                stacked = unshared(default_collate(list(fields)))
                self._lists.update(lists_by_default(fields[0], stacked, path))
                return stacked
        self._lists[path] = True, type(fields[0])
        return list(fields)


def tell_files(files: EncodedImages, beside: Beside, samples: Sequence[Any], most_bytes: int = MOST_DECODED) -> None:
    """Tell files what is beside them, and the size of a bad one, as far as its sample's targets have it."""
    files.beside = beside
    if not files.problems:
        return
    left = most_bytes - CHANNELS * int(files.sizes.prod(dim=1).sum())
    for index in files.problems:
        height, width = next(_canvases(samples[index]), (0, 0))
        if 0 < CHANNELS * height * width <= left:  # a black image in the place of the bad one is to fit them
            files.resize_bad(index, height, width)
            left -= CHANNELS * height * width


def lists_by_default(field: Any, collated: Any, path: Path = ()) -> Iterator[tuple[Path, tuple[bool, type]]]:
    """What :class:`Beside` has of what ``default_collate`` made of a field, by that of one sample: text is listed.

    >>> names = [("cat", "dog"), ("siamese", "poodle")]
    >>> dict(lists_by_default(("cat", "siamese"), names))
    {(): (False, <class 'tuple'>), (0,): (True, <class 'str'>), (1,): (True, <class 'str'>)}
    """
    inner = children_of(collated)
    if isinstance(field, str | bytes):
        yield path, (True, type(field))
    elif inner:
        yield path, (False, type(inner[0][1]))
        for (key, value), (_, each) in zip(inner, children_of(field) or (), strict=False):
            yield from lists_by_default(each, value, (*path, key))


def _columns(fields: Sequence[Any], path: Path) -> dict[Any, list[Any]]:
    """The entries of containers, one of each sample, by those of the first."""
    entries = [dict(children_of(field) or ()) for field in fields]
    first = entries[0]
    for sample, other in enumerate(entries):
        if not other.keys() >= first.keys() or (len(other) > len(first) and not isinstance(fields[0], Mapping)):
            raise TypeError(
                f"{name_of(path, of='sample')} must be alike in all samples; it has {', '.join(map(repr, first))} in "
                f"the first, and sample {sample} is {described(fields[sample])}"
            )
    return {key: [each[key] for each in entries] for key in first}


def _is_target(value: Any) -> bool:
    """Whether a field describes the objects in an image, of which other images have other numbers."""
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return True
    if isinstance(value, Mapping) and (not TARGET_NAMES.isdisjoint(value) or _lists_boxes(value)):
        return True
    entries = list(_entries(value))
    inner = chain.from_iterable(map(_entries, entries))  # no deeper: a polygon may have thousands of numbers
    return any(is_vision(each, *TARGETS) for each in (value, *entries, *inner))


def _canvases(sample: Any) -> Iterator[Sequence[int]]:
    """The sizes of the images that a sample's targets describe."""
    for tensor in tensors(sample).values():
        if is_vision(tensor, *TARGETS):
            yield tensor.shape[-2:] if is_vision(tensor, "Mask") else vars(tensor)["canvas_size"]


def _lists_boxes(value: Mapping[Any, Any]) -> bool:
    if set(value) <= OF_NO_OBJECTS:
        return True
    boxes = next((value[name] for name in LISTED_NAMES if name in value), None)
    return isinstance(boxes, list) and all(isinstance(box, Sequence) for box in boxes)


def _entries(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, tuple | list) else ()


def _masks(files: Sequence[Any], *, upright: bool | None, most_bytes: int) -> list[torch.Tensor]:
    from torchvision.tv_tensors import Mask  # noqa: PLC0415

    masks: list[torch.Tensor] = []
    for sample, file in enumerate(files):
        _check_file(file, sample)
        try:
            mask, turned = values(read(file), most_bytes, upright=upright is not False)
        except (OSError, UndecodableError) as error:
            raise ValueError(f"the mask {name(file, sample)} cannot be decoded: {error}") from error
        if turned != UPRIGHT and upright is None:
            raise ValueError(f"the mask {name(file, sample)} is turned by EXIF (orientation {turned}): {SAY_UPRIGHT}")
        most_bytes -= mask.nbytes
        masks.append(Mask(torch.from_numpy(mask if mask.ndim == len("HW") else np.moveaxis(mask, -1, 0))))
    return masks


def _pack(files: Sequence[Any], *, decode: bool, upright: bool | None, most_bytes: int) -> EncodedImages:
    for sample, file in enumerate(files):
        _check_file(file, sample)
    return pack(files, decode=decode, upright=upright, most_bytes=most_bytes)


def _check_file(file: Any, index: int) -> None:
    if not is_file(file):
        raise TypeError(
            f"sample {index} has no file where the first of its batch has one: {described(file)}. It must be bytes, a "
            "path, a uint8 tensor or array of one dimension, or an image opened by Pillow at its first page"
        )

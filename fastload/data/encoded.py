"""``EncodedImages``: a batch of image files, as workers send it: one block of bytes, and a table of what it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from fastload.data.shared_memory import Handle, Shared, received
from fastload.structure.tree import Path

__all__ = ["ALIGNMENT", "CHANNELS", "SAY_UPRIGHT", "Beside", "EncodedImages", "Kind", "are_listed"]

CHANNELS = 3  # of every decoded image: red, green and blue
ALIGNMENT = 256  # bytes; images start at its multiples, here and on the device, so one copy can take several of them

# What to do where EXIF turns an image, and it cannot be told whether targets describe it before or after.
SAY_UPRIGHT = (
    "pass collate_fn=functools.partial(fl.collate, upright=False) if targets describe pixels as they are stored, or "
    "upright=True if they describe the image as it is seen"
)


class Kind(IntEnum):
    """What the block holds of an image."""

    JPEG = 0  # a file that hardware decoders accept: see fastload.data.jpeg_header
    PIXELS = 1  # the pixels of a file that the worker decoded, (H, W, 3)
    BAD = 2  # nothing: the file cannot be read or decoded


class Beside(NamedTuple):
    """Where files stand in the batch that was collated with them, and what lists it has.

    ``lists`` has, by the path of each, whether it has an entry a sample, and not fields, and its first entry's type.
    """

    place: Path
    lists: dict[Path, tuple[bool, type]]


class EncodedImages:
    """N image files, as :func:`fastload.collate` packs them and ``T.DecodeJpeg`` decodes them.

    >>> import fastload as fl
    >>> fl.collate([b"no image"])
    EncodedImages(1 file, 0 bytes, 1 of them bad)

    It has no ``to`` method, so nothing moves it to a device: it is decoded there instead.

    Attributes:
        block: the files, uint8 (bytes,), each starting at a multiple of ``ALIGNMENT`` bytes.
        table: int64 (N, 5): offset and length in ``block``, height and width as decoded, and ``Kind``. Height and
            width of a bad file are those of the black image that may take its place, 0 if nothing tells.
        names: each file's path, or "sample" and its index in the batch.
        problems: why a file is bad, by its index in the batch.
        turned: the EXIF orientation of each file that it turned, by its index in the batch; empty if the user said
            whether it should.
        container: ``list`` or ``tuple`` if images are to come in one, and not as a batch where their sizes agree.
        is_lent: whether other files get the block's memory once these are decoded.
        beside: what is known of the batch that they were collated with; None for nothing.
        layout_at: where in ``block``, behind the files, a ``DecodedLayout`` is written; None if it is not.
    """

    def __init__(
        self,
        block: torch.Tensor | Shared,
        table: torch.Tensor,
        names: list[str],
        problems: dict[int, str],
        container: type[list[Any]] | type[tuple[Any, ...]] | None = None,
        turned: dict[int, int] | None = None,
        beside: Beside | None = None,
        layout_at: int | None = None,
        *,
        is_lent: bool = False,
    ) -> None:
        self._shared = block if isinstance(block, Shared) else None
        self.block = block.block if isinstance(block, Shared) else block
        self.table = table
        self.names = names
        self.problems = problems
        self.container = container
        self.turned = turned or {}
        self.beside = beside
        self.layout_at = layout_at
        self.is_lent = is_lent

    def __copy__(self) -> EncodedImages:
        """Files with the same block; by ``__getstate__`` they would have another."""
        return EncodedImages(self.block, self.table, *self._rest(), is_lent=self.is_lent)

    def _rest(self) -> tuple[Any, ...]:
        return self.names, self.problems, self.container, self.turned, self.beside, self.layout_at

    def __getstate__(self) -> dict[str, Any]:
        block = self.block.clone()  # of a view, PyTorch would pickle all of the memory behind it
        return vars(self) | {"_shared": None, "block": block}

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        files = f"{len(self)} file{'' if len(self) == 1 else 's'}"
        bad = f", {len(self.problems)} of them bad" if self.problems else ""
        return f"EncodedImages({files}, {int(self.table[:, 1].sum()):,} bytes{bad})"

    @property
    def sizes(self) -> torch.Tensor:
        """Heights and widths, int64 (N, 2)."""
        return self.table[:, 2:4]

    def file(self, index: int) -> torch.Tensor:
        """The bytes of one image, uint8 (length,): a view of the block."""
        offset, length = self.table[index, :2].tolist()
        return self.block[offset : offset + length]

    def resize_bad(self, index: int, height: int, width: int) -> None:
        """Say of a bad file which size the black image has that may take its place."""
        self.table[index, 2] = height
        self.table[index, 3] = width
        self.layout_at = None  # what is written there has the size of before

    def is_pinned(self) -> bool:
        """Whether the block lies in pinned memory."""
        return self.block.is_pinned()

    def pin_memory(self, device: torch.device | str | None = None) -> EncodedImages:  # noqa: ARG002
        """Return the same files, not pinned.

        A ``DataLoader`` with ``pin_memory=True`` would pin every batch that its workers have ready. ``PrefetchLoader``
        pins a batch shortly before it is decoded. ``device`` is ignored; ``Tensor.pin_memory`` has it too.
        """
        return self


def _reduce(files: EncodedImages) -> Any:
    """Pickle for a worker's queue: a handle of the shared block, and the small table by value."""
    if files._shared is None:  # noqa: SLF001
        return files.__reduce_ex__(2)
    handle = files._shared.handle()  # noqa: SLF001
    return _rebuild, (handle, files.table.numpy(), *files._rest())  # noqa: SLF001


def _rebuild(handle: Handle, table: np.ndarray[Any, Any], *rest: Any) -> EncodedImages:
    return EncodedImages(received(*handle), torch.from_numpy(table), *rest)


ForkingPickler.register(EncodedImages, _reduce)


def are_listed(encoded: Mapping[Path, EncodedImages]) -> Callable[[Path, Any], bool | None]:
    """A function that says whether a list of the batch with these files has an entry a sample; None if not known.

    >>> import fastload as fl
    >>> files, names = fl.collate([(b"", ("cat", "siamese")), (b"", ("dog", "poodle"))])
    >>> is_listed = are_listed({(0,): files})
    >>> names, is_listed((1,), names), is_listed((1, 0), names[0]), is_listed((1,), [1, 2])
    ([('cat', 'dog'), ('siamese', 'poodle')], False, True, None)

    Somebody may have put other fields into the batch since: of a list with entries of another type nothing is known.
    """
    known: dict[Path, tuple[bool, type]] = {}
    for path, files in encoded.items():
        if files.beside is not None and path[len(path) - len(files.beside.place) :] == files.beside.place:
            above = path[: len(path) - len(files.beside.place)]
            known |= {(*above, *inner): what for inner, what in files.beside.lists.items()}

    def is_listed(path: Path, value: Any) -> bool | None:
        listed, kind = known.get(path, (None, None))
        return listed if kind is type(value[0]) else None

    return is_listed

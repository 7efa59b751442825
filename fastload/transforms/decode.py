"""Files to pixels: on the device where it has JPEG engines, on the CPU elsewhere."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from fastload.data.encoded import EncodedImages
from fastload.decode.device import decode
from fastload.transforms.batch import Batch
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["BadImageError", "DecodeJpeg"]

POLICIES = ("raise", "skip", "zero")


class BadImageError(ValueError):
    """A file that is no image, or not a whole one; the message names it."""


class DecodeJpeg(Transform):
    """Decode the files that ``fl.collate`` packed to RGB images, uint8, each of its own size.

    >>> import io
    >>> from PIL import Image
    >>> from fastload import collate
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (4, 2), "red").save(file, "JPEG", quality=100)
    >>> DecodeJpeg(device="cpu")(collate([file.getvalue()]))[0].shape
    torch.Size([3, 2, 4])

    It stands first among the transforms. Files that are not baseline JPEGs (progressive, CMYK, turned by EXIF, PNG,
    WebP, …) have been decoded in the worker, with Pillow; they come along. docs/decoding.md tells which decoder does
    what.

    Args:
        on_error: what becomes of a file that cannot be decoded. "raise": ``BadImageError`` with the names of those in
            the batch; "skip": the sample is left out, with its label and all that came with it; "zero": a black image
            takes its place. Those skipped or zeroed are counted in ``PrefetchLoader.stats``; the first is warned of.
        device: where to decode; by default where the ``PrefetchLoader`` brings its batches, and the current accelerator
            without one.

    Raises:
        ValueError: ``on_error`` is none of the three.
    """

    def __init__(self, on_error: str = "raise", *, device: torch.device | str | None = None) -> None:
        if on_error not in POLICIES:
            raise ValueError(f"on_error must be one of {POLICIES}; got {on_error!r}")
        self.on_error = on_error
        self.device = None if device is None else torch.device(device)
        self._warned = False

    def __repr__(self) -> str:
        return f"DecodeJpeg(on_error={self.on_error!r})"

    def run(self, batch: Batch, key: Key) -> None:  # noqa: ARG002  (nothing is drawn)
        if batch.is_decoded:  # by another thread, ahead of the rest
            batch.is_decoded = False  # for a second T.DecodeJpeg there is nothing left
            return
        if not isinstance(batch.images, EncodedImages):
            raise TypeError(
                f"T.DecodeJpeg decodes files packed by fl.collate; got {type(batch.images).__name__}: pass "
                "collate_fn=fl.collate to the DataLoader, or leave out T.DecodeJpeg"
            )
        files = batch.images
        images, problems, counts = decode(files, self.device or batch.device)
        batch.counts.update(counts)
        if problems:
            self._judge(files, problems)
            batch.counts["skipped" if self.on_error == "skip" else "zeroed"] = len(problems)
        if problems and self.on_error == "skip":
            kept = np.setdiff1d(np.arange(len(files)), list(problems))
            batch.kept = torch.from_numpy(kept)
            images = images.take(batch.kept) if len(kept) else images
        batch.images = images

    def _judge(self, files: EncodedImages, problems: dict[int, str]) -> None:
        told = "; ".join(f"{files.names[index]}: {problem}" for index, problem in sorted(problems.items()))
        if self.on_error == "raise":
            raise BadImageError(f"cannot decode {told}. Pass T.DecodeJpeg(on_error='skip') to go on without such files")
        if not self._warned:
            self._warned = True
            done = "left out" if self.on_error == "skip" else "replaced by black images"
            warnings.warn(f"files that cannot be decoded are {done}; the first: {told}", UserWarning, stacklevel=2)

    def sample(self, sizes: torch.Tensor, key: Key) -> None:  # noqa: ARG002
        return None

    def record(self, work: LazyImages, parameters: None) -> None:  # noqa: ARG002
        raise TypeError("T.DecodeJpeg stands first among the transforms: there is nothing left to decode here")

"""``DecodeJpeg``: files to pixels, on the device if it can decode JPEG, else on the CPU."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from fastload.arguments import chosen, device_of
from fastload.data.encoded import SAY_UPRIGHT, EncodedImages
from fastload.decode.device import decode
from fastload.structure.targets import first_target
from fastload.structure.tree import Tree, name_of
from fastload.transforms.batch import Batch
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.transform import Transform

__all__ = ["BadImageError", "DecodeJpeg"]

POLICIES = ("raise", "skip", "zero")


class BadImageError(ValueError):
    """A file is not an image or is damaged; the message names it."""


class DecodeJpeg(Transform):
    """Decode the files that ``fl.collate`` packed to RGB images, uint8, each of its own size.

    >>> import io
    >>> from PIL import Image
    >>> from fastload import collate
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (4, 2), "red").save(file, "JPEG", quality=100)
    >>> DecodeJpeg(device="cpu")(collate([file.getvalue()]))[0].shape
    torch.Size([3, 2, 4])

    It must be the first transform. Workers have already decoded, with Pillow, all files that are not baseline JPEGs
    (progressive, CMYK, rotated by EXIF, PNG, WebP, …). docs/decoding.md lists which decoder takes which file.

    Images are turned upright by EXIF, which ``torchvision.datasets.ImageFolder`` ignores, unless ``fl.collate`` is told
    ``upright=False``. Grey of 16 bits is scaled to 8 bits (divided by 257 and rounded), where Pillow's own conversion
    makes all values above 255 white.

    Args:
        on_error: for files that cannot be decoded. "raise": raise ``BadImageError``, which names all such files of the
            batch; "skip": leave out the sample, with its label and other fields; "zero": use a black image.
            ``PrefetchLoader.stats.files`` counts skipped and zeroed files; the first batch with any gives a warning.
        device: where to decode; by default the device of the ``PrefetchLoader``, or the current accelerator without
            one.

    Raises:
        ValueError: ``on_error`` is not one of the three.
        BadImageError: when called, a file cannot be decoded, and ``on_error`` is "raise".
        TypeError: when called, the batch was not packed by ``fl.collate``.
        ValueError: in a loader, EXIF turns a file beside boxes, masks or keypoints, and ``upright`` is not stated.
    """

    is_before_views = True

    def __init__(self, on_error: str = "raise", *, device: torch.device | str | None = None) -> None:
        self.on_error = chosen("on_error", on_error, POLICIES)
        self.device = None if device is None else device_of(device)
        self._warned = False

    def __repr__(self) -> str:
        return f"DecodeJpeg(on_error={self.on_error!r})"

    def check(self, tree: Tree) -> None:
        files = (leaf for leaf in tree.leaves.values() if isinstance(leaf, EncodedImages) and leaf.turned)
        turned = next(files, None)
        target = None if turned is None else first_target(tree)
        if turned is not None and target is not None:
            index, orientation = next(iter(turned.turned.items()))
            raise ValueError(
                f"{turned.names[index]} is turned by EXIF (orientation {orientation}), and {name_of(target)}, "
                f"{type(tree.leaves[target]).__name__}, may describe it before or after: {SAY_UPRIGHT}"
            )

    def run(self, batch: Batch, key: Key) -> None:  # noqa: ARG002  (there is nothing to draw)
        if batch.is_decoded:  # ahead of time, on the decode stage's thread
            batch.is_decoded = False  # so that a second T.DecodeJpeg raises
            return
        if not isinstance(batch.images, EncodedImages):
            raise TypeError(
                f"T.DecodeJpeg decodes files packed by fl.collate; got {type(batch.images).__name__}: pass "
                "collate_fn=fl.collate to the DataLoader, or leave out T.DecodeJpeg"
            )
        files = batch.images
        images, problems, counts = decode(files, self.device or batch.device, batch.helper)
        batch.counts.update(counts)
        if problems:
            self._report(files, problems)
            batch.counts["skipped" if self.on_error == "skip" else "zeroed"] = len(problems)
        if problems and self.on_error == "skip":
            kept = np.setdiff1d(np.arange(len(files)), list(problems))
            batch.kept = torch.from_numpy(kept)
            images = images.take(batch.kept) if len(kept) else images
        batch.images = images

    def _report(self, files: EncodedImages, problems: dict[int, str]) -> None:
        reasons = "; ".join(f"{files.names[index]}: {problem}" for index, problem in sorted(problems.items()))
        if len(problems) == len(files) > 1:
            reasons = f"{reasons}. All files of the batch are bad: fl.collate(images=...) says which field is the image"
        if self.on_error == "raise":
            raise BadImageError(f"cannot decode {reasons}. Pass on_error='skip' to leave out such files")
        if not self._warned:
            self._warned = True
            action = "left out" if self.on_error == "skip" else "replaced by black images"
            warnings.warn(
                f"files that cannot be decoded are {action}; in the first such batch: {reasons}",
                UserWarning,
                stacklevel=2,
            )

    def sample(self, sizes: torch.Tensor, key: Key) -> None:  # noqa: ARG002
        return None

    def record(self, work: LazyImages, parameters: None) -> None:  # noqa: ARG002
        raise TypeError("T.DecodeJpeg must be the first transform: the images are decoded already")

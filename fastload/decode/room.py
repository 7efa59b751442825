"""``Room``: the files and images that nvJPEG's buffers have grown for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastload.data.jpegs import Jpegs

__all__ = ["NO_ROOM", "Room"]

FURTHER_UP = 8  # in a later batch a place may get a file as long as those of an eighth of the batch further up in this
MARGIN = 2  # and longer, but seldom by more than this factor
LONG = 8  # times the mean length of a batch's files; no room is made for longer ones, of which there may be few
LARGE = 2  # times the mean area of its images; nor for larger ones


@dataclass(frozen=True)
class Room:
    """The length of file, and the sizes of image, that each place of a batch has room for.

    nvJPEG has buffers for each place of a batch, one as long as the file and others for the image. When one of them
    grows, it waits for all that has been queued on the device, tens of milliseconds, in which nothing else can be
    queued. Images of much the same size come to each place sooner or later, so that buffers would grow for hundreds of
    batches. Therefore, all of them grow together when one would (docs/notes/first-steps.md).

    There is no room for the few files that are far longer, and images that are far larger, than the others, which would
    take the memory of so many of them. The places that these come to have to grow by themselves.

    Attributes:
        lengths: bytes of a file, int64 (N,) for batches of at most N files.
        sizes: of an image, as in ``Jpegs.sizes``, int64 (3, N).
    """

    lengths: np.ndarray
    sizes: np.ndarray

    def holds(self, files: Jpegs) -> bool:
        """Whether no buffer has to grow for these files, but for the few that are long or large."""
        if len(files) > len(self.lengths):
            return False
        has_room = files.lengths <= self.lengths[: len(files)]
        has_room &= (files.sizes <= self.sizes[:, : len(files)]).all(axis=0)
        return bool(has_room.all() or (has_room | _is_long(files) | _is_large(files)).all())

    def larger(self, files: Jpegs) -> tuple[Room, list[Jpegs]]:
        """The room for files like these, and the batches that nvJPEG has to decode before them to have it."""
        sizes = np.where(_is_long(files) | _is_large(files), 0, files.sizes)
        longer, largest = _longer_lengths(files), dict.fromkeys(_first_largest(files, each) for each in sizes)
        batches = [files.repeated(index, longer) for index in largest]
        lengths = np.max([each.lengths for each in (files, *batches)], axis=0)
        largest_sizes = np.repeat(sizes.max(axis=1, keepdims=True), len(files), axis=1)
        return Room(_more(self.lengths, lengths), _more(self.sizes, largest_sizes)), batches


NO_ROOM = Room(np.zeros(0, dtype=np.int64), np.zeros((3, 0), dtype=np.int64))


def _first_largest(files: Jpegs, sizes: np.ndarray) -> int:
    """Which file has the largest image; of several the first in memory, behind which most of it lies."""
    largest = np.flatnonzero(sizes == sizes.max())
    return int(largest[files.addresses[largest].argmin()])


def _more(known: np.ndarray, now: np.ndarray) -> np.ndarray:
    """The greater of both for each place, of which one may have fewer."""
    places = max(known.shape[-1], now.shape[-1])
    greater = np.zeros((*known.shape[:-1], places), dtype=np.int64)
    greater[..., : known.shape[-1]] = known
    first = greater[..., : now.shape[-1]]
    np.maximum(first, now, out=first)
    return greater


def _is_long(files: Jpegs) -> np.ndarray:
    is_long: np.ndarray = files.lengths > LONG * files.lengths.mean()
    return is_long


def _is_large(files: Jpegs) -> np.ndarray:
    planes = files.sizes[0]
    is_large: np.ndarray = planes > LARGE * planes.mean()
    return is_large


def _longer_lengths(files: Jpegs) -> np.ndarray:
    """For each place of a batch a length that its files seldom have in later ones."""
    places = np.arange(len(files))
    further_up = np.maximum(places - len(files) // FURTHER_UP, _is_long(files).sum())
    lengths: np.ndarray = MARGIN * files.lengths[further_up]
    return lengths

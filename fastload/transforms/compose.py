"""``Compose``: several transforms, run in as few passes over memory as possible."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import Any

import torch

from fastload.arguments import not_a_class, quoted
from fastload.structure.targets import first_target
from fastload.structure.tree import Tree, name_of
from fastload.transforms.batch import Batch
from fastload.transforms.explain import DryRun
from fastload.transforms.for_each_image import is_for_each_image
from fastload.transforms.foreign import keeps_places, remark_on_draws
from fastload.transforms.key import Key
from fastload.transforms.lazy import LazyImages
from fastload.transforms.normalize import Normalize
from fastload.transforms.transform import Transform

__all__ = ["Compose", "numbered"]

Step = Callable[..., Any]
HALVES = (torch.float16, torch.bfloat16)


class Compose(Transform):
    """Apply transforms one after another, in as few passes over memory as possible.

    >>> from fastload.transforms import Normalize, RandomHorizontalFlip
    >>> images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    >>> Compose([RandomHorizontalFlip(), Normalize([0.5] * 3, [0.5] * 3)])(images).unique()
    tensor([-1.])

    Neighbouring transforms of this package share passes, and values are not rounded to bytes between them: they are
    float32, or float16 if ``Normalize`` has a dtype of 16 bits. ``print`` shows the passes. Any callable that takes a
    batch of images and returns one can be in the list too: a module of torchvision v2 or kornia, or a compiled
    function. It shares no pass. Random transforms of torchvision draw once for a whole batch. Beside boxes, masks and
    keypoints a callable must be known to leave pixels in their places: :class:`Photometric`.

    Args:
        transforms: in order. One that is a ``Compose`` stands for its own, with their ``per_box``.
        per_box: the names of the fields beside ``BoundingBoxes`` that have a row for each box, or their places in a
            tuple. They lose the rows of boxes that are cropped away, and no other field does: ``["labels",
            "track_id"]``. By default they are "labels" and the like, see docs/targets.md. A warning tells of
            a name that no boxes of a batch have beside them, where boxes are removed.

    Raises:
        TypeError: an element of ``transforms`` is not callable, or a class, or ``per_box`` is one name and not several.
        ValueError: two of the transforms are ``Normalize``.
    """

    def __init__(self, transforms: Sequence[Step], *, per_box: Sequence[Hashable] | None = None) -> None:
        if isinstance(per_box, str) or not isinstance(per_box, Iterable | None):
            raise TypeError(f"per_box must be a sequence of names; got {per_box!r}: write [{per_box!r}]")
        steps = list(_flattened(transforms))
        _check_views(steps)
        _check_normalized_once(steps)
        self.transforms = _joined_to_views(steps)
        inner = (each.per_box for each in transforms if isinstance(each, Compose))
        self._has_said = False
        self._planned: tuple[list[Step], list[int], list[_Group]] | None = None
        self.per_box: Sequence[Hashable] | None = next(
            (names for names in (per_box, *inner) if names is not None), None
        )

    def __repr__(self) -> str:
        return f"Compose({self.transforms})"

    def __str__(self) -> str:
        dry_run = DryRun(_channels(self.transforms) or 3)
        self.explain(dry_run)
        return str(dry_run)

    def explain(self, dry_run: DryRun) -> None:
        """Add the transforms to a dry run."""
        for group in self._groups():
            if group.shares_passes:
                dry_run.together(group.transforms, group.store)
                continue
            for transform in group.transforms:
                dry_run.alone(transform)

    def check(self, tree: Tree) -> None:
        target = first_target(tree)
        for transform in self.transforms:
            if isinstance(transform, Transform):
                transform.check(tree)
            elif target is not None and not keeps_places(transform):
                kind = type(tree.leaves[target]).__name__
                raise TypeError(
                    f"{transform!r} may move pixels, and {name_of(target)}, {kind}, would not follow: use the "
                    "transform of that name in fastload.transforms, or apply it in the data set, or write "
                    "T.Photometric(...) around a function that leaves each pixel in its place"
                )

    def run(self, batch: Batch, key: Key) -> None:
        for group in self._groups():
            if batch.is_empty:
                return
            kept = key if batch.kept is None else key.for_rows(batch.kept)
            for part, part_key in batch.parts(kept, group.transforms):
                if group.shares_passes:
                    self._run_together(part, part_key, group)
                else:
                    self._run_each(part, part_key, group)

    def _run_each(self, batch: Batch, key: Key, group: _Group) -> None:
        for draw, transform in group.members:
            if isinstance(transform, Transform):
                transform.run(batch, key.for_draw(draw))
            else:
                self._say_what_is_drawn(transform, batch)
                batch.call(transform)

    def _say_what_is_drawn(self, function: Step, batch: Batch) -> None:
        remark = None if self._has_said or not batch.is_stacked else remark_on_draws(function)
        if remark is not None:
            self._has_said = True
            warnings.warn(remark, UserWarning, stacklevel=2)

    def _groups(self) -> list[_Group]:
        """Neighbours that share passes, or that do not; worked out again if somebody has changed ``transforms``.

        A container whose own list has changed draws another number of times.
        """
        counts = [getattr(each, "draw_count", 1) for each in self.transforms]
        if self._planned is None or self._planned[0] != self.transforms or self._planned[1] != counts:
            self._planned = list(self.transforms), counts, list(_grouped(self.transforms))
        return self._planned[2]

    def _run_together(self, batch: Batch, key: Key, group: _Group) -> None:
        with batch.work(channels=group.channels, store=group.store) as work:
            if len(group.counts) > 1:
                key = key.drawn(len(work.sizes), group.counts)
            for draw, transform in group.members:
                transform.add_to(work, key.for_draw(draw))

    @property
    def draw_count(self) -> int:
        return sum(getattr(transform, "draw_count", 1) for transform in self.transforms)

    def sample(self, sizes: torch.Tensor, key: Key) -> Key:  # noqa: ARG002
        """The key: each transform samples when its turn comes, for the sizes that images have by then."""
        return key

    def record(self, work: LazyImages, parameters: Key) -> None:
        """Record all transforms, as a container of this one asks for."""
        for draw, transform in numbered(self.transforms, parameters.draw):
            transform.add_to(work, parameters.for_draw(draw))


def numbered(transforms: Sequence[Step], first: int = 0) -> Iterator[tuple[int, Any]]:
    """Transforms with the index of the first draw of each, so that no two draw the same."""
    for transform in transforms:
        yield first, transform
        first += getattr(transform, "draw_count", 1)


@dataclass(frozen=True)
class _Group:
    """Neighbouring transforms that share passes; or one that does not.

    Attributes:
        members: each with the index of its first draw.
        transforms: the same alone.
        counts: by the index of its draw, how many uniform numbers each takes of an image; without those that take none.
        channels: the images' number of channels, if a transform tells it.
        store: the dtype of values between passes.
    """

    shares_passes: bool
    members: list[tuple[int, Any]]
    transforms: list[Any]
    counts: dict[int, int]
    channels: int | None
    store: torch.dtype


def _grouped(transforms: Sequence[Step]) -> Iterator[_Group]:
    for shares, group in groupby(numbered(transforms), key=lambda member: _shares_passes(member[1])):
        if shares:
            yield _group_of(list(group), shares_passes=True)
        else:  # one at a time: it may leave out samples, or make views
            yield from (_group_of([member], shares_passes=False) for member in group)


def _group_of(members: list[tuple[int, Any]], *, shares_passes: bool) -> _Group:
    transforms = [transform for _, transform in members]
    counts = {draw: getattr(transform, "uniform_count", 0) for draw, transform in members}
    drawing = {draw: count for draw, count in counts.items() if count}
    return _Group(shares_passes, members, transforms, drawing, _channels(transforms), _store(transforms))


def _shares_passes(transform: Step) -> bool:
    """Whether a transform records its work: one with a ``run`` of its own does not."""
    return isinstance(transform, Normalize) or (
        isinstance(transform, Transform) and type(transform).run is Transform.run
    )


def _check_views(transforms: Sequence[Step]) -> None:
    """Refuse what cannot be done to several views, each alone."""
    views = [place for place, each in enumerate(transforms) if getattr(each, "makes_views", False)]
    after = transforms[views[0] + 1 :] if views else []
    wrong = next((each for each in after if getattr(each, "is_before_views", False)), None)
    if wrong is not None:
        raise TypeError(f"{type(wrong).__name__} must come before MultiView; got {transforms!r}")


def _joined_to_views(transforms: list[Step]) -> list[Step]:
    """The transforms, with those behind MultiView in each of its views, where they join the last pass."""
    place = next((place for place, each in enumerate(transforms) if getattr(each, "makes_views", False)), None)
    if place is None:
        return transforms
    before, views, behind = transforms[:place], transforms[place], transforms[place + 1 :]
    # One that views cannot share would keep them from being made together.
    joining = list(takewhile(lambda each: _shares_passes(each) and is_for_each_image(each), behind))
    return [*before, views.then(joining), *behind[len(joining) :]]  # type: ignore[attr-defined]


def _check_normalized_once(transforms: Sequence[Step]) -> None:
    normalizations = [each for each in transforms if isinstance(each, Normalize)]
    if len(normalizations) > 1:
        raise ValueError(f"images would be normalised twice: leave out one; got {normalizations}")


def _normalize(transforms: Sequence[Step]) -> Normalize | None:
    return next((each for each in transforms if isinstance(each, Normalize)), None)


def _channels(transforms: Sequence[Step]) -> int | None:
    """The images' number of channels, if a transform tells it."""
    normalize = _normalize(transforms)
    return None if normalize is None else len(normalize.mean)


def _store(transforms: Sequence[Step]) -> torch.dtype:
    """The dtype of values between passes: of no more bytes than the result's."""
    normalize = _normalize(transforms)
    return torch.float16 if normalize is not None and normalize.dtype in HALVES else torch.float32


def _flattened(transforms: Sequence[Step]) -> Iterator[Step]:
    if not isinstance(transforms, Iterable):
        raise TypeError(
            f"transforms must be a list of transforms; got {quoted(transforms)}: write [{quoted(transforms)}]"
        )
    for transform in transforms:
        not_a_class("transforms must be instances", transform)
        if isinstance(transform, Compose):
            yield from transform.transforms
        elif callable(transform):
            yield transform
        else:
            raise TypeError(f"transforms must be callable on a batch of images; got {quoted(transform)}")

"""Boxes, masks and keypoints follow the pixels that they describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch

from fastload.structure.tree import Path, Tree, name_of, retyped
from fastload.targets.layout import TO_CORNERS, IsListed, Layout, Target, of_kind, one_size
from fastload.targets.rows import PerBox, loses_rows, row_count, rows_taken, warn_of_distant, warn_of_missing
from fastload.targets.stored import Stored, have_area
from fastload.transforms.geometry import rows_of

__all__ = ["Targets", "matrices_of"]

MIN_SIDE = 1.0  # pixels, of what is left of a box that is cut: the default of torchvision's SanitizeBoundingBoxes


@dataclass(frozen=True, eq=False)
class Targets:
    """The boxes and keypoints of a batch, on their way through the geometry of its images.

    >>> from torchvision.tv_tensors import BoundingBoxes
    >>> from fastload.structure.tree import tree_flatten
    >>> boxes = BoundingBoxes([[10, 10, 30, 20], [0, 0, 5, 5]], format="XYXY", canvas_size=(40, 40))
    >>> batch = [torch.zeros(3, 40, 40)], [{"boxes": boxes, "labels": torch.tensor([7, 8])}]
    >>> crop = torch.tensor([[[1.0, 0, -8], [0, 1, -8]]], dtype=torch.float64)
    >>> tree = tree_flatten(batch)
    >>> targets = Targets.of(tree).follow(crop, torch.tensor([[40, 40]]), torch.tensor([[20, 20]]))
    >>> {path: leaf.tolist() for path, leaf in targets.replaced(tree).leaves.items() if path[0] == 1}
    {(1, 0, 'boxes'): [[2, 2, 20, 12]], (1, 0, 'labels'): [7]}

    Targets are ``tv_tensors``: ``BoundingBoxes`` (XYXY, XYWH or CXCYWH), ``KeyPoints`` and ``Mask``; plain tensors are
    left alone, as by torchvision v2. The target of an image stands in a list with an entry for each image, at any depth
    and beside any others (``(images, [{"boxes": ...}, ...])``, ``{"image": [...], "boxes": [...]}``); or it is batched
    along its first dimension, one or more boxes an image; or the batch is a single image, to which all belongs.

    Coordinates are kept in float64 and rounded once, in :meth:`replaced`, to the dtype in which they came; integers are
    truncated, as by torchvision. The pixels of masks are moved by ``fastload.targets.masks``, on the images' device.
    """

    found: list[Target]
    samples: int
    corners: np.ndarray  # float64 (B, 2, 2): least and greatest x and y of the boxes of all images
    box_rows: np.ndarray  # int64 (B,): the image of each
    clips: np.ndarray  # bool (B,): whether it is clipped to the canvas
    had_area: np.ndarray  # bool (B,): as it came
    lost: np.ndarray  # bool (B,): whether a crop or warp cut it to less than a pixel
    points: np.ndarray  # float64 (P, 2)
    point_rows: np.ndarray
    sizes: torch.Tensor | None = None  # of the images, once targets have followed them
    images: Mapping[Path, torch.Tensor] | None = None  # where that is known
    is_listed: IsListed | None = None

    @classmethod
    def of(
        cls, tree: Tree, images: Mapping[Path, torch.Tensor] | None = None, is_listed: IsListed | None = None
    ) -> Targets | None:
        """The targets of a flattened batch; None if there are none.

        ``images`` are those of the batch, by their paths; by default those that ``find_images`` finds. ``is_listed``
        says of a list of the batch whether it has an entry for each sample, where that is known.

        Raises:
            TypeError: boxes are rotated; a target holds two tensors of boxes; or it cannot be told whose a target is.
        """
        layout = Layout.of(tree, images, is_listed)
        if layout is None:
            return None
        found = list(layout.targets())
        boxes, points = (of_kind(kind, found) for kind in ("BoundingBoxes", "KeyPoints"))
        _check_boxes(boxes)
        corners, box_rows = _flat(boxes, layout.samples, columns=4)
        places, point_rows = _flat(points, layout.samples, columns=2)
        clips = np.array([each.value.clamping_mode is not None for each in boxes], dtype=bool)
        return cls(
            found,
            layout.samples,
            corners.reshape(-1, 2, 2),
            box_rows,
            clips=clips.repeat([target.count for target in boxes]),
            had_area=have_area(corners),
            lost=np.zeros(len(corners), dtype=bool),
            points=places,
            point_rows=point_rows,
            images=images,
            is_listed=is_listed,
        )

    def follow(
        self,
        matrices: torch.Tensor,
        old_sizes: torch.Tensor,
        new_sizes: torch.Tensor,
        mirrored: torch.Tensor | None = None,
        *,
        clips: bool = True,
    ) -> Targets:
        """The targets after their images have been mapped.

        Boxes become the bounding boxes of their mapped corners, clipped to the canvas unless their ``clamping_mode`` is
        None, or ``clips`` is False; keypoints may come to lie outside of it. So does torchvision v2, which clips none
        where it flips and resizes, and besides takes keypoints for pixels where it mirrors (``W - 1 - x``) and for
        places where it does anything else: hence ``mirrored``.
        Each step of the geometry is best followed by a call of its own: where a map is made of several, boxes are
        clipped to the last canvas only, and keypoints are torchvision's only if it mirrors last.

        Args:
            matrices: float64 (N, 2, 3) on the CPU: where old coordinates (x, y) come to lie. Pixel i covers [i, i + 1).
            old_sizes: of the images before, heights and widths, int64 (N, 2), on the CPU.
            new_sizes: of the images after, likewise.
            mirrored: whether the map ends with mirroring along y and x, bool (N, 2): the last two columns of windows.
            clips: whether boxes are clipped.

        Raises:
            ValueError: ``matrices`` are not for these images, or a target has a canvas of another size than its image.
        """
        self._check(matrices, old_sizes)
        maps, limits = matrices.numpy(), new_sizes.numpy()[:, ::-1]
        corners = _mapped_corners(self.corners, maps[self.box_rows])
        inside = np.minimum(np.maximum(corners, 0), limits[self.box_rows, None])
        clipped = np.where(self.clips[:, None, None], inside, corners) if clips else corners
        # In float32, so that float64's rounding neither cuts a box nor makes less than a pixel of one.
        cut = (clipped.astype(np.float32) != corners.astype(np.float32)).any((1, 2)) & self.clips
        large = ((clipped[:, 1] - clipped[:, 0]).astype(np.float32) >= MIN_SIDE).all(1)
        points = _mapped(self.points, maps[self.point_rows])
        if mirrored is not None:
            points = points - mirrored.numpy()[self.point_rows, ::-1]
        return replace(self, corners=clipped, points=points, lost=self.lost | cut & ~large, sizes=new_sizes)

    def replaced(self, tree: Tree, per_box: PerBox = None) -> Tree:
        """The batch with boxes and keypoints as they are now, and without the boxes of which nothing is left.

        A box is removed if a step cut it at the image's border and left a side below one pixel; or if it had an area
        and has none as it is stored, in integers for example. Nothing else removes a box, however small. With it goes
        its row of the fields beside the boxes that have one for each, as :func:`fastload.targets.rows.loses_rows`
        tells by ``per_box``. No value is computed anew: ``area`` stays what it was, as in torchvision. Boxes batched
        along a first dimension keep all their rows.

        Raises:
            ValueError: batched targets, which have one canvas, belong to images that are of different sizes now.
        """
        if self.sizes is None:
            return tree
        boxes, points = (of_kind(kind, self.found) for kind in ("BoundingBoxes", "KeyPoints"))
        corners = Stored.of(self.corners.reshape(-1, 4), boxes)
        moved = tree.replaced(dict(self._typed(corners)) | dict(self._typed(Stored.of(self.points, points))))
        return moved.replaced(dict(self._dropped(moved, corners, per_box)))

    def _typed(self, stored: Stored) -> Iterator[tuple[Path, torch.Tensor]]:
        """Each tensor of boxes or of keypoints as it is now, with all its rows."""
        assert self.sizes is not None
        sizes = [(height, width) for height, width in self.sizes.tolist()]
        for target, values in stored.by_target():
            canvas = one_size(self.sizes, name_of(target.path)) if target.sample is None else sizes[target.sample]
            yield target.path, retyped(values, target.value, canvas_size=canvas)

    def _dropped(self, tree: Tree, boxes: Stored, per_box: PerBox) -> Iterator[tuple[Path, Any]]:
        """The fields of the images that have lost boxes, without the rows of these."""
        keep = ~self.lost & (boxes.have_area() | ~self.had_area)
        if keep.all():
            return
        parts = zip(boxes.targets, np.split(keep, np.cumsum(boxes.counts)[:-1]), strict=True)
        losing = [(target, kept) for target, kept in parts if target.sample is not None and not kept.all()]
        layout = Layout.of(tree, self.images, self.is_listed) if losing else None
        if layout is None:
            return
        fields = layout.fields()
        owners = {(target.sample, target.owner): target.count for target in boxes.targets if target.sample is not None}
        warn_of_missing(per_box, chain.from_iterable(fields[owner] for owner in owners))
        counts = {sample: count for (sample, _), count in owners.items()}
        if len(counts) == len(owners):
            warn_of_distant({place: each for place, each in fields.items() if place not in owners}, counts, per_box)
        for target, kept in losing:
            beside, rows = fields[target.sample, target.owner], kept.nonzero()[0]
            own = next(field for field in beside if field.path == target.path)
            for field in beside:
                if row_count(field.value) == len(kept) and loses_rows(field, own, per_box):
                    yield field.path, rows_taken(field.value, rows)

    def _check(self, matrices: torch.Tensor, old_sizes: torch.Tensor) -> None:
        if matrices.shape != (self.samples, 2, 3) or old_sizes.shape != (self.samples, 2):
            raise ValueError(
                f"the batch has {self.samples} images, and needs matrices ({self.samples}, 2, 3) and sizes "
                f"({self.samples}, 2); got {tuple(matrices.shape)} and {tuple(old_sizes.shape)}"
            )
        if self.sizes is not None:
            if not torch.equal(old_sizes, self.sizes):
                raise ValueError(f"the images are {self.sizes.tolist()} now; got old_sizes {old_sizes.tolist()}")
            return
        sizes = [tuple(size) for size in old_sizes.tolist()]
        for target in self.found:
            own = sizes if target.sample is None else [sizes[target.sample]]
            wrong = next((size for size in own if size != target.canvas), None)
            if wrong is not None:
                raise ValueError(
                    f"{name_of(target.path)} is for an image of height and width {target.canvas}, and its image is "
                    f"{wrong}: targets must describe the images beside which they stand{_if_turned(wrong, target)}"
                )


def _if_turned(size: tuple[int, int], target: Target) -> str:
    is_turned = size == target.canvas[::-1]
    return "; if EXIF turned a file, fl.collate(upright=False) leaves it as it is stored" if is_turned else ""


def matrices_of(windows: torch.Tensor, size: tuple[int, int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The maps that windows mean, float64 (N, 2, 3), and the images' new sizes, int64 (N, 2), as ``follow`` takes them.

    >>> halved = torch.tensor([[0, 0, 4, 8, 2, 4, 0, 0, 0, 0]], dtype=torch.int32)
    >>> matrices_of(halved, (2, 4))[0].tolist()
    [[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]]

    ``windows``, int32 (N, 10), and ``size`` are those of :func:`fastload.kernels.resample`.
    """
    sizes = rows_of(size, len(windows))
    box, virtual, offset, flip = np.split(windows.numpy().astype(np.float64), [4, 6, 8], axis=1)
    scale = virtual / box[:, 2:]
    sign = 1 - 2 * flip
    shift = sign * (-box[:, :2] * scale - offset) + flip * sizes.numpy()
    matrices = np.zeros((len(windows), 2, 3))
    matrices[:, [1, 0], [1, 0]] = sign * scale  # of y and of x
    matrices[:, ::-1, 2] = shift
    return torch.from_numpy(matrices), sizes


def _mapped(points: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Points (M, 2), each by its own matrix."""
    mapped: np.ndarray = (matrices[:, :, :2] @ points[:, :, None])[:, :, 0] + matrices[:, :, 2]
    return mapped


def _mapped_corners(corners: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """The bounding boxes of mapped boxes: their centres are mapped, their sides reach as far as the map's do."""
    centres = _mapped(corners.mean(1), matrices)
    halves = (np.abs(matrices[:, :, :2]) @ (corners[:, 1] - corners[:, 0])[:, :, None])[:, :, 0] / 2
    return np.stack([centres - halves, centres + halves], axis=1)


def _flat(targets: list[Target], samples: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """The coordinates of all targets of a kind, float64 (M, columns), and the image of each row."""
    coordinates = [np.empty((0, columns)), *(target.coordinates for target in targets)]
    rows = [np.empty(0, dtype=np.int64), *(target.rows(target.count, samples) for target in targets)]
    return np.concatenate(coordinates), np.concatenate(rows)


def _check_boxes(boxes: list[Target]) -> None:
    rotated = next((target for target in boxes if target.value.format.name not in TO_CORNERS), None)
    if rotated is not None:
        raise TypeError(
            f"{name_of(rotated.path)} has the format {rotated.value.format.name}; rotated boxes do not follow: give "
            "XYXY, XYWH or CXCYWH, or move pixels in the workers, with torchvision.transforms.v2"
        )
    owners: dict[tuple[int | None, Path], Path] = {}
    for target in boxes:
        if target.sample is None:
            continue
        other = owners.setdefault((target.sample, target.owner), target.path)
        if other is not target.path:
            raise TypeError(
                f"{name_of(other)} and {name_of(target.path)} are both BoundingBoxes of one target, and rows are "
                "dropped by one: join them, or put one into a dictionary of its own"
            )

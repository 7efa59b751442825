"""Boxes, masks and keypoints follow the pixels that they describe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fastload.structure.loaded_types import is_vision
from fastload.structure.tree import Path, Tree, name_of, retyped
from fastload.targets.layout import FROM_CORNERS, TO_CORNERS, Layout, Target, of_kind, one_size
from fastload.targets.rows import PerBox, loses_rows, rows_taken

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
    corners: torch.Tensor  # float64 (B, 2, 2): least and greatest x and y of the boxes of all images
    box_rows: torch.Tensor  # int64 (B,): the image of each
    clips: torch.Tensor  # bool (B,): whether it is clipped to the canvas
    lost: torch.Tensor  # bool (B,): whether a crop or warp cut it to less than a pixel
    points: torch.Tensor  # float64 (P, 2)
    point_rows: torch.Tensor
    sizes: torch.Tensor | None = None  # of the images, once targets have followed them
    images: Mapping[Path, torch.Tensor] | None = None  # where that is known

    @classmethod
    def of(cls, tree: Tree, images: Mapping[Path, torch.Tensor] | None = None) -> Targets | None:
        """The targets of a flattened batch; None if there are none.

        ``images`` are those of the batch, by their paths; by default those that ``find_images`` finds.

        Raises:
            TypeError: boxes are rotated; a target holds two tensors of boxes; or it cannot be told whose a target is.
        """
        layout = Layout.of(tree, images)
        if layout is None:
            return None
        found = list(layout.targets())
        boxes, points = (of_kind(kind, found) for kind in ("BoundingBoxes", "KeyPoints"))
        _check_boxes(boxes)
        coordinates, box_rows = _flat(boxes, layout.samples, columns=4)
        corners = coordinates.view(-1, 2, 2)
        places, point_rows = _flat(points, layout.samples, columns=2)
        clips = [torch.tensor(each.value.clamping_mode is not None).expand(each.count) for each in boxes]
        return cls(
            found,
            layout.samples,
            corners,
            box_rows,
            clips=torch.cat([torch.empty(0, dtype=torch.bool), *clips]),
            lost=torch.zeros(len(corners), dtype=torch.bool),
            points=places,
            point_rows=point_rows,
            images=images,
        )

    def follow(
        self,
        matrices: torch.Tensor,
        old_sizes: torch.Tensor,
        new_sizes: torch.Tensor,
        mirrored: torch.Tensor | None = None,
    ) -> Targets:
        """The targets after their images have been mapped.

        Boxes become the bounding boxes of their mapped corners, clipped to the canvas unless their ``clamping_mode`` is
        None; keypoints may come to lie outside of it. So does torchvision v2, which besides takes keypoints for pixels
        where it mirrors (``W - 1 - x``) and for places where it does anything else: hence ``mirrored``.
        Each step of the geometry is best followed by a call of its own: where a map is made of several, boxes are
        clipped to the last canvas only, and keypoints are torchvision's only if it mirrors last.

        Args:
            matrices: float64 (N, 2, 3) on the CPU: where old coordinates (x, y) come to lie. Pixel i covers [i, i + 1).
            old_sizes: of the images before, heights and widths, int64 (N, 2), on the CPU.
            new_sizes: of the images after, likewise.
            mirrored: whether the map ends with mirroring along y and x, bool (N, 2): the last two columns of windows.

        Raises:
            ValueError: ``matrices`` are not for these images, or a target has a canvas of another size than its image.
        """
        self._check(matrices, old_sizes)
        limits = new_sizes.flip(1).double()
        corners = _mapped_corners(self.corners, matrices[self.box_rows])
        clipped = torch.where(
            self.clips.view(-1, 1, 1), corners.clamp(min=0).minimum(limits[self.box_rows, None]), corners
        )
        # In float32, so that float64's rounding neither cuts a box nor makes less than a pixel of one.
        cut = (clipped.float() != corners.float()).flatten(1).any(1) & self.clips
        large = ((clipped[:, 1] - clipped[:, 0]).float() >= MIN_SIDE).all(1)
        points = _mapped(self.points, matrices[self.point_rows])
        if mirrored is not None:
            points = points - mirrored.flip(1)[self.point_rows].double()
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
        moved = tree.replaced(dict(self._values()))
        return moved.replaced(dict(self._dropped(moved, per_box)))

    def _dropped(self, tree: Tree, per_box: PerBox) -> Iterator[tuple[Path, Any]]:
        """The fields of the images that have lost boxes, without the rows of these."""
        losers = [(target, keep) for target, keep in self._kept(tree) if not keep.all()]
        layout = Layout.of(tree, self.images) if losers else None
        fields = layout.fields() if layout else {}
        for target, keep in losers:
            rows, beside = keep.nonzero().flatten(), fields[target.sample, target.owner]
            own = next(field for field in beside if field.path == target.path)
            for field in beside:
                if _length(field.value) == len(keep) and loses_rows(field, own, per_box):
                    yield field.path, rows_taken(field.value, rows)

    def _kept(self, tree: Tree) -> Iterator[tuple[Target, torch.Tensor]]:
        """The boxes of each image, and which of them stay, bool (boxes,)."""
        targets = of_kind("BoundingBoxes", self.found)
        for target, lost in zip(targets, torch.split(self.lost, [each.count for each in targets]), strict=True):
            if target.sample is not None:
                stored = replace(target, value=tree.leaves[target.path])
                yield target, ~lost & (_have_area(stored.coordinates) | ~_have_area(target.coordinates))

    def _values(self) -> Iterator[tuple[Path, torch.Tensor]]:
        """Each tensor of boxes and of keypoints as it is now, with all its rows."""
        for kind, coordinates in (("BoundingBoxes", self.corners.flatten(1)), ("KeyPoints", self.points)):
            targets = of_kind(kind, self.found)
            for target, own in zip(targets, torch.split(coordinates, [each.count for each in targets]), strict=True):
                yield target.path, self._typed(own, target)

    def _typed(self, values: torch.Tensor, target: Target) -> torch.Tensor:
        like: torch.Tensor = target.value
        if is_vision(like, "BoundingBoxes"):
            values = values @ FROM_CORNERS[target.value.format.name]
        if not like.is_floating_point():
            values = values.float()  # where 2.9999999999999996 is 3: integers are truncated
        return retyped(values.to(like.dtype).view(like.shape).to(like.device), like, canvas_size=self._canvas(target))

    def _canvas(self, target: Target) -> tuple[int, int]:
        assert self.sizes is not None
        sizes = self.sizes if target.sample is None else self.sizes[target.sample, None]
        return one_size(sizes, name_of(target.path))

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
                    f"{wrong}: targets must describe the images beside which they stand"
                )


def matrices_of(windows: torch.Tensor, size: tuple[int, int] | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The maps that windows mean, float64 (N, 2, 3), and the images' new sizes, int64 (N, 2), as ``follow`` takes them.

    >>> halved = torch.tensor([[0, 0, 4, 8, 2, 4, 0, 0, 0, 0]], dtype=torch.int32)
    >>> matrices_of(halved, (2, 4))[0].tolist()
    [[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]]

    ``windows``, int32 (N, 10), and ``size`` are those of :func:`fastload.kernels.resample`.
    """
    box, virtual, offset, flip = torch.split(windows.double(), [4, 2, 2, 2], dim=1)
    sizes = size if isinstance(size, torch.Tensor) else torch.tensor([size]).repeat(len(windows), 1)
    scale = virtual / box[:, 2:]
    sign = 1 - 2 * flip
    shift = sign * (-box[:, :2] * scale - offset) + flip * sizes
    matrices = torch.cat([torch.diag_embed((sign * scale).flip(1)), shift.flip(1)[:, :, None]], dim=2)
    return matrices, sizes


def _mapped(points: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Points (M, 2), each by its own matrix."""
    return (matrices[:, :, :2] @ points[:, :, None])[:, :, 0] + matrices[:, :, 2]


def _mapped_corners(corners: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """The bounding boxes of mapped boxes: their centres are mapped, their sides reach as far as the map's do."""
    centres = _mapped(corners.mean(1), matrices)
    halves = (matrices[:, :, :2].abs() @ (corners[:, 1] - corners[:, 0])[:, :, None])[:, :, 0] / 2
    return torch.stack([centres - halves, centres + halves], dim=1)


def _have_area(boxes: torch.Tensor) -> torch.Tensor:
    return (boxes[:, 2:] > boxes[:, :2]).all(1)


def _length(value: Any) -> int | None:
    """How many rows a field has; None for what has none."""
    if isinstance(value, torch.Tensor):
        least = len("KHW") if is_vision(value, "Mask") else 1
        return value.shape[0] if value.ndim >= least else None
    return len(value) if isinstance(value, MutableSequence) else None


def _flat(targets: list[Target], samples: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The coordinates of all targets of a kind, float64 (M, columns), and the image of each row."""
    coordinates = [torch.empty(0, columns, dtype=torch.float64), *(target.coordinates for target in targets)]
    rows = [torch.empty(0, dtype=torch.int64), *(target.rows(target.count, samples) for target in targets)]
    return torch.cat(coordinates), torch.cat(rows)


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

"""Boxes, keypoints and masks follow the pixels as torchvision v2's do, and dropped boxes take their rows with them."""

from collections import UserList
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2.functional._geometry import _get_inverse_affine_matrix
from torchvision.tv_tensors import BoundingBoxes, KeyPoints, Mask

import fastload as fl
from fastload import transforms as T
from fastload.structure.tree import tensors, tree_flatten, tree_unflatten
from fastload.targets.boxes import Targets, matrices_of
from fastload.targets.masks import map_masks, resample_masks
from tests.counts import examples

FORMATS = ("XYXY", "XYWH", "CXCYWH")
EPS = torch.finfo(torch.float32).eps
KEEPING = ("resize", "horizontal_flip", "vertical_flip")  # torchvision clips boxes in the others
CASES = examples(full=500, here=100)

sides = st.integers(1, 40)
seeds = st.integers(0, 2**31)
sizes = st.tuples(sides, sides)


def targets_of(batch):
    return Targets.of(tree_flatten(batch))


def moved_batch(targets, batch):
    return tree_unflatten(targets.replaced(tree_flatten(batch)))


def with_masks(function, batch, *parameters):
    return tree_unflatten(function(tree_flatten(batch), *parameters))


@dataclass
class Step:
    """One geometric step: the window or map that we are given, and what torchvision does."""

    name: str
    old: tuple[int, int]
    new: tuple[int, int]
    matrices: torch.Tensor
    mirrored: torch.Tensor
    run: object
    window: torch.Tensor | None = None

    def follow(self, targets, samples=1):
        old, new = (torch.tensor([size]).repeat(samples, 1) for size in (self.old, self.new))
        matrices, mirrored = self.matrices.repeat(samples, 1, 1), self.mirrored.repeat(samples, 1)
        return targets.follow(matrices, old, new, mirrored, clips=self.name not in KEEPING)


def by_window(name, old, new, window, run):
    window = torch.tensor([window], dtype=torch.int32)
    return Step(name, old, new, matrices_of(window, new)[0], window[:, 8:].bool(), run, window)


@st.composite
def steps(draw, *names):
    name, (h, w) = draw(st.sampled_from(names)), draw(sizes)
    flips = {"horizontal_flip": (0, 1), "vertical_flip": (1, 0)}
    if name in flips:
        return by_window(name, (h, w), (h, w), [0, 0, h, w, h, w, 0, 0, *flips[name]], getattr(F, name))
    if name in ("affine", "rotate"):
        return draw(maps(name, (h, w)))
    size = draw(sizes)
    if name == "resize":
        return by_window(name, (h, w), size, [0, 0, h, w, *size, 0, 0, 0, 0], lambda x: F.resize(x, list(size)))
    height, width = draw(sizes)
    # Torchvision crops what ends left of or above the image wrongly: it counts a negative index from the end.
    box = (draw(st.integers(-min(9, height), h)), draw(st.integers(-min(9, width), w)), height, width)
    if name == "crop":
        return by_window(name, (h, w), box[2:], [0, 0, h, w, h, w, *box[:2], 0, 0], lambda x: F.crop(x, *box))
    return by_window(name, (h, w), size, [*box, *size, 0, 0, 0, 0], lambda x: F.resized_crop(x, *box, list(size)))


@st.composite
def maps(draw, name, size):
    angle = draw(st.floats(-180, 180))
    options = {"translate": [0.0, 0.0], "scale": 1.0, "shear": [0.0, 0.0]}
    if name == "affine":
        shift, shear = st.floats(-20, 20), st.floats(-40, 40)
        options = {
            "translate": [draw(shift), draw(shift)],
            "scale": draw(st.floats(0.25, 4)),
            "shear": [draw(shear), draw(shear)],
        }
    centre = [size[1] / 2, size[0] / 2]
    matrix = _get_inverse_affine_matrix(centre, angle, **options, inverted=False)
    matrices = torch.tensor(matrix, dtype=torch.float64).view(1, 2, 3)

    def run(x):
        return F.affine(x, angle, **options) if name == "affine" else F.rotate(x, -angle)

    return Step(name, size, size, matrices, torch.zeros(1, 2, dtype=torch.bool), run)


def random_boxes(size, count, seed, layout, dtype):
    """Some inside the image, some across its border, some beyond, some empty or inside out."""
    generator = torch.Generator().manual_seed(seed)
    reach = torch.tensor([size[1], size[0]]) * 2
    start = torch.rand(count, 2, generator=generator) * reach - reach / 4
    extent = (torch.rand(count, 2, generator=generator) - 0.1) * reach / 2
    if not dtype.is_floating_point:
        start, extent = start.round(), extent.round()
    boxes = torch.cat([start, start + extent], dim=1).to(dtype)
    boxes = F.convert_bounding_box_format(boxes, "XYXY", tv_tensors.BoundingBoxFormat[layout])
    return BoundingBoxes(boxes, format=layout, canvas_size=size)


def corners(boxes):
    return F.convert_bounding_box_format(
        boxes.as_subclass(torch.Tensor).double(), boxes.format, tv_tensors.BoundingBoxFormat.XYXY
    )


def rounding(*tensors):
    """Torchvision computes in float32: some ten roundings, of terms as large as what goes in or comes out."""
    return 10 * EPS * max([1.0, *(float(tensor.abs().max()) for tensor in tensors if tensor.numel())])


def check_boxes(step, boxes, atol=None):
    batch = torch.zeros(1, 3, *step.old), [{"boxes": boxes, "labels": torch.arange(len(boxes))}]
    target = moved_batch(step.follow(targets_of(batch)), batch)[1][0]
    moved, labels = target["boxes"], target["labels"]
    expected = step.run(boxes)
    unclipped = step.run(tv_tensors.wrap(boxes.as_subclass(torch.Tensor), like=boxes, clamping_mode=None))

    assert type(moved) is BoundingBoxes
    assert (moved.format, moved.dtype, moved.canvas_size) == (boxes.format, boxes.dtype, step.new)
    atol = rounding(corners(boxes), step.matrices) * (1 + float(step.matrices.abs().max())) if atol is None else atol
    proper = shortest(boxes) >= 0  # of a box that is inside out torchvision makes one that is not
    torch.testing.assert_close(
        moved.as_subclass(torch.Tensor)[proper[labels]].double(),
        expected.as_subclass(torch.Tensor)[labels][proper[labels]].double(),
        atol=atol,
        rtol=0,
    )

    sides = shortest(expected)
    beyond = (corners(unclipped) - corners(expected)).abs().amax(1)
    gone = ((beyond > 0) & (sides < 1)) | ((shortest(boxes) > 0) & (sides <= 0))
    kept = torch.zeros(len(boxes), dtype=torch.bool).index_fill(0, labels, True)
    doubtful = ((sides - 1).abs() < 2 * atol) | (sides.abs() < 2 * atol) | ((beyond > 0) & (beyond < 2 * atol))
    decided = proper & ~doubtful  # the others are so but for rounding
    assert torch.equal(kept[decided], ~gone[decided])


def shortest(boxes):
    return (corners(boxes)[:, 2:] - corners(boxes)[:, :2]).amin(1)


@CASES
@given(
    step=steps("crop", "resize", "resized_crop", "horizontal_flip", "vertical_flip", "affine", "rotate"),
    layout=st.sampled_from(FORMATS),
    count=st.integers(0, 6),
    seed=seeds,
)
def test_boxes_are_torchvisions(step, layout, count, seed):
    check_boxes(step, random_boxes(step.old, count, seed, layout, torch.float32))


@CASES
@given(
    step=steps("crop", "horizontal_flip", "vertical_flip"),
    layout=st.sampled_from(FORMATS),
    count=st.integers(0, 6),
    seed=seeds,
)
def test_boxes_of_integers_are_torchvisions_where_nothing_is_scaled(step, layout, count, seed):
    check_boxes(step, random_boxes(step.old, count, seed, layout, torch.int64), atol=0)


@CASES
@given(step=steps("resize", "resized_crop", "affine", "rotate"), count=st.integers(0, 6), seed=seeds)
def test_boxes_of_integers_are_truncated_as_torchvisions(step, count, seed):
    # Torchvision truncates products of float32, in which a whole number may have become a little less.
    check_boxes(step, random_boxes(step.old, count, seed, "XYXY", torch.int64), atol=1)


@CASES
@given(
    step=steps("crop", "resize", "resized_crop", "horizontal_flip", "vertical_flip", "affine", "rotate"),
    shape=st.sampled_from([(0, 2), (3, 2), (2, 4, 2), (2, 3, 2, 2)]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.int64]),
    seed=seeds,
)
def test_keypoints_are_torchvisions_also_outside_of_the_canvas(step, shape, dtype, seed):
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 120 - 40
    points = KeyPoints(numbers.to(dtype), canvas_size=step.old)
    batch = torch.zeros(1, 3, *step.old), [points]
    moved = moved_batch(step.follow(targets_of(batch)), batch)[1][0]
    expected = step.run(points)
    assert type(moved) is KeyPoints
    assert (moved.dtype, moved.shape, moved.canvas_size) == (dtype, expected.shape, step.new)
    scaled = step.name not in ("crop", "horizontal_flip", "vertical_flip")
    reach = rounding(points.double(), step.matrices) * (1 + float(step.matrices.abs().max()))
    atol = reach if dtype.is_floating_point else float(scaled)
    torch.testing.assert_close(
        moved.as_subclass(torch.Tensor).double(), expected.as_subclass(torch.Tensor).double(), atol=atol, rtol=0
    )


@CASES
@given(
    step=steps("crop", "resize", "resized_crop", "horizontal_flip", "vertical_flip"),
    leading=st.sampled_from([(), (0,), (1,), (3,), (2, 2)]),
    dtype=st.sampled_from([torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32]),
    seed=seeds,
)
def test_masks_are_torchvisions(step, leading, dtype, seed):
    values = torch.randint(0, 1000, (*leading, *step.old), generator=torch.Generator().manual_seed(seed))
    mask = Mask(values.to(dtype))
    batch = [torch.zeros(3, *step.old)], [{"masks": mask}]
    moved = with_masks(resample_masks, batch, step.window, step.new)[1][0]["masks"]
    expected = step.run(mask)
    assert type(moved) is Mask
    assert moved.dtype == dtype
    assert moved.shape == (*leading, *step.new)
    assert torch.equal(moved.as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))


@CASES
@given(
    size=sizes,
    box=st.tuples(st.integers(-5, 5), st.integers(-5, 5), sides, sides),
    virtual=sizes,
    crop=st.tuples(st.integers(-9, 9), st.integers(-9, 9), sides, sides),
    flips=st.tuples(st.booleans(), st.booleans()),
)
def test_matrices_of_windows_are_their_steps_one_after_another(size, box, virtual, crop, flips):
    window = torch.tensor([[*box, *virtual, *crop[:2], *flips]], dtype=torch.int32)
    matrices, new_sizes = matrices_of(window, crop[2:])
    assert new_sizes.tolist() == [list(crop[2:])]
    points = KeyPoints(torch.tensor([[0.0, 0.0], [7.5, -3.0]], dtype=torch.float64), canvas_size=size)
    expected = F.crop(F.resized_crop(points, *box, list(virtual)), *crop)
    for flipped, flip in zip(flips, (F.vertical_flip, F.horizontal_flip), strict=True):
        expected = flip(expected) if flipped else expected
    batch = torch.zeros(1, 3, *size), [points]
    moved = moved_batch(
        targets_of(batch).follow(matrices, torch.tensor([size]), new_sizes, window[:, 8:].bool()), batch
    )
    torch.testing.assert_close(
        moved[1][0].as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor), atol=rounding(matrices) * 20, rtol=0
    )


def test_steps_in_turn_are_torchvisions_whatever_their_order():
    size = (30, 40)
    boxes = random_boxes(size, 8, 0, "XYXY", torch.float32)
    points = KeyPoints(torch.rand(8, 2) * 30, canvas_size=size)
    batch = [torch.zeros(3, *size)], [{"boxes": boxes, "points": points, "labels": torch.arange(8)}]
    box, new = (3, 4, 20, 25), (17, 50)
    flip = by_window("flip", size, size, [0, 0, *size, *size, 0, 0, 0, 1], F.horizontal_flip)
    crop = by_window("crop", size, new, [*box, *new, 0, 0, 0, 0], lambda x: F.resized_crop(x, *box, list(new)))
    target = moved_batch(crop.follow(flip.follow(targets_of(batch))), batch)[1][0]
    for key in ("boxes", "points"):
        expected = crop.run(flip.run(batch[1][0][key])).as_subclass(torch.Tensor)[target["labels"]]
        torch.testing.assert_close(target[key].as_subclass(torch.Tensor), expected)


# Whose targets are whose


class Pair(NamedTuple):
    boxes: torch.Tensor
    labels: torch.Tensor


@dataclass
class Sample:
    boxes: torch.Tensor
    labels: torch.Tensor


SIZES = [(20, 30), (40, 25)]
LEFT = Step("half", (0, 0), (0, 0), torch.tensor([[[1.0, 0, 0], [0, 1, 0]]]).double(), torch.zeros(1, 2) > 0, None)


def left_half(targets, old=SIZES):
    """The images have been cut to their left ten columns."""
    new = torch.tensor([(h, 10) for h, _ in old])
    return targets.follow(LEFT.matrices.repeat(len(old), 1, 1), torch.tensor(old), new)


def fields(image):
    """A box that stays, and two that go, of different images different ones."""
    rows = [[0.0, 0, 5, 5], [15.0, 0, 18, 5], [9.5, 0, 20, 5]]
    order = [0, 1, 2] if image == 0 else [1, 0, 2]
    boxes = BoundingBoxes(torch.tensor(rows)[order], format="XYXY", canvas_size=SIZES[image])
    return boxes, torch.tensor([10, 11, 12])[order]


LAYOUTS = {
    "dictionaries": lambda images, targets: (images, [{"boxes": b, "labels": t} for b, t in targets]),
    "tuples of them": lambda images, targets: (tuple(images), tuple({"boxes": b, "labels": t} for b, t in targets)),
    "named tuples": lambda images, targets: (images, [Pair(*target) for target in targets]),
    "dataclasses": lambda images, targets: {"image": images, "target": [Sample(*target) for target in targets]},
    "a mapping": lambda images, targets: {
        "image": images,
        "x": {"target": [{"boxes": b, "labels": t} for b, t in targets]},
    },
    "columns": lambda images, targets: {
        "image": images,
        "boxes": [b for b, _ in targets],
        "labels": [t for _, t in targets],
    },
    "columns in a tuple": lambda images, targets: (images, *(list(column) for column in zip(*targets, strict=True))),
    "a pair of columns": lambda images, targets: (images, tuple(list(column) for column in zip(*targets, strict=True))),
    "another list": lambda images, targets: (images, UserList({"boxes": b, "labels": t} for b, t in targets)),
    "one batch of images": lambda images, targets: (
        torch.zeros(len(images), 3, 4, 4),
        [Pair(*target) for target in targets],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_image_keeps_its_own(layout):
    images = [torch.zeros(3, *size) for size in SIZES]
    batch = LAYOUTS[layout](images, [fields(0), fields(1)])
    replaced = moved_batch(left_half(targets_of(batch)), batch)
    assert type(replaced) is type(batch)
    boxes, labels = found(replaced, BoundingBoxes), [each for each in found(replaced, torch.Tensor) if each.ndim == 1]
    assert [each.tolist() for each in boxes] == [[[0, 0, 5, 5]]] * 2
    assert [each.canvas_size for each in boxes] == [(20, 10), (40, 10)]
    assert [each.tolist() for each in labels] == [[10]] * 2
    assert all(len(each) == 3 for each in found(batch, BoundingBoxes))  # the loader's own is as it was


def found(batch, kind):
    return [tensor for tensor in tensors(batch).values() if type(tensor) is kind]


def test_fields_with_a_row_a_box_by_name_or_type_lose_those_of_boxes_that_are_gone():
    boxes, labels = fields(0)
    target = {
        "boxes": boxes,
        "labels": labels,
        "masks": Mask(torch.arange(3).view(3, 1, 1).expand(3, 20, 30)),
        "keypoints": KeyPoints(torch.ones(3, 4, 2), canvas_size=SIZES[0]),
        "area": torch.tensor([25.0, 15.0, 52.5]),
        "iscrowd": torch.zeros(3, dtype=torch.int64),
        "fine_labels": ["cat", "dog", "bird"],
        "curves": [KeyPoints(torch.ones(number, 2), canvas_size=SIZES[0]) for number in (5, 6, 7)],
        "outlines": tuple(KeyPoints(torch.ones(number, 2), canvas_size=SIZES[0]) for number in (5, 6, 7)),
        "scene": torch.tensor([1, 2, 3, 4]),
        "semantic": Mask(torch.zeros(20, 30)),
        "orig_size": torch.tensor([1, 2, 3]),
    }
    batch = [torch.zeros(3, *SIZES[0])], [target]
    kept = moved_batch(left_half(targets_of(batch), SIZES[:1]), batch)[1][0]
    assert kept["labels"].tolist() == [10]
    assert kept["masks"].shape == (1, 20, 30)
    assert type(kept["masks"]) is Mask
    assert kept["keypoints"].shape == (1, 4, 2)
    assert kept["keypoints"].canvas_size == (20, 10)
    assert kept["area"].tolist() == [25.0]
    assert len(kept["iscrowd"]) == 1
    assert kept["fine_labels"] == ["cat"]
    assert [len(curve) for curve in kept["curves"]] == [5]
    assert [len(curve) for curve in kept["outlines"]] == [5]
    assert kept["curves"][0].canvas_size == kept["outlines"][0].canvas_size == (20, 10)
    assert all(kept[name] is target[name] for name in ("scene", "semantic", "orig_size"))
    assert list(kept) == list(target)


def test_other_fields_keep_their_rows_and_are_named():
    boxes, labels = fields(0)
    target = {"boxes": boxes, "labels": labels, "idx": torch.tensor([3, 4, 5]), "hw": torch.tensor([20, 30])}
    batch = [torch.zeros(3, *SIZES[0])], [target]
    moved = left_half(targets_of(batch), SIZES[:1])
    with pytest.warns(UserWarning, match=r"the field 'idx' has as many rows .* pass T.Compose\(..., per_box=\[...\]\)"):
        kept = moved_batch(moved, batch)[1][0]
    assert [len(kept[name]) for name in target] == [1, 1, 3, 2]

    tree = tree_flatten(batch)
    kept = tree_unflatten(moved.replaced(tree, per_box=["idx"]))[1][0]
    assert [len(kept[name]) for name in target] == [1, 3, 1, 2]


def beside_and_apart(rows, **apart):
    """A batch with some boxes of each of two images in a target, and other fields beside the targets."""
    targets = [{"boxes": tv_tensors.wrap(fields(image)[0][rows[image]], like=fields(image)[0])} for image in range(2)]
    return {"image": [torch.zeros(3, *size) for size in SIZES], "target": targets, **apart}


@pytest.mark.parametrize(
    ("apart", "name"),
    [
        ({"labels": [torch.tensor([1, 2, 3]), torch.tensor([4, 5])]}, "labels"),
        ({"labels": [["cat", "dog", "cat"], ["dog", "cat"]]}, "labels"),
        ({"more": [{"area": torch.ones(3)}, {"area": torch.ones(2)}]}, "more"),
    ],
)
def test_a_field_that_should_be_beside_the_boxes_is_named(apart, name):
    batch = beside_and_apart([slice(3), slice(2)], **apart)
    with pytest.warns(UserWarning, match=rf"batch\['{name}'\]\[0\].* has as many rows as its image has boxes"):
        kept = moved_batch(left_half(targets_of(batch)), batch)
    assert [len(target["boxes"]) for target in kept["target"]] == [1, 1]
    assert str(kept[name]) == str(batch[name])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "apart",
    [
        {"labels": [torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])]},  # no row for each box of the second image
        {"size": [[20, 30, 3], [8, 9]]},
    ],
)
def test_other_fields_apart_from_the_boxes_are_not(apart):
    batch = beside_and_apart([slice(3), slice(2)], **apart)
    moved_batch(left_half(targets_of(batch)), batch)


@pytest.mark.filterwarnings("error")
def test_nor_are_labels_of_images_that_have_a_box_each():
    batch = beside_and_apart([slice(2, 3)] * 2, labels=[torch.tensor([7]), torch.tensor([8])])
    kept = moved_batch(left_half(targets_of(batch)), batch)
    assert [len(target["boxes"]) for target in kept["target"]] == [0, 0]


def test_in_a_tuple_the_labels_follow_the_boxes():
    boxes, labels = fields(0)
    batch = [torch.zeros(3, *SIZES[0])], [(torch.tensor([1, 2, 3]), boxes, labels)]
    with pytest.warns(UserWarning, match="the field 0 has as many rows"):
        kept = moved_batch(left_half(targets_of(batch), SIZES[:1]), batch)[1][0]
    assert [len(field) for field in kept] == [3, 1, 1]


def test_small_boxes_stay_where_nothing_cuts_them():
    boxes = BoundingBoxes([[2, 2, 2.5, 9], [3, 3, 3, 3], [9.5, 0, 20, 5]], format="XYXY", canvas_size=SIZES[0])
    batch = [torch.zeros(3, *SIZES[0])], [{"boxes": boxes}]
    moved = moved_batch(left_half(targets_of(batch), SIZES[:1]), batch)[1][0]["boxes"]
    assert moved.tolist() == boxes[:2].tolist()


def test_integer_boxes_that_are_stored_without_an_area_go():
    boxes = BoundingBoxes([[2, 2, 3, 3], [0, 0, 4, 4]], format="XYXY", canvas_size=(10, 10))
    batch = [torch.zeros(3, 10, 10)], [{"boxes": boxes}]
    matrices = torch.tensor([[[0.5, 0, 0], [0, 0.5, 0]]], dtype=torch.float64)
    moved = targets_of(batch).follow(matrices, torch.tensor([[10, 10]]), torch.tensor([[5, 5]]))
    assert moved_batch(moved, batch)[1][0]["boxes"].tolist() == [[0, 0, 2, 2]]


def test_an_image_that_loses_its_only_box_keeps_what_is_its_own():
    boxes = BoundingBoxes([[15, 0, 18, 5]], format="XYXY", canvas_size=SIZES[0])
    batch = [torch.zeros(3, *SIZES[0])], [{"boxes": boxes, "labels": torch.ones(1), "image_id": torch.tensor([4])}]
    target = moved_batch(left_half(targets_of(batch), SIZES[:1]), batch)[1][0]
    assert target["boxes"].shape == (0, 4)
    assert target["labels"].shape == (0,)
    assert target["image_id"].tolist() == [4]


def test_a_single_image_owns_all_and_keeps_its_channels():
    image, (boxes, labels) = torch.zeros(3, *SIZES[0]), fields(0)
    for batch in ((image, {"boxes": boxes, "labels": labels}), (image, boxes, labels)):
        replaced = moved_batch(left_half(targets_of(batch), SIZES[:1]), batch)
        assert replaced[0] is image
        assert len(found(replaced, BoundingBoxes)[0]) == 1
        assert [each.tolist() for each in found(replaced, torch.Tensor)[1:]] == [[10]]


def test_batched_boxes_keep_their_rows():
    boxes = BoundingBoxes([[0, 0, 5, 5], [15, 0, 18, 5]], format="XYWH", canvas_size=SIZES[0])
    with tv_tensors.set_return_type("TVTensor"):
        several = torch.stack([boxes, boxes])
    points = KeyPoints(torch.ones(2, 3, 2), canvas_size=SIZES[0])
    batch = torch.zeros(2, 3, *SIZES[0]), {"box": boxes, "several": several, "points": points, "labels": torch.ones(2)}
    moved = moved_batch(left_half(targets_of(batch), SIZES[:1] * 2), batch)[1]
    assert moved["box"].tolist() == [[0, 0, 5, 5], [10, 0, 0, 5]]
    assert moved["several"].tolist() == [[[0, 0, 5, 5], [10, 0, 0, 5]]] * 2
    assert {moved[name].canvas_size for name in ("box", "several", "points")} == {(20, 10)}
    assert moved["labels"] is batch[1]["labels"]


@pytest.mark.parametrize("shape", [(2, 20, 30), (2, 1, 20, 30), (2, 5, 20, 30)])
def test_batched_masks_follow_their_own_images(shape):
    mask = Mask(torch.arange(2 * 20 * 30 * (shape[1] if len(shape) > 3 else 1)).view(shape))
    batch = torch.zeros(2, 3, 20, 30), mask
    windows = torch.tensor([[0, 0, 20, 30, 20, 30, 0, 0, 0, flip] for flip in (0, 1)], dtype=torch.int32)
    for size in ((20, 30), torch.tensor([[20, 30]] * 2)):
        moved = with_masks(resample_masks, batch, windows, size)[1]
        assert moved[0].tolist() == mask[0].tolist()
        assert moved[1].tolist() == mask[1].flip(-1).tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64])
def test_masks_are_warped_byte_by_byte(dtype):
    masks = [Mask((torch.rand(number, 20, 30) * 300).to(dtype)) for number in (0, 3)]
    batch = [torch.zeros(3, 20, 30)] * 2, [{"masks": mask} for mask in masks]
    angles = [10, 20]

    def warp(planes, rows):
        return torch.stack([F.rotate(plane, angles[row]) for plane, row in zip(planes, rows, strict=True)])

    moved = with_masks(map_masks, batch, warp)[1]
    for mask, angle, target in zip(masks, angles, moved, strict=True):
        expected = F.rotate(mask, angle) if len(mask) else mask
        assert torch.equal(target["masks"], expected.as_subclass(torch.Tensor))


# What is worth knowing


def test_a_box_that_was_cut_away_stays_away():
    """Torchvision leaves a line at the border, and a rotation makes a box of it again."""
    boxes = BoundingBoxes([[15.0, 0, 18, 15]], format="XYXY", canvas_size=SIZES[0])
    batch = [torch.zeros(3, *SIZES[0])], [{"boxes": boxes}]
    turn = torch.tensor([[[0.8, -0.6, 3], [0.6, 0.8, 3]]], dtype=torch.float64)
    size = torch.tensor([[20, 10]])
    turned = moved_batch(left_half(targets_of(batch), SIZES[:1]).follow(turn, size, size), batch)
    assert turned[1][0]["boxes"].shape == (0, 4)


def test_boxes_without_clamping_mode_are_not_clipped():
    boxes = BoundingBoxes([[5.0, 0, 20, 5], [15.0, 0, 18, 5]], format="XYXY", canvas_size=SIZES[0], clamping_mode=None)
    batch = [torch.zeros(3, *SIZES[0])], [{"boxes": boxes}]
    moved = moved_batch(left_half(targets_of(batch), SIZES[:1]), batch)[1][0]["boxes"]
    assert moved.tolist() == boxes.tolist()
    assert moved.clamping_mode is None


@pytest.mark.parametrize(
    ("step", "theirs", "left"),
    [
        (T.RandomHorizontalFlip(1.0), F.horizontal_flip, [1, 2]),
        (T.Resize((10, 15)), lambda boxes: F.resize(boxes, [10, 15]), [1, 2]),
        (T.CenterCrop((20, 30)), lambda boxes: F.center_crop(boxes, [20, 30]), [1]),
    ],
)
def test_flips_and_resizes_leave_boxes_beyond_the_border_as_torchvision_does(step, theirs, left):
    """A crop clips, also one that keeps all of the image."""
    boxes = BoundingBoxes([[-5.0, 5, 90, 15], [60, 5, 70, 15]], format="XYXY", canvas_size=(20, 30))
    batch = [torch.zeros(3, 20, 30)], [{"boxes": boxes, "labels": torch.tensor([1, 2])}]
    [(_, [target])] = fl.PrefetchLoader([batch], transform=step, device="cpu")
    assert target["boxes"].tolist() == theirs(boxes)[: len(left)].tolist()
    assert target["labels"].tolist() == left


def test_boxes_that_are_not_numbers_are_dropped():
    boxes = BoundingBoxes([[0, 0, float("nan"), 5], [0, 0, 5, 5]], format="CXCYWH", canvas_size=SIZES[0])
    batch = [torch.zeros(3, *SIZES[0])], [{"boxes": boxes}]
    assert moved_batch(left_half(targets_of(batch), SIZES[:1]), batch)[1][0]["boxes"].shape == (1, 4)


def test_integers_that_are_whole_stay_so():
    boxes = BoundingBoxes([[0, 0, 11, 11]], format="XYXY", canvas_size=(11, 11))
    batch = [torch.zeros(3, 11, 11)], [{"boxes": boxes}]
    matrices = torch.tensor([[[15 / 11, 0, 0], [0, 15 / 11, 0]]], dtype=torch.float64)  # in float64, 14.999999999999998
    moved = moved_batch(targets_of(batch).follow(matrices, torch.tensor([[11, 11]]), torch.tensor([[15, 15]])), batch)
    assert moved[1][0]["boxes"].tolist() == [[0, 0, 15, 15]]


def test_a_batch_without_targets_has_none():
    batch = torch.zeros(2, 3, 4, 4), {"boxes": torch.ones(2, 4)}
    assert targets_of(batch) is None
    assert with_masks(map_masks, batch, None) is batch


def test_targets_that_followed_nothing_change_nothing():
    batch = [torch.zeros(3, *SIZES[0])], [{"boxes": fields(0)[0]}]
    assert moved_batch(targets_of(batch), batch) is batch


BOXES = fields(0)[0]
ROTATED = BoundingBoxes(torch.ones(2, 5), format="CXCYWHR", canvas_size=SIZES[0])
IMAGES = [torch.zeros(3, *size) for size in SIZES]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((IMAGES, [{"boxes": ROTATED}, {}]), r"batch\[1\]\[0\]\['boxes'\] has the format CXCYWHR; .* XYXY, XYWH or"),
        ((IMAGES, [{"a": BOXES, "b": BOXES.clone()}, {}]), r"\['a'\] and .*\['b'\] are both BoundingBoxes of one"),
        ((IMAGES, {"boxes": BOXES}), r"\(3, 4\) beside 2 images: its first dimension must be 2, or"),
        ([{"image": tv_tensors.Image(image), "boxes": BOXES} for image in IMAGES], "collate them to one tensor or one"),
        (([torch.zeros(4, 3, 20, 30)] * 2, [{"boxes": BOXES}] * 2), r"if batch\[0\]\[0\] is a video, let"),
    ],
)
def test_what_cannot_follow_is_refused(batch, message):
    with pytest.raises(TypeError, match=message):
        targets_of(batch)


def test_targets_of_other_images_are_refused():
    batch = IMAGES, [{"boxes": BOXES}, {"masks": Mask(torch.zeros(1, 40, 26))}]
    with pytest.raises(
        ValueError, match=r"\['masks'\] is for an image of height and width \(40, 26\), and its image is"
    ):
        left_half(targets_of(batch))
    with pytest.raises(ValueError, match=r"the batch has 2 images, and needs matrices \(2, 2, 3\).*got \(1, 2, 3\)"):
        left_half(targets_of(batch), SIZES[:1])


def test_a_step_that_does_not_go_on_where_the_last_one_ended_is_refused():
    batch = IMAGES[:1], [{"boxes": BOXES}]
    with pytest.raises(ValueError, match=r"the images are \[\[20, 10\]\] now; got old_sizes \[\[20, 30\]\]"):
        left_half(left_half(targets_of(batch), SIZES[:1]), SIZES[:1])


def test_a_batch_of_targets_has_one_canvas():
    batch = torch.zeros(2, 3, 20, 30), KeyPoints(torch.ones(2, 2), canvas_size=(20, 30))
    targets = targets_of(batch).follow(LEFT.matrices.repeat(2, 1, 1), torch.tensor([[20, 30]] * 2), torch.tensor(SIZES))
    with pytest.raises(ValueError, match=r"batch\[1\]: batched targets must come to be of one size; got"):
        moved_batch(targets, batch)

"""Photographs with objects pasted into them: what a target says is what lies in the image."""

import doctest

import pytest
import torch

pasted = pytest.importorskip("pasted", exc_type=ImportError)


@pytest.fixture(params=["train", "held_out"], scope="module")
def samples(request):
    images = pasted.Pasted(40, request.param)
    return [images[index] for index in range(len(images))]


def test_the_example_in_its_docstring():
    assert doctest.testmod(pasted) == (0, 2)


def test_boxes_hold_their_masks_and_no_row_or_column_more(samples):
    for image, target in samples:
        assert target["boxes"].dtype is torch.float32
        assert target["boxes"].canvas_size == image.shape[1:]
        for (left, top, right, bottom), mask in zip(target["boxes"].int().tolist(), target["masks"], strict=True):
            assert mask.sum() == mask[top:bottom, left:right].sum()
            inside = mask[top:bottom, left:right].bool()
            assert all(border.any() for border in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))


def test_masks_are_zero_or_one_and_do_not_overlap(samples):
    for image, target in samples:
        assert target["masks"].shape[1:] == image.shape[1:]
        assert set(target["masks"].sum(0).unique().tolist()) == {0, 1}


def test_keypoints_lie_in_their_masks_from_tip_to_foot(samples):
    for _, target in samples:
        assert target["keypoints"].shape == (len(target["masks"]), len(pasted.KEYPOINTS), 2)
        for points, mask in zip(target["keypoints"], target["masks"], strict=True):
            columns, rows = points.round().long().unbind(1)
            assert mask[rows, columns].all()
            tip, middle, foot = points
            assert (tip - middle).norm() == pytest.approx(0.65 / 1.25 * (tip - foot).norm())


def test_images_differ_in_size_and_hold_all_classes(samples):
    assert len({tuple(image.shape) for image, _ in samples}) > 30
    assert {label for _, target in samples for label in target["labels"].tolist()} == {1, 2, 3, 4}
    assert max(len(target["labels"]) for _, target in samples) > 2


def test_an_object_is_cut_out_of_another_photograph_than_what_lies_around_it():
    assert not set(sum(pasted.BACKGROUNDS.values(), ())) & {name for name, _ in pasted.CLASSES.values()}


def test_a_sample_depends_on_split_seed_and_index_alone():
    def pixels(index, *args, **kwargs):
        return pasted.Pasted(10, *args, **kwargs)[index][0]

    assert torch.equal(pixels(7), pixels(7))
    assert torch.equal(pixels(7), pasted.Pasted(1000)[7][0])
    others = [pixels(6), pixels(7, seed=1), pixels(7, "held_out")]
    assert not any(torch.equal(pixels(7), other) for other in others)


def test_held_out_photographs_and_parts_are_never_trained_on():
    train, held_out = pasted.BACKGROUNDS["train"], pasted.BACKGROUNDS["held_out"]
    assert not set(train) & set(held_out)
    (_, end), (start, _) = pasted.PARTS["train"], pasted.PARTS["held_out"]
    assert end <= start


def test_an_index_beyond_the_last_is_refused():
    with pytest.raises(IndexError, match="index must be from 0 to 9; got 10"):
        pasted.Pasted(10)[10]
    assert len(list(pasted.Pasted(3))) == 3

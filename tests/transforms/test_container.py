"""What all containers share: each image goes through what it drew, whatever its neighbours do."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors

import fastload as fl
from fastload import transforms as T
from tests.counts import examples
from tests.files import jpeg
from tests.transforms.draws import KEY, KEYS, images

SINGLE = {  # each transform that can be applied to some images of a batch, so that it changes them
    "CenterCrop": T.CenterCrop(9),
    "ColorJitter": T.ColorJitter(0.8, 0.8, 0.8, 0.2),
    "Compose": T.Compose([T.Resize(9), T.RandomPosterize(2, 1.0), T.CenterCrop((8, 7))]),
    "GaussianBlur": T.GaussianBlur(3, (0.8, 2.0)),
    "Grayscale": T.Grayscale(),
    "RandAugment": T.RandAugment(2, 20),
    "RandomAdjustSharpness": T.RandomAdjustSharpness(3, 1.0),
    "RandomApply": T.RandomApply([T.RandomInvert(1.0), T.RandomCrop(6)], 0.6),
    "RandomAutocontrast": T.RandomAutocontrast(1.0),
    "RandomChoice": T.RandomChoice([T.GaussianBlur(3), T.RandomVerticalFlip(1.0), T.RandomResizedCrop(9)]),
    "RandomCrop": T.RandomCrop(14, 3, fill=0.4),
    "RandomEqualize": T.RandomEqualize(1.0),
    "RandomErasing": T.RandomErasing(1.0, value="random"),
    "RandomGrayscale": T.RandomGrayscale(1.0),
    "RandomHorizontalFlip": T.RandomHorizontalFlip(1.0),
    "RandomInvert": T.RandomInvert(1.0),
    "RandomOrder": T.RandomOrder([T.ColorJitter(0.5, 0.5), T.RandomHorizontalFlip(1.0), T.RandomCrop(9)]),
    "RandomPosterize": T.RandomPosterize(2, 1.0),
    "RandomResizedCrop": T.RandomResizedCrop(9, interpolation="bicubic"),
    "RandomSolarize": T.RandomSolarize(0.3, 1.0),
    "RandomVerticalFlip": T.RandomVerticalFlip(1.0),
    "Resize": T.Resize((5, 20)),
    "ThreeAugment": T.ThreeAugment(kernel_size=3),
    "TrivialAugmentWide": T.TrivialAugmentWide(),
}
BATCH_WISE = {"DecodeJpeg", "MultiView", "Normalize", "MixUp", "CutMix", "MixUpCutMix", "Transform"}
BATCH = images(8, 3, 12, 14)
quiet = pytest.mark.filterwarnings("ignore:RandomErasing")


def test_each_transform_of_the_package_is_tried():
    transforms = {
        name for name in T.__all__ if isinstance(vars(T)[name], type) and issubclass(vars(T)[name], T.Transform)
    }
    assert transforms - BATCH_WISE == set(SINGLE)


def same(ours, theirs):
    """Equal but for rounding.

    What a neighbour has drawn decides how many passes there are, and so whether values are stored in between, as
    float32: one that lies half way between two bytes may be rounded to either.
    """
    allowed = 1 if ours[0].dtype is torch.uint8 else 1e-6
    alike = len(ours) == len(theirs) and all(one.shape == other.shape for one, other in zip(ours, theirs, strict=True))
    return alike and all(
        (one.double() - other.double()).abs().max() <= allowed for one, other in zip(ours, theirs, strict=True)
    )


@quiet
@pytest.mark.parametrize("name", SINGLE)
@examples(full=30, here=2)
@given(key=KEYS, is_byte=st.booleans())
def test_the_chosen_images_are_changed_as_alone_and_the_others_not_at_all(name, key, is_byte):
    transform, batch = SINGLE[name], (BATCH * 255).byte() if is_byte else BATCH
    if name == "RandomSolarize" and is_byte:
        transform = T.RandomSolarize(80, 1.0)
    changed = transform(batch, key.for_draw(1))
    assert torch.equal(T.RandomApply([transform], 0.0)(batch, key), batch)
    assert same(T.RandomApply([transform], 1.0)(batch, key), changed)
    half = T.RandomApply([transform], 0.5)
    chosen = half.sample(torch.tensor([[12, 14]] * 8), key).drawn
    made = half(batch, key)
    assert same(made, [new if is_chosen else old for new, old, is_chosen in zip(changed, batch, chosen, strict=True)])
    assert all(torch.equal(made[row], batch[row]) for row in np.flatnonzero(~chosen))


@quiet
@pytest.mark.parametrize("name", SINGLE)
def test_g09_a_batch_of_eight_is_two_of_four(name):
    compose = T.Compose([T.RandomApply([T.RandomGrayscale(), SINGLE[name]]), T.RandomErasing(0.5)])
    whole = compose(BATCH, KEY)
    parts = [*compose(BATCH[:4], KEY), *compose(BATCH[4:], KEY.advanced(4))]
    assert same(whole, parts)


def test_neighbours_of_a_skipped_file_draw_what_they_drew():
    choice = T.RandomChoice([T.RandomApply([T.RandomCrop(16), T.ColorJitter(0.5)]), T.RandomResizedCrop(12)])
    order = T.RandomOrder([T.RandomHorizontalFlip(), T.Resize((8, 8))])
    compose = T.Compose([T.DecodeJpeg("skip", device="cpu"), choice, order])
    file = jpeg(24, 32)
    whole = compose(fl.collate([file] * 6), KEY)
    with pytest.warns(UserWarning, match="cannot be decoded are left out"):
        rest = compose(fl.collate([file, file, file[:40], file, file, file]), KEY)
    assert same(rest, whole[[0, 1, 3, 4, 5]])
    assert compose(fl.collate([file[:40]]), KEY) == []


def test_an_image_that_is_not_chosen_may_be_smaller_than_its_crop():
    several = [torch.zeros(3, side, side, dtype=torch.uint8) for side in (4, 20, 4, 20)]
    enlarged = T.RandomApply([T.Resize(16), T.RandomCrop(16)])(several, KEY)
    assert {tuple(image.shape) for image in enlarged} <= {(3, 16, 16), (3, 4, 4), (3, 20, 20)}
    choice = T.RandomChoice([T.RandomCrop(12), T.Compose([])], p=[1, 1e-9])
    assert choice(torch.zeros(2, 3, 14, 13), KEY).shape == (2, 3, 12, 12)


def test_images_of_one_type_keep_it_when_their_sizes_come_to_differ():
    cut = T.RandomChoice([T.CenterCrop(9), T.CenterCrop(7)])
    made = T.Compose([cut, lambda image: image + 0])(tv_tensors.Image(BATCH), KEY)
    assert {(type(image), image.shape[-1]) for image in made} == {(tv_tensors.Image, 9), (tv_tensors.Image, 7)}


def test_frames_of_a_video_keep_one_size():
    with pytest.raises(TypeError, match=r"one size; got \[\(5, 5\), \(12, 14\)\]: put T.Resize behind"):
        T.RandomApply([T.CenterCrop(5)])(BATCH.unflatten(0, (4, 2)), KEY)


class Probe(T.Transform):
    """Notes the draw indices with which it samples."""

    def __init__(self, noted):
        self.noted = noted

    def sample(self, sizes, key):  # noqa: ARG002
        self.noted.append(key.draw)

    def record(self, work, parameters):
        pass


def test_no_two_transforms_share_a_draw_index():
    noted = []
    probe = Probe(noted)
    order = T.RandomOrder([probe, T.RandomApply([T.Compose([probe, probe])]), probe])
    choice = T.RandomChoice([order, T.RandomApply([probe, probe])])
    T.Compose([probe, choice, torch.neg, probe])(BATCH.repeat(8, 1, 1, 1), KEY)
    # 1: choice, 2: order, 4: apply, 8: apply, 11: neg
    assert sorted(set(noted)) == [0, 3, 5, 6, 7, 9, 10, 12]


def test_normalising_some_images_is_refused_within_transforms_of_ones_own_too():
    class Own(Probe):
        def record(self, work, parameters):  # noqa: ARG002
            work.normalize([0.5] * 3, [0.5] * 3)

    with pytest.raises(TypeError, match="all images of a batch are normalised, or none: put the transform behind"):
        T.RandomApply([Own([])], 1.0)(BATCH)

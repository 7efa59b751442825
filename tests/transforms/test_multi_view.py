"""Several views of each image, made on the device from one decode."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision import tv_tensors

import fastload as fl
from fastload import transforms as T
from fastload.transforms import Key
from tests.transforms.draws import DEVICES

LARGE = [T.RandomResizedCrop(24, scale=(0.4, 1.0)), T.RandomHorizontalFlip(), T.RandomApply([T.ColorJitter(0.4)], 0.8)]
SMALL = [T.RandomResizedCrop(8, scale=(0.05, 0.4)), T.RandomHorizontalFlip(), T.RandomGrayscale(0.2)]
DINO = T.MultiView([LARGE, LARGE, *[SMALL] * 8])
NORMALIZE = T.Normalize([0.5] * 3, [0.25] * 3)


def noise(count=4, side=32):
    return torch.randint(0, 256, (count, 3, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs") / "all"
    fl.data.sample_data(root, images=20)
    return fl.data.ImageFolder(root / "train")


def loader_of(folder, transform, **options):
    files = DataLoader(folder, 4, collate_fn=fl.collate)
    return fl.PrefetchLoader(files, transform=T.Compose(transform), device="cpu", **options)


def test_the_views_of_dino_have_two_sizes():
    views = T.Compose([DINO, NORMALIZE])(noise())
    assert [tuple(view.shape) for view in views] == [(4, 3, 24, 24)] * 2 + [(4, 3, 8, 8)] * 8
    assert all(view.dtype is torch.float32 for view in views)


def test_a_view_is_what_its_transform_makes_with_a_key_of_its_own():
    key = Key(seed=3, epoch=2)
    views = DINO(noise(), key)
    for number, view in enumerate(views):
        alone = T.Compose(SMALL if number > 1 else LARGE)(noise(), key.for_view(255 - number))
        assert torch.equal(view, alone)


def sized_noise(device="cpu"):
    """Images of several sizes, as decoded files are."""
    return [image[:, : 32 - row].to(device) for row, image in enumerate(noise(8))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "small",
    [
        SMALL,
        [*SMALL, T.ColorJitter(0.4, 0.4, 0.2, 0.1, p=0.8), T.RandomApply([T.GaussianBlur(3)]), NORMALIZE],
        [T.RandomResizedCrop(16), T.TrivialAugmentWide(), NORMALIZE, T.RandomErasing(1.0, value="random")],
        [T.RandomChoice([T.RandomInvert(), T.CenterCrop(6)]), T.RandomOrder([T.RandomPosterize(2), T.RandomInvert()])],
    ],
    ids=["crops", "dino", "trivial", "several sizes"],
)
def test_views_made_together_are_those_made_alone(small, device):
    """Bit for bit: crops are reduced little, so a GPU sums all of them in the same precision."""
    key = Key(seed=5, epoch=1, place=3, stride=2)
    views = T.Compose([T.MultiView([LARGE, *[small] * 3, LARGE]), T.RandomVerticalFlip()])(sized_noise(device), key)
    assert len(views) == 5
    for number, view in enumerate(views):
        steps = [*(LARGE if number in (0, 4) else small), T.RandomVerticalFlip()]
        alone = T.Compose(steps)(sized_noise(device), key.for_view(255 - number))
        assert type(view) is type(alone)
        assert len(view) == len(alone)
        assert all(torch.equal(image, expected) for image, expected in zip(view, alone, strict=True))


def test_sizes_left_to_chance_are_those_of_each_view():
    """A view of one image is a batch, whatever its size; views of several sizes together would not be one."""
    some = [T.RandomApply([T.CenterCrop(6)]), T.GaussianBlur(3)]
    for seed in range(4):
        views = T.MultiView([some] * 4)(sized_noise()[:1], Key(seed=seed))
        assert {view.shape[-1] for view in views} <= {6, 32}
    views = T.Compose([T.MultiView([[T.RandomResizedCrop(8)]] * 8), T.RandomApply([T.CenterCrop(4)])])
    assert {type(view) for view in views(sized_noise()[:2], Key(seed=0))} == {torch.Tensor, list}


@pytest.mark.parametrize("place", ["in each view", "after the views"])
def test_a_function_of_the_user_is_called_for_each_view(place):
    seen = []

    def function(images):
        seen.append(tuple(images.shape))
        return images

    view = [T.RandomResizedCrop(8), function] if place == "in each view" else [T.RandomResizedCrop(8)]
    after = [function] if place == "after the views" else []
    T.Compose([T.MultiView([view] * 3), *after])(sized_noise())
    assert seen == [(8, 3, 8, 8)] * 3


def test_a_transform_of_the_user_draws_for_each_view():
    class Shift(T.RandomInvert):
        """Inverts all images of a batch, or none."""

        def sample(self, sizes, key):
            return super().sample(sizes, key) if key.generator().random() < 0.5 else None

        def record(self, work, parameters):
            if parameters is not None:
                super().record(work, parameters)

    views = T.MultiView([[T.RandomResizedCrop(8), Shift(1.0)]] * 8)(sized_noise(), Key(seed=0))
    plain = T.MultiView([[T.RandomResizedCrop(8)]] * 8)(sized_noise(), Key(seed=0))
    same = [torch.equal(view, other) for view, other in zip(views, plain, strict=True)]
    assert 0 < sum(same) < 8


def test_views_differ_and_repeat_with_the_seed():
    views, again = DINO(noise(), Key(seed=1)), DINO(noise(), Key(seed=1))
    assert all(torch.equal(one, other) for one, other in zip(views, again, strict=True))
    assert not torch.equal(views[0], views[1])
    assert not torch.equal(views[2], views[3])


def test_what_comes_after_is_done_to_each_view():
    views = T.Compose([T.MultiView([T.CenterCrop(8), T.CenterCrop(4)]), T.RandomVerticalFlip(), NORMALIZE])(noise(64))
    crop = noise(64)[:, :, 12:20, 12:20].float() / 255 * 4 - 2
    expected = (crop, crop[:, :, 2:6, 2:6])
    flipped = [(view != each).flatten(1).any(1) for view, each in zip(views, expected, strict=True)]
    assert 0 < flipped[0].sum() < 64
    assert not torch.equal(flipped[0], flipped[1])


def test_what_comes_after_is_as_at_the_end_of_each_view():
    behind = T.Compose([T.MultiView([LARGE, *[SMALL] * 2]), NORMALIZE, T.RandomErasing(1.0)])(noise(), Key(seed=0))
    within = T.MultiView([[*view, NORMALIZE, T.RandomErasing(1.0)] for view in (LARGE, SMALL, SMALL)])
    assert all(torch.equal(one, other) for one, other in zip(behind, within(noise(), Key(seed=0)), strict=True))


def test_a_transform_of_the_user_behind_views_leaves_them_to_be_made_together():
    class Inverted(T.RandomInvert):
        """One of which it is not known how it draws."""

    steps = [T.MultiView([SMALL] * 3), Inverted(1.0)]
    assert "views 1-3:" in str(T.Compose([T.DecodeJpeg(), *steps]))
    views, plain = T.Compose(steps)(sized_noise(), Key(seed=0)), steps[0](sized_noise(), Key(seed=0))
    assert all(torch.equal(255 - view, other) for view, other in zip(views, plain, strict=True))


def test_views_are_normalised_once():
    with pytest.raises(ValueError, match="normalised twice"):
        T.Compose([T.MultiView([[*SMALL, NORMALIZE]]), NORMALIZE])


def test_files_are_decoded_once_and_labels_stay_one_for_each_sample(folder):
    loader = loader_of(folder, [T.DecodeJpeg(), DINO, NORMALIZE])
    labels = []
    for views, batch_labels in loader:
        assert len(views) == 10
        assert {len(view) for view in views} == {len(batch_labels)}
        labels += batch_labels.tolist()
    assert labels == [label for _, label in folder.samples]
    assert sum(loader.stats.files.values()) == len(folder)


def test_a_sample_is_viewed_alike_beside_bad_files(folder):
    class WithBad(torch.utils.data.Dataset):
        def __init__(self, bad):
            self.bad = bad

        def __len__(self):
            return 4

        def __getitem__(self, index):
            return b"no image" if index in self.bad else folder[index][0], index

    made = []
    for bad in ((), (1,)):
        files = DataLoader(WithBad(bad), 4, collate_fn=fl.collate)
        transform = T.Compose([T.DecodeJpeg(on_error="skip"), DINO])
        with pytest.warns(UserWarning, match="left out") if bad else nullcontext():
            made += list(fl.PrefetchLoader(files, transform=transform, device="cpu"))
    (whole, _), (rest, labels) = made
    assert labels.tolist() == [0, 2, 3]
    assert all(torch.equal(view[[0, 2, 3]], other) for view, other in zip(whole, rest, strict=True))


def test_a_resumed_run_makes_the_same_views(folder):
    whole = list(loader_of(folder, [T.DecodeJpeg(), DINO]))
    first = loader_of(folder, [T.DecodeJpeg(), DINO])
    next(iter(first))
    second = loader_of(folder, [T.DecodeJpeg(), DINO])
    second.load_state_dict(first.state_dict())
    for (views, _), (expected, _) in zip(second, whole[1:], strict=True):
        assert all(torch.equal(view, other) for view, other in zip(views, expected, strict=True))


def test_views_may_lie_at_fixed_addresses(folder):
    plain = list(loader_of(folder, [T.DecodeJpeg(), DINO]))
    for (views, _), (expected, _) in zip(loader_of(folder, [T.DecodeJpeg(), DINO], static=True), plain, strict=True):
        assert all(torch.equal(view, other) for view, other in zip(views, expected, strict=True))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.MultiView(T.RandomInvert()), "one for each view"),
        (lambda: T.MultiView([]), "got 0"),
        (lambda: T.MultiView([[T.DecodeJpeg()]]), "DecodeJpeg is for all views"),
        (lambda: T.MultiView([[T.MixUp(num_classes=3)]]), "MixUp is for all views"),
        (lambda: T.Compose([DINO, T.MixUp(num_classes=3)]), "MixUp must come before MultiView"),
        (lambda: T.Compose([DINO, DINO]), "MultiView must come before MultiView"),
        (lambda: T.RandomApply([DINO]), "MultiView is for all images"),
    ],
)
def test_what_cannot_be_done_to_views_is_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_boxes_and_lists_are_refused():
    box = [tv_tensors.BoundingBoxes([[1, 2, 9, 9]], format="XYXY", canvas_size=(32, 32))] * 4
    with pytest.raises(TypeError, match=r"batch\[1\]\[0\] is BoundingBoxes"):
        next(iter(fl.PrefetchLoader([(noise(), box)], transform=DINO, device="cpu")))
    with pytest.raises(TypeError, match="got a list of 4 images"):
        next(iter(fl.PrefetchLoader([(list(noise()), [0] * 4)], transform=DINO, device="cpu")))

"""A data set that seeds random numbers around its transform, and what ``offload`` leaves in the workers then."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

import fastload as fl
from fastload.offload.seed_watch import SeedWatch
from tests.offload.pipelines import A


def steps(*more):
    return v2.Compose(
        [v2.RandomCrop(16), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), *more]
    )


class Photographs(Dataset):
    """Images of noise, by which a crop is recognised."""

    def __init__(self, transform):
        self.transform, self.mask_transform = transform, steps()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        image = self.image(index)
        return self.transform(image), self.mask_transform(image)

    def image(self, index):
        return Image.fromarray(np.random.default_rng(index).integers(0, 256, (40, 40, 3), dtype=np.uint8))


class SeededTwice(Photographs):
    def __getitem__(self, index):
        image, seed = self.image(index), random.randrange(2**31)
        torch.manual_seed(seed)
        one = self.transform(image)
        torch.manual_seed(seed)
        return one, self.mask_transform(image)


class SeededFromTorch(Photographs):
    def __getitem__(self, index):
        image, seed = self.image(index), int(torch.randint(2**31, ()))
        torch.default_generator.manual_seed(seed)
        one = self.transform(image)
        torch.default_generator.manual_seed(seed)
        return one, self.mask_transform(image)


class PutBack(Photographs):
    def __getitem__(self, index):
        image, state = self.image(index), torch.get_rng_state()
        one = self.transform(image)
        torch.set_rng_state(state)
        return one, self.mask_transform(image)


class Forked(Photographs):
    def __getitem__(self, index):
        image = self.image(index)
        with torch.random.fork_rng(devices=[]):
            one = self.transform(image)
        return one, self.mask_transform(image)


class Clip(Photographs):
    def __getitem__(self, index):
        image, state = self.image(index), torch.get_rng_state()
        frames = []
        for _ in range(2):
            torch.set_rng_state(state)
            frames.append(self.transform(image))
        return tuple(frames)


class SeededByIndex(Photographs):
    def __getitem__(self, index):
        torch.manual_seed(index)
        return (self.transform(self.image(index)),) * 2


class SeedsPython(Photographs):
    def __getitem__(self, index):
        random.seed(index)
        return super().__getitem__(index)


class SeedsItself(Photographs):
    """Draws for its own use, from generators of its own too, and seeds once, as it is made."""

    def __init__(self, transform):
        super().__init__(transform)
        torch.manual_seed(3), random.seed(3)

    def __getitem__(self, index):
        torch.rand(100_000), [random.gauss(0, 1) for _ in range(3000)], random.Random(index).random()
        np.random.seed(index), torch.Generator().manual_seed(index)
        return super().__getitem__(index)


def in_worker(dataset, capsys):
    """The steps that stay."""
    fl.offload(DataLoader(dataset, 4), device="cpu")
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    return [row[0] for row in rows if row[1] == "worker"]


@pytest.mark.parametrize("kind", [SeededTwice, SeededFromTorch, PutBack, Forked, Clip, SeededByIndex])
def test_image_and_mask_of_one_seed_stay_alike(kind):
    loader = DataLoader(kind(steps()), 4)
    for one, other in fl.offload(loader, device="cpu", verbose=False):
        assert torch.allclose(one, other, rtol=0, atol=1e-6)


def test_crops_of_a_seed_are_those_of_the_loader():
    loader = DataLoader(SeededByIndex(steps()), 4)
    played = list(fl.offload(loader, device="cpu"))  # by a thread, which shares the generators with this one
    for ours, theirs in zip(played, loader, strict=True):
        assert torch.allclose(ours[0], theirs[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [SeededTwice, SeededFromTorch, PutBack, Forked, Clip, SeededByIndex, SeedsPython])
def test_random_steps_stay_where_the_data_set_seeds_around_them(kind, capsys):
    assert in_worker(kind(steps(v2.Normalize([0.5], [0.5]))), capsys) == ["RandomCrop", "RandomHorizontalFlip"]


@pytest.mark.parametrize("kind", [Photographs, SeedsItself])
def test_other_draws_and_seeds_hold_nothing(kind, capsys):
    assert in_worker(kind(steps()), capsys) == []


def test_a_seed_of_a_worker_holds_nothing(capsys):
    loader = DataLoader(Photographs(steps()), 4, num_workers=1, worker_init_fn=torch.manual_seed)
    fl.offload(loader, device="cpu")
    assert "worker " not in capsys.readouterr().out


def test_where_nothing_is_left_to_move_it_says_what_to_do():
    dataset = SeededTwice(steps(v2.RandomErasing()))
    with pytest.raises(TypeError, match=r"seeds or restores random numbers(.|\n)*tv_tensors\.Mask"):
        fl.offload(DataLoader(dataset, 4), device="cpu")


def test_of_albumentations_too():
    compose = A.Compose([A.HorizontalFlip(), A.CenterCrop(8, 8), A.Normalize(), A.ToTensorV2()])
    where = [step.where for step in fl.split(compose, seeded=True).steps]
    assert where == ["worker", "device", "device", "device"]


def test_split_takes_whether_the_transform_is_seeded():
    where = {step.name: step.where for step in fl.split(steps(v2.CenterCrop(8)), seeded=True).steps}
    assert [name for name in where if where[name] == "worker"] == ["RandomCrop", "RandomHorizontalFlip"]
    with pytest.raises(TypeError, match="seeded must be True or False; got 3"):
        fl.split(steps(), seeded=3)


@pytest.mark.parametrize("draws", [0, 1, 623, 624, 625, 100_000])
def test_what_is_drawn_is_no_seed(draws):
    state, python = torch.get_rng_state(), random.getstate()
    try:
        watch = SeedWatch()
        for _ in range(draws):
            random.getrandbits(32)
        torch.rand(draws), watch.look()
        assert not watch.was_seeded
        before = random.getstate()
        random.random(), watch.look(), random.setstate(before), watch.look()
        assert watch.was_seeded
    finally:
        torch.set_rng_state(state), random.setstate(python)

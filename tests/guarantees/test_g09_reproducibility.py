"""G9: Randomness depends on seed, epoch and the place of the sample in the epoch alone."""

import warnings

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import fastload as fl
from fastload import transforms as T
from tests.files import jpeg
from tests.guarantees.shared import AUGMENT, STD, Ramps


@pytest.mark.parametrize("batch_size", [3, 8])
def test_g09_augmentation_depends_on_seed_epoch_and_place_alone(batch_size):
    ramp = torch.arange(8, dtype=torch.uint8).expand(24, 3, 2, 8)

    def flipped(depth=2, seed=0, epoch=0):
        loader = fl.PrefetchLoader(
            ramp.split(batch_size), transform=T.RandomHorizontalFlip(), device="cpu", depth=depth, seed=seed
        )
        loader.set_epoch(epoch)
        return torch.cat([images[:, 0, 0, 0] != 0 for images in loader])

    key = T.Key(seed=0, epoch=0)
    assert torch.equal(flipped(), T.RandomHorizontalFlip().sample(torch.tensor([[2, 8]] * 24), key))
    assert torch.equal(flipped(depth=5), flipped())
    assert not torch.equal(flipped(seed=1), flipped())
    assert not torch.equal(flipped(epoch=1), flipped())


def augmented(device="cpu", *, depth=2, workers=0, ranks=1):
    """Each sample's augmented image, whichever rank it came to."""
    found = {}
    for rank in range(ranks):
        sampler = DistributedSampler(Ramps(), ranks, rank, shuffle=True, seed=3)
        wrapped = DataLoader(Ramps(), batch_size=4, sampler=sampler, num_workers=workers)
        loader = fl.PrefetchLoader(wrapped, transform=T.Compose(AUGMENT), device=device, depth=depth, seed=1)
        for images, labels in loader:
            found |= dict(zip(labels.tolist(), images.cpu(), strict=True))
    return torch.stack([found[index] for index in range(len(Ramps()))])


@pytest.mark.parametrize("setting", [{"depth": 1}, {"depth": 4}, {"workers": 8}, {"ranks": 4}])
def test_g09_a_sample_is_augmented_alike_however_it_comes(setting):
    assert torch.equal(augmented(**setting), augmented())


def decoded(batch_size, on_error, bad):
    """Each good sample's augmented image; the files numbered ``bad`` are damaged."""
    files = [(b"no image" if index in bad else jpeg(24, 32, seed=index), index) for index in range(12)]
    wrapped = DataLoader(files, batch_size, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(on_error), *AUGMENT, T.RandomErasing(value="random")])
    loader = fl.PrefetchLoader(wrapped, transform=transform, device="cpu")
    rows = [row for images, labels in loader for row in zip(labels.tolist(), images, strict=True)]
    return {index: image for index, image in rows if index not in bad}


@pytest.mark.filterwarnings("ignore:files that cannot be decoded")
@pytest.mark.parametrize("bad", [{1}, {0, 5, 6, 11}])
def test_g09_the_neighbours_of_bad_files_are_augmented_as_if_these_were_good(bad):
    expected = decoded(12, "raise", bad=set())
    for batch_size, on_error in ((4, "skip"), (12, "skip"), (1, "skip"), (5, "zero")):
        found = decoded(batch_size, on_error, bad)
        assert found.keys() == expected.keys() - bad
        assert all(torch.equal(image, expected[index]) for index, image in found.items())


# Which epoch a pass is


def flips(loader):
    return torch.cat([images[:, 0, 0, 0] != 0 for images, _ in loader])


def flipping(dataset, sampler=None):
    return fl.PrefetchLoader(DataLoader(dataset, 8, sampler=sampler), transform=T.RandomHorizontalFlip(), device="cpu")


def ramps():
    return TensorDataset(torch.arange(8, dtype=torch.uint8).expand(32, 3, 2, 8), torch.arange(32))


def flips_of(epoch):
    loader = flipping(ramps())
    loader.set_epoch(epoch)
    return flips(loader)


@pytest.mark.parametrize("made_anew", [False, True])
def test_g09_the_samplers_epoch_is_the_loaders(made_anew):
    dataset = ramps()
    sampler = DistributedSampler(dataset, 1, 0, shuffle=False)
    loader = flipping(dataset, sampler)
    for epoch in (0, 4, 5, 2):
        sampler.set_epoch(epoch)  # as Lightning and users do, beside the loader
        loader = flipping(dataset, sampler) if made_anew else loader
        assert torch.equal(flips(loader), flips_of(epoch))
    assert torch.equal(flips(loader), flips_of(3))  # and without a word, the next


def test_g09_a_loader_made_anew_that_repeats_an_epoch_says_so_and_how_to_cure_it():
    dataset = ramps()
    flips(flipping(dataset))
    with pytest.warns(UserWarning, match=r"another PrefetchLoader has begun epoch 0 .* Call loader.set_epoch\(epoch\)"):
        repeated = flips(flipping(dataset))
    assert torch.equal(repeated, flips_of(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        announced = flipping(dataset)
        announced.set_epoch(1)
        assert torch.equal(flips(announced), flips_of(1))
        flips(announced)
        list(fl.PrefetchLoader(DataLoader(dataset, 8), (0.5,) * 3, (0.5,) * 3, device="cpu"))  # draws nothing


def test_g09_a_loader_that_draws_nothing_begins_no_epoch_for_others():
    """Such as one that computes the mean of the images first."""
    dataset = ramps()
    list(fl.PrefetchLoader(DataLoader(dataset, 8), (0.5,) * 3, (0.5,) * 3, device="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flips(flipping(dataset))


def test_g09_a_pass_that_was_only_begun_is_no_epoch():
    """Lightning asks a loader for an iterator to see whether it has one."""
    loader = flipping(ramps())
    iter(loader)
    assert torch.equal(flips(loader), flips_of(0))
    iter(loader)
    state = loader.state_dict()
    assert torch.equal(flips(loader), flips_of(1))
    loader.load_state_dict(state)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    iter(loader)
    assert torch.equal(flips(loader), flips_of(1)[8:])
    loader.set_epoch(3)
    first = iter(loader)  # and asks for another while it has this one
    assert torch.equal(flips(loader), flips_of(3))
    assert torch.equal(flips(first), flips_of(3))


@pytest.mark.gpu
def test_g09_a_sample_is_augmented_alike_on_cpu_and_gpu():
    # Resampling is right to a thousandth of full scale, which a factor of contrast and a small std make larger.
    largest = 1.4**3 * 1e-3 / min(STD)
    assert (augmented("cuda") - augmented("cpu")).abs().max() <= largest

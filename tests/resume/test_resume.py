"""G10 at many places: what is left of a run, resumed, is what would have come. Processes die in test_lives.py."""

import contextlib
import copy
import itertools
import warnings
from itertools import islice

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import fastload as fl
from fastload import transforms as T
from tests.counts import count, variants
from tests.files import jpeg

SAMPLES, BATCH, EPOCHS = 19, 4, 3
LENGTH = -(-SAMPLES // BATCH)
AUGMENT = T.Compose([T.RandomResizedCrop(6), T.RandomHorizontalFlip()])


def image(index):
    return torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))


class Images(Dataset):
    """Sample ``i`` is an image of its own; ``seen`` are those that were loaded, in this process."""

    def __init__(self, samples=SAMPLES):
        self.samples = samples
        self.seen = []

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        self.seen.append(index)
        return image(index), index


class Batches(Images):
    """Sample ``indices`` is the batch of these images."""

    def __getitem__(self, indices):
        return torch.stack(list(map(image, indices))), torch.tensor(indices)


class Stream(IterableDataset):
    """The samples in turns, every worker its own."""

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return ((image(index), index) for index in range(first, SAMPLES, step))


class Mirrored(SequentialSampler):
    """Draws its direction when it is asked for an iterator, not for the first sample."""

    def __iter__(self):
        indices = range(SAMPLES)
        return iter(indices if torch.rand(()) < 0.5 else indices[::-1])


class Endless(Sampler):
    def __iter__(self):
        return (turn % SAMPLES for turn in itertools.count())

    def __len__(self):
        raise NotImplementedError("it has no end")


def generators():
    return torch.Generator().manual_seed(5), torch.Generator().manual_seed(6)


def with_batch_sampler(workers):
    random = RandomSampler(range(SAMPLES), generator=generators()[0])
    return DataLoader(Images(), batch_sampler=_Own(random, BATCH, False), num_workers=workers)


class _Own(BatchSampler):
    """A batch sampler of another type, whose batches can only be passed over whole."""


def loader_with(sampler, **options):
    return lambda workers: DataLoader(
        Images(), batch_size=BATCH, sampler=sampler(Images()), num_workers=workers, **options
    )


KINDS = {
    "in order": lambda workers: DataLoader(Images(), batch_size=BATCH, num_workers=workers),
    "shuffled": lambda workers: DataLoader(Images(), batch_size=BATCH, shuffle=True, num_workers=workers),
    "drop_last": lambda workers: DataLoader(Images(), BATCH, shuffle=True, drop_last=True, num_workers=workers),
    "generator": lambda workers: DataLoader(
        Images(), batch_size=BATCH, shuffle=True, generator=generators()[0], num_workers=workers
    ),
    "two generators": loader_with(
        lambda data: RandomSampler(data, generator=generators()[0]), generator=generators()[1]
    ),
    "with replacement": loader_with(lambda data: RandomSampler(data, replacement=True, num_samples=70)),
    "subset": loader_with(lambda data: SubsetRandomSampler(range(3, len(data)))),
    "weighted": loader_with(lambda data: WeightedRandomSampler(range(1, len(data)), 30)),
    "eager": loader_with(Mirrored),
    "distributed": loader_with(lambda data: DistributedSampler(data, 2, 1, seed=3)),
    "batch_sampler": with_batch_sampler,
    "batches at once": lambda workers: DataLoader(
        Batches(),
        batch_size=None,
        sampler=BatchSampler(RandomSampler(Images(), generator=generators()[0]), BATCH, drop_last=False),
        num_workers=workers,
    ),
    "single": lambda workers: DataLoader(Images(), batch_size=None, shuffle=True, num_workers=workers),
    "stream": lambda workers: DataLoader(Stream(), batch_size=BATCH, num_workers=workers),
    "batches": lambda workers: list(DataLoader(Images(), batch_size=BATCH)),  # noqa: ARG005
}

# Those for which workers matter; samplers run in the training process, with workers or without.
UNLIKE = ["in order", "shuffled", "two generators", "distributed", "batch_sampler", "stream"]

OTHERS = {
    "batches of two": lambda workers: DataLoader(Images(), batch_size=2, num_workers=workers),
    "stream of twos": lambda workers: DataLoader(Stream(), batch_size=2, num_workers=workers),
    "kept": lambda workers: DataLoader(
        Images(), batch_size=BATCH, shuffle=True, num_workers=workers, persistent_workers=True
    ),
    "endless": loader_with(lambda _: Endless()),
    "fewer": lambda workers: DataLoader(Images(11), batch_size=BATCH, num_workers=workers),
}


def prefetched(kind, workers=0, **options):
    return fl.PrefetchLoader(
        (KINDS | OTHERS)[kind](workers), transform=AUGMENT, **{"device": "cpu", "seed": 7, **options}
    )


def row(epoch, batch):
    images, labels = batch
    return epoch, torch.as_tensor(labels).tolist(), images.clone()


def run(loader, epochs=EPOCHS, *, stop_after=None, take=None):
    """What comes; after ``stop_after`` batches of all epochs the state is taken, and with ``take`` that is all."""
    rows, states = [], [loader.state_dict()] if stop_after == 0 else []
    while loader.epoch < epochs:
        for batch in loader:
            rows.append(row(loader.epoch - 1, batch))
            torch.rand(3)  # training draws from the default generator too
            if len(rows) == stop_after:
                states.append(loader.state_dict())
                if take:
                    return rows, states[0]
    return rows, states[0] if states else None


def assert_same(actual, expected):
    assert [each[:2] for each in actual] == [each[:2] for each in expected]
    for (*_, image), (*_, other) in zip(actual, expected, strict=True):
        assert torch.equal(image, other)


def check(kind, place, workers, *, loaded_by=None, depth=2):
    torch.manual_seed(1)
    place = min(place, EPOCHS * len(prefetched(kind)) - 1)
    expected, state = run(prefetched(kind, workers, depth=depth), stop_after=place)
    torch.manual_seed(99)  # a new process knows nothing of the old one
    resumed = prefetched(kind, workers if loaded_by is None else loaded_by, depth=5 - depth)
    resumed.load_state_dict(copy.deepcopy(state))
    actual, _ = run(resumed)
    assert_same(actual, expected[place:])


@settings(max_examples=count(full=12, here=5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, EPOCHS * LENGTH), depth=st.integers(1, 4))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "single"])
def test_the_rest_is_what_would_have_come(kind, place, depth):
    check(kind, place, workers=0, depth=depth)


@settings(max_examples=count(full=6, here=1), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, EPOCHS * LENGTH))
@pytest.mark.parametrize("kind", count(full=[kind for kind in KINDS if kind not in ("single", "batches")], here=UNLIKE))
def test_the_rest_is_what_would_have_come_from_workers(kind, place):
    check(kind, place, workers=2)


def test_samples_that_are_no_batches_are_passed_over_too():
    check("single", 23, workers=0)


def test_the_number_of_workers_may_change():
    check("shuffled", 7, workers=2, loaded_by=0)


def test_an_order_without_end_is_gone_on_with():
    expected = [row(0, batch) for batch in islice(prefetched("endless"), 12)]
    loader = prefetched("endless")
    list(islice(loader, 7))
    resumed = prefetched("endless")
    resumed.load_state_dict(loader.state_dict())
    assert_same([row(0, batch) for batch in islice(resumed, 5)], expected[7:])


def test_no_sample_is_loaded_to_pass_over_it():
    _, state = run(prefetched("in order"), stop_after=3, take=True)
    resumed = prefetched("in order")
    resumed.load_state_dict(state)
    list(resumed)
    assert resumed.dataset.seen == list(range(3 * BATCH, SAMPLES))


def test_what_was_fetched_ahead_is_not_counted():
    loader = prefetched("in order", depth=50)
    iterator = iter(loader)
    next(iterator)
    loader._passes.pop().thread.join()  # all has been fetched
    state = loader.state_dict()
    assert (state["epoch"], state["batches"], state["samples"]) == (0, 1, BATCH)


def test_a_state_after_the_last_batch_is_followed_by_the_next_epoch():
    """Whether the loop asked for one more batch or not; Lightning's does not, and lost the next epoch."""
    expected, inside = run(prefetched("generator"), stop_after=LENGTH)
    loader = prefetched("generator")
    first, after = list(loader), loader.state_dict()
    assert len(first) == LENGTH
    for state in (inside, after):
        assert (state["epoch"], state["batches"]) == (1, 0)
        resumed = prefetched("generator")
        resumed.load_state_dict(state)
        assert (resumed.epoch, resumed.resumed_at) == (1, 0)
        assert_same(run(resumed)[0], expected[LENGTH:])


def test_an_epoch_whose_last_batch_came_is_over_for_a_loop_that_begins_at_it():
    """A program that counts its epochs itself saved the number of the one that it was in."""
    expected, inside = run(prefetched("generator"), stop_after=LENGTH)
    resumed = prefetched("generator")
    resumed.load_state_dict(inside)
    resumed.set_epoch(0)
    assert resumed.resumed_at == LENGTH
    assert list(resumed) == []
    assert resumed.state_dict()["epoch"] == 1
    assert_same(run(resumed)[0], expected[LENGTH:])


def test_a_loop_that_breaks_at_the_last_batch_has_finished_its_epoch():
    loader = prefetched("in order")
    for number, _ in enumerate(loader):
        if number == LENGTH - 1:
            break
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (1, 0)


def test_a_run_may_be_resumed_again_and_again():
    torch.manual_seed(1)
    expected, _ = run(prefetched("shuffled"))
    torch.manual_seed(1)
    actual, state = run(prefetched("shuffled"), stop_after=1, take=True)
    while len(actual) < len(expected) - 1:
        torch.manual_seed(len(actual))
        resumed = prefetched("shuffled")
        resumed.load_state_dict(state)
        assert resumed.state_dict()["batches"] == state["batches"]
        rows, state = run(resumed, stop_after=2, take=True)
        actual += rows
    assert_same(actual, expected[: len(actual)])


def test_the_same_loader_goes_back_to_a_state():
    loader = prefetched("shuffled", workers=2)
    torch.manual_seed(1)
    expected, state = run(loader, stop_after=4)
    loader.load_state_dict(state)
    actual, _ = run(loader)
    assert_same(actual, expected[4:])


@pytest.mark.parametrize("place", [3, LENGTH + 2])
def test_persistent_workers(place):
    def make():
        wrapped = DataLoader(Images(), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
        return fl.PrefetchLoader(wrapped, transform=AUGMENT, device="cpu")

    torch.manual_seed(1)
    expected, state = run(make(), stop_after=place)
    resumed = make()
    resumed.load_state_dict(state)
    assert_same(run(resumed)[0], expected[place:])


def test_kept_workers_go_back_to_the_first_epoch():
    """There they draw a seed before the samples are shuffled, and later they do not."""
    loader = fl.PrefetchLoader(DataLoader(Images(), BATCH, shuffle=True, num_workers=2, persistent_workers=True))
    torch.manual_seed(1)
    expected, state = run(loader, stop_after=0)
    loader.load_state_dict(state)
    assert_same(run(loader)[0], expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_is_under_way_ends_when_a_state_is_loaded(workers):
    loader = prefetched("generator", workers)
    torch.manual_seed(1)
    expected, state = run(prefetched("generator", workers), stop_after=2)
    under_way = iter(loader)
    next(under_way)
    loader.load_state_dict(state)
    assert list(under_way) == []
    assert_same(run(loader)[0], expected[2:])


def test_the_state_loaded_last_counts_and_taking_it_changes_nothing():
    torch.manual_seed(1)
    expected, first = run(prefetched("generator"), stop_after=2)
    torch.manual_seed(1)
    _, second = run(prefetched("generator"), stop_after=9)
    resumed = prefetched("generator")
    resumed.load_state_dict(first)
    resumed.load_state_dict(second)
    resumed.load_state_dict(resumed.state_dict())
    iter(resumed).close()  # begun, and nothing taken from it
    state = resumed.state_dict()
    assert (state["epoch"], state["batches"]) == (second["epoch"], second["batches"])
    again = prefetched("generator")
    again.load_state_dict(state)
    again.state_dict()
    assert_same(run(again)[0], expected[9:])


def test_a_prefetched_loader_may_be_prefetched():
    def twice():
        return fl.PrefetchLoader(prefetched("shuffled"), device="cpu", depth=4)

    torch.manual_seed(1)
    expected, state = run(twice(), stop_after=LENGTH + 2)
    torch.manual_seed(9)
    resumed = twice()
    resumed.load_state_dict(state)
    assert_same(run(resumed)[0], expected[LENGTH + 2 :])


def test_a_generator_is_pulled_from_and_not_transformed():
    calls = []

    def note(images):
        calls.append(len(images))
        return images

    loader = fl.PrefetchLoader(iter(KINDS["batches"](0)), transform=note, device="cpu")
    next(iter(loader))
    resumed = fl.PrefetchLoader(iter(KINDS["batches"](0)), transform=note, device="cpu")
    resumed.load_state_dict(loader.state_dict())
    loader.close()
    calls.clear()
    assert [labels[0].item() for _, labels in resumed] == [4, 8, 12, 16]
    assert calls == [4, 4, 4, 3]


def test_batches_that_were_skipped_whole_count_as_pulled():
    def batches():
        yield from (fl.collate([(text, index)]) for index, text in enumerate([good, b"bad", good, b"bad", good]))

    good = jpeg()
    transform = T.Compose([T.DecodeJpeg(on_error="skip"), T.RandomResizedCrop(6)])
    loader = fl.PrefetchLoader(list(batches()), transform=transform, device="cpu")
    with pytest.warns(UserWarning, match="left out"):
        list(islice(loader, 2))
    state = loader.state_dict()
    assert (state["batches"], state["samples"]) == (3, 3)


class Noise(Stream):
    def __iter__(self):
        return ((torch.rand(3, 8, 8), index) for _, index in super().__iter__())


def test_an_iterable_draws_again_what_its_workers_drew():
    def make():
        return fl.PrefetchLoader(DataLoader(Noise(), batch_size=BATCH, num_workers=2), transform=AUGMENT, device="cpu")

    torch.manual_seed(1)
    expected, state = run(make(), stop_after=3)
    torch.manual_seed(9)
    resumed = make()
    resumed.load_state_dict(state)
    assert_same(run(resumed)[0], expected[3:])


# Ranks, epochs, batch sizes


def shared(rank, ranks, batch_size=BATCH):
    sampler = DistributedSampler(Images(48), ranks, rank, seed=3)
    wrapped = DataLoader(Images(48), batch_size, sampler=sampler)
    return fl.PrefetchLoader(wrapped, transform=AUGMENT, device="cpu")


def test_ranks_that_cannot_have_come_equally_far_have_some_samples_again():
    """Three ranks after 8 samples each have had 24; five go on from 20, so four samples come again, augmented alike."""
    whole = by_sample([shared(0, 1)])
    old = [shared(rank, 3) for rank in range(3)]
    iterators = [islice(loader, 2) for loader in old]
    seen = by_sample(iterators)
    new = [shared(rank, 5) for rank in range(5)]
    for loader in new:
        loader.load_state_dict(old[2].state_dict())
    left = by_sample(new)
    again = 4
    filled_up = 2  # 48 samples, 50 places
    same = [row for row in left if any(row[0] == index and torch.equal(row[1], image) for index, image in whole)]
    assert len(seen) + len(left) == 48 + again + filled_up
    assert {index for index, _ in seen + left} == set(range(48))
    assert len(same) == len(left) - filled_up


def by_sample(loaders):
    rows = [zip(labels.tolist(), images, strict=True) for loader in loaders for images, labels in loader]
    return [pair for each in rows for pair in each]


@pytest.mark.parametrize(("before", "after"), [((2, 4), (4, 4)), ((4, 4), (1, 8)), ((2, 4), (2, 2)), ((1, 4), (2, 3))])
def test_ranks_and_batch_size_may_change(before, after):
    """The samples that are left come once each, augmented as they would have been."""
    whole = dict(by_sample([shared(0, 1)]))
    (ranks, size), (new_ranks, new_size) = before, after
    old = [shared(rank, ranks, size) for rank in range(ranks)]
    seen = [index for loader in old for _, labels in islice(loader, 3) for index in labels.tolist()]
    state = old[0].state_dict()
    new = [shared(rank, new_ranks, new_size) for rank in range(new_ranks)]
    for loader in new:
        loader.load_state_dict(state)
        loader.set_epoch(0)  # of which the ranks before may have had the last batch
    left = by_sample(new)
    assert sorted(seen + [index for index, _ in left]) == list(range(48))
    assert all(torch.equal(image, whole[index]) for index, image in left)
    for loader in new:
        loader.set_epoch(1)
    assert len(by_sample(new)) == 48


def test_the_samplers_epoch_is_that_of_the_state():
    expected = shared(0, 2)
    expected.set_epoch(5)
    rows = [row(5, batch) for batch in expected]
    expected.set_epoch(5)
    list(islice(expected, 2))
    for announce in (False, True):
        resumed = shared(0, 2)
        resumed.load_state_dict(expected.state_dict())
        assert (resumed.epoch, resumed.sampler.epoch) == (5, 5)
        if announce:
            resumed.set_epoch(5)
        assert_same([row(5, batch) for batch in resumed], rows[2:])


def test_a_state_is_loaded_after_passes_of_other_epochs():
    loader = shared(0, 2)
    loader.set_epoch(5)
    rows = [row(5, batch) for batch in loader]
    loader.set_epoch(5)
    list(islice(loader, 2))
    state = loader.state_dict()
    loader.sampler.set_epoch(8)
    list(loader)
    loader.load_state_dict(state)
    assert_same([row(5, batch) for batch in loader], rows[2:])


def test_another_epoch_is_begun_at_its_first_batch_with_a_word():
    _, state = run(prefetched("distributed"), stop_after=2, take=True)
    resumed = prefetched("distributed")
    resumed.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"of epoch 0, after 2 batches; set_epoch\(3\)"):
        resumed.set_epoch(3)
    assert len(list(resumed)) == len(resumed)


@pytest.mark.parametrize("kind", ["distributed", "shuffled", "in order", "stream"])
@pytest.mark.parametrize("calls", [("skip", "skip", "epoch"), ("skip", "epoch", "skip"), ("epoch", "skip", "skip")])
def test_batches_may_be_skipped_before_or_after_the_epoch_is_set(kind, calls):
    def begun(*calls):
        torch.manual_seed(1)
        loader = prefetched(kind)
        for call in calls:
            loader.skip(1) if call == "skip" else loader.set_epoch(2)
        return [row(loader.epoch - 1, batch) for batch in loader]

    whole = begun("epoch")
    assert {epoch for epoch, *_ in whole} == {2}
    assert_same(begun(*calls), whole[2:])


def test_a_state_of_a_skipped_epoch_that_has_not_begun_is_gone_on_with():
    torch.manual_seed(1)
    whole = [[row(epoch, batch) for batch in loader] for loader in [prefetched("shuffled")] for epoch in range(3)]
    torch.manual_seed(1)
    loader, resumed = prefetched("shuffled"), prefetched("shuffled")
    loader.skip(2)
    state = loader.state_dict()
    torch.manual_seed(2)
    resumed.load_state_dict(state)
    assert_same([row(0, batch) for batch in resumed], whole[0][2:])
    for epoch in (1, 2):
        assert_same([row(epoch, batch) for batch in resumed], whole[epoch])


@pytest.mark.parametrize(("drop_last", "batches"), [(False, 5), (True, 4)])
def test_no_more_batches_are_skipped_than_there_are(drop_last, batches):
    for skipped in (batches + 1, batches + 4):
        loader = fl.PrefetchLoader(DataLoader(Images(), BATCH, drop_last=drop_last), device="cpu")
        assert len(loader) == batches
        loader.skip(skipped)
        with pytest.raises(ValueError, match=f"after {skipped} batches of epoch 0, and the loader has {batches}:"):
            iter(loader)


@pytest.mark.parametrize("breaks", [False, True])
def test_within_another_pass_the_state_is_that_of_the_batch_that_came_last(breaks):
    """As where batch norm's statistics are taken from the training data within an epoch."""
    torch.manual_seed(1)
    loader, resumed = prefetched("shuffled"), prefetched("shuffled")
    rest = []
    for number, batch in enumerate(loader):
        if number == 0:
            assert len(list(loader)) == LENGTH
        if number == 1:
            state = loader.state_dict()
        if number == 2 and breaks:
            break
        if number > 1:
            rest.append(row(0, batch))
    if breaks:
        state, rest = loader.state_dict(), rest[1:]
        assert (state["epoch"], state["batches"]) == (0, 3)
        return
    assert (state["epoch"], state["batches"]) == (0, 2)
    assert loader.state_dict()["epoch"] == 2
    resumed.load_state_dict(state)
    assert_same([row(0, batch) for batch in resumed], rest)


def test_another_epoch_of_a_loader_with_a_state_is_begun_at_its_first_batch_too():
    loader = fl.PrefetchLoader(Counting(), device="cpu")
    list(islice(loader, 2))
    resumed = fl.PrefetchLoader(Counting(), device="cpu")
    resumed.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match=r"set_epoch\(1\)"):
        resumed.set_epoch(1)
    assert len(list(resumed)) == SAMPLES


def test_ranks_that_share_an_epoch_keep_their_default_generators():
    loader = shared(0, 2)
    next(iter(loader))
    state = loader.state_dict()
    before = torch.get_rng_state()
    shared(1, 2).load_state_dict(state)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_can_be_saved_and_read_as_weights(tmp_path):
    _, state = run(prefetched("shuffled"), stop_after=3, take=True)
    torch.save(state, tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 20_000
    resumed = prefetched("shuffled")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert len(list(resumed)) == LENGTH - 3


@pytest.mark.gpu
def test_a_state_that_was_read_onto_the_gpu_is_gone_on_with_there(tmp_path):
    torch.manual_seed(1)
    expected, state = run(prefetched("generator", workers=2, device="cuda"), stop_after=LENGTH + 2)
    torch.save(state, tmp_path / "state.pt")
    torch.manual_seed(9)
    resumed = prefetched("generator", workers=2, device="cuda")
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", map_location="cuda"))
    assert_same(run(resumed)[0], expected[LENGTH + 2 :])


# Loaders with a state of their own


class Counting:
    """A loader with a state, which it changes in place."""

    def __init__(self):
        self.state = {"next": [0]}

    def __iter__(self):
        while self.state["next"][0] < SAMPLES:
            self.state["next"][0] += 1
            yield image(self.state["next"][0])[None]
        self.state["next"][0] = 0

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


@pytest.mark.parametrize("place", [0, 3, SAMPLES, SAMPLES + 2])
def test_a_loader_with_a_state_is_resumed_by_it(place):
    def make():
        return fl.PrefetchLoader(Counting(), transform=AUGMENT, device="cpu", depth=6)

    def images(loader):
        return [image for _ in range(loader.epoch, 2) for image in loader]

    expected, loader = images(make()), make()
    iterator = iter(loader)
    for _ in range(min(place, SAMPLES)):
        next(iterator)
    if place > SAMPLES:
        assert next(iterator, None) is None
        list(islice(loader, place - SAMPLES))
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    loader.close()
    actual = images(resumed)
    assert len(actual) == 2 * SAMPLES - place
    assert all(torch.equal(one, other) for one, other in zip(actual, expected[place:], strict=True))


class StatefulStream(Stream):
    """Knows where it is, so that nothing needs to be pulled again."""

    def __init__(self):
        self.first = self.turn = 0
        self.pulled = []

    def __iter__(self):
        first, self.first = self.first, 0
        return self.pull(first)

    def pull(self, first):
        self.turn = first
        for self.turn, (pixels, index) in islice(enumerate(super().__iter__(), 1), first, None):
            self.pulled.append(index)
            yield pixels, index

    def state_dict(self):
        return {"turn": self.turn}

    def load_state_dict(self, state):
        self.first = state["turn"]


def stateful(dataset, workers, **options):
    module = pytest.importorskip("torchdata.stateful_dataloader")
    options |= {"shuffle": True} if isinstance(dataset, Images) else {}
    wrapped = module.StatefulDataLoader(dataset, batch_size=BATCH, num_workers=workers, **options)
    return fl.PrefetchLoader(wrapped, transform=AUGMENT, device="cpu", depth=4)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(
    ("dataset", "place", "kept"),
    variants([Images, Stream, StatefulStream], [0, 2, LENGTH, LENGTH + 3], [(0, False), (2, False), (2, True)]),
)
def test_a_stateful_dataloader_is_resumed_by_its_own_state(dataset, place, kept, tmp_path):
    workers, persistent = kept
    torch.manual_seed(1)
    expected, state = run(stateful(dataset(), workers, persistent_workers=persistent), stop_after=place)
    torch.save(state, tmp_path / "state.pt")
    torch.manual_seed(9)
    resumed = stateful(dataset(), workers, persistent_workers=persistent)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert_same(run(resumed)[0], expected[place:])


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_dataset_is_not_pulled_from_again():
    _, state = run(stateful(StatefulStream(), 0), stop_after=3, take=True)
    resumed = stateful(StatefulStream(), 0)
    resumed.load_state_dict(state)
    list(resumed)
    assert resumed.dataset.pulled == list(range(3 * BATCH, SAMPLES))


# What is refused


def taken(kind="in order", place=3, **options):
    return run(prefetched(kind, **options), stop_after=place, take=True)[1]


@pytest.mark.parametrize(
    ("state", "kind", "message"),
    [
        (lambda: {"_snapshot": 1}, "in order", r"format 2; got format None with keys \['_snapshot'\]"),
        (lambda: taken() | {"format": 9}, "in order", "format 2; got format 9"),
        (lambda: {"format": 1}, "in order", r"of format 2; got format 1 with keys \['format'\]"),
        (lambda: taken(seed=3), "in order", "taken with seed=3, and this loader has seed=7"),
        (lambda: taken("shuffled"), "in order", "with sampler='RandomSampler', and.*sampler='SequentialSampler'"),
        (lambda: taken("shuffled"), "generator", "with generators=0, and this loader has generators=1"),
        (lambda: taken("stream", workers=2), "stream", "with num_workers=2, and this loader has num_workers=0"),
        (lambda: taken("batches"), "in order", "with loader='list', .* and this loader has loader='DataLoader'"),
        (lambda: taken("batches of two"), "in order", None),
        (lambda: taken("stream of twos"), "stream", "with batch_size=2, and this loader has batch_size=4"),
        (lambda: taken("kept", workers=2), "shuffled", "with persistent_workers=True, and .*persistent_workers=False"),
        (lambda: taken("fewer"), "in order", "with samples=11, and this loader has samples=19"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_values(state, kind, message):
    loader = prefetched(kind)
    with pytest.raises(ValueError, match=message) if message else contextlib.nullcontext():
        loader.load_state_dict(state())


def test_a_state_within_an_epoch_of_batches_in_no_order_warns_and_is_refused_when_it_is_loaded():
    def loader():
        return fl.PrefetchLoader(DataLoader(Images(), 4, num_workers=2, in_order=False), device="cpu")

    left = loader()
    next(iter(left))
    with pytest.warns(UserWarning, match="in_order=False and num_workers=2.*cannot be loaded"):
        state = left.state_dict()
    left.close()
    with pytest.raises(ValueError, match="after 1 batches of epoch 0 of a loader with in_order=False"):
        loader().load_state_dict(state)


def test_a_state_between_epochs_of_batches_in_no_order_resumes():
    def loader():
        return fl.PrefetchLoader(DataLoader(Images(), 4, num_workers=2, in_order=False), device="cpu")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = loader()
        assert len(list(first)) == len(first)
        resumed = loader()
        resumed.load_state_dict(first.state_dict())
    assert resumed.epoch == 1
    assert len(list(resumed)) == len(first)


def test_batches_that_are_read_again_and_differ_are_refused_with_the_cure():
    kept = [torch.arange(4) + 4 * number for number in range(5)]
    loader = fl.PrefetchLoader(kept, device="cpu")
    one_pass = iter(loader)
    [next(one_pass) for _ in range(2)]
    state = loader.state_dict()
    loader.close()
    same, other, unchecked = (fl.PrefetchLoader(order, device="cpu") for order in (kept, kept[::-1], kept[::-1]))
    same.load_state_dict(state)
    assert [batch.tolist() for batch in same] == [batch.tolist() for batch in kept[2:]]
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=r"(?s)batch 2 of epoch 0.*differs.*seeded by the epoch.*'checksum'\] = None"):
        iter(other)
    unchecked.load_state_dict(state | {"checksum": None})
    assert len(list(unchecked)) == 3


@pytest.mark.parametrize(("kind", "found"), [("batch_sampler", 5), ("stream", 6), ("batches", 5)])
def test_an_epoch_that_is_shorter_than_the_state_is_refused(kind, found):
    workers = 2 if kind == "stream" else 0
    loader = prefetched(kind, workers)
    loader.load_state_dict(taken(kind, workers=workers) | {"batches": 8})
    for _ in range(2):  # and again
        with pytest.raises(ValueError, match=f"after 8 batches of epoch 0, and the loader has {found}"):
            iter(loader)


class Again(Sampler):
    """Begins anew with each `iter`, of what it returns too."""

    def __iter__(self):
        self._left = iter(range(SAMPLES))
        return self

    def __next__(self):
        return next(self._left)

    def __len__(self):
        return SAMPLES


@pytest.mark.parametrize("place", [0, 1, 7])
def test_a_sampler_that_begins_anew_with_each_iter_is_gone_on_with(place):
    def loader():
        return fl.PrefetchLoader(DataLoader(range(SAMPLES), sampler=Again(), batch_size=None), device="cpu")

    begun = loader()
    came = list(islice(begun, place))
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    assert came + list(resumed) == list(range(SAMPLES))

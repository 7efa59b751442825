"""Keys: each number has a counter of its own, whoever draws it. The chances are six standard deviations or 1e-9."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pytest
import torch

from fastload import transforms as T
from fastload.transforms.key import NUMBERS, UNIFORM
from tests.counts import count

SAMPLES = count(full=200_000, here=4_000)
DEVIATIONS, CHANCE = 6, 1e-9
RANKS = [1, 2, 8, 64]


def rank_of(ranks, rank=0, **parts):
    return T.Key(seed=11, place=rank, stride=ranks, step=ranks, **parts)


def as_array(key, count=1):
    return key.uniform(SAMPLES, count).numpy()


NEIGHBOURS = {
    "rank": lambda ranks: (rank_of(ranks, 0), rank_of(ranks, 1)),
    "last rank": lambda ranks: (rank_of(ranks, 0), rank_of(ranks, max(1, ranks - 1))),
    "epoch": lambda ranks: (rank_of(ranks), rank_of(ranks, epoch=1)),
    "transform": lambda ranks: (rank_of(ranks), rank_of(ranks, draw=1)),
    "view": lambda ranks: (rank_of(ranks), rank_of(ranks, view=1)),
    "seed": lambda ranks: (rank_of(ranks), replace(rank_of(ranks), seed=12)),
    "place": lambda ranks: (rank_of(ranks), rank_of(ranks).advanced(1)),
    "far place": lambda ranks: (rank_of(ranks), replace(rank_of(ranks), place=2**39)),
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("epoch", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("draw", [0, 1, 9])
def test_numbers_are_uniform(ranks, epoch, draw):
    """Kolmogorov and Smirnov's distance, and chi-square of 64 cells, for the first and the last of 22 numbers."""
    numbers = as_array(rank_of(ranks, ranks - 1, epoch=epoch, draw=draw), 22)
    for column in (numbers[:, 0], numbers[:, -1]):
        places = np.arange(SAMPLES + 1) / SAMPLES
        sorted_ = np.sort(column)
        distance = max((places[1:] - sorted_).max(), (sorted_ - places[:-1]).max())
        assert distance < sqrt(log(2 / CHANCE) / 2 / SAMPLES)
        assert_even(np.bincount((column * 64).astype(int), minlength=64))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_neighbours_are_independent(neighbour, ranks):
    """Correlation, and chi-square of 8 x 8 cells, of the same sample's numbers."""
    assert_independent(*(as_array(key) for key in NEIGHBOURS[neighbour](ranks)))


def test_the_numbers_of_a_sample_are_independent():
    numbers = as_array(T.Key(seed=11), 22)
    for one, other in ((0, 1), (1, 2), (0, 2), (0, 21), (20, 21)):
        assert_independent(numbers[:, one], numbers[:, other])
    assert_independent(numbers[:-1, 0], numbers[1:, 0])  # and those of two samples


def test_seeds_are_independent_of_numbers():
    key = T.Key(seed=11)
    seeds = key.integers(SAMPLES).double().numpy() * 2.0**-63
    assert_even(np.bincount((seeds * 64).astype(int), minlength=64))
    assert_independent(seeds, as_array(key))


def assert_independent(one, other):
    assert abs(np.corrcoef(one, other)[0, 1]) < DEVIATIONS / sqrt(SAMPLES)
    assert_even(np.bincount((one * 8).astype(int) * 8 + (other * 8).astype(int), minlength=64))


def assert_even(cells):
    expected = cells.sum() / len(cells)
    freedom = len(cells) - 1
    assert ((cells - expected) ** 2 / expected).sum() < freedom + DEVIATIONS * sqrt(2 * freedom)


def test_no_two_draws_share_a_word():
    """Over ranks, epochs, transforms, views, and both kinds of draws: all 64-bit words differ."""
    words = [
        replace(rank_of(ranks, rank, epoch=epoch, draw=draw, view=view), seed=seed)._words(
            count(full=2_000, here=20), 11, kind
        )
        for seed in (0, 1)
        for ranks, rank in ((64, 0), (64, 63))
        for epoch in (0, 1, 300)
        for draw in range(8)
        for view in (0, 1)
        for kind in (0, 1)
    ]
    whole = np.concatenate([each.ravel() for each in words])
    assert len(np.unique(whole)) == len(whole)


def test_the_draws_of_batches_share_no_number():
    """Neighbouring ranks had the same MixUp in one batch of four."""
    keys = [T.Key(place=place, epoch=epoch, draw=draw) for place in range(40) for epoch in (0, 1) for draw in (0, 1)]
    numbers = np.concatenate([key.generator().random(8) for key in keys])
    assert len(np.unique(numbers)) == len(numbers)


def test_a_sample_has_its_numbers_however_it_comes():
    whole = T.Key(seed=3).uniform(2000, 5)
    for rank in range(4):
        key = replace(rank_of(4, rank), seed=3)
        assert torch.equal(key.uniform(500, 5), whole[rank::4])
        assert torch.equal(key.advanced(30).uniform(470, 5), whole[rank::4][30:])
        assert torch.equal(key.from_sample(30).uniform(470, 5), whole[rank::4][30:])
    consecutive = T.Key(seed=3, place=8, step=2)  # the second of two ranks, which are dealt eight at a time
    assert torch.equal(consecutive.uniform(8, 5), whole[8:16])
    assert torch.equal(consecutive.advanced(8).uniform(8, 5), whole[24:32])
    assert torch.equal(consecutive.from_sample(3).uniform(5, 5), whole[11:16])
    rows = torch.tensor([0, 3, 4])
    assert torch.equal(T.Key(seed=3).for_rows(rows).uniform(3, 5), whole[rows])
    assert torch.equal(T.Key(seed=3).uniform(2000, 3), whole[:, :3])


def test_several_views_have_the_numbers_of_each():
    key = T.Key(seed=5, epoch=2, place=640, draw=1, stride=8).for_rows(torch.tensor([0, 2, 3, 9]))
    views = (255, 7, 0)
    together, alone = key.for_views(views, 4), [key.for_view(view) for view in views]
    assert torch.equal(together.uniform(12, 5), torch.cat([each.uniform(4, 5) for each in alone]))
    assert torch.equal(together.integers(12), torch.cat([each.integers(4) for each in alone]))
    ahead = together.drawn(12, {1: 5, 3: 2}).for_draw(3)
    assert torch.equal(ahead.uniform(12, 2), torch.cat([each.for_draw(3).uniform(4, 2) for each in alone]))
    rows = torch.tensor([1, 5, 6, 8])
    assert torch.equal(together.for_rows(rows).uniform(4, 3), together.uniform(12, 3)[rows])
    assert torch.equal(key.for_views([7], 4).uniform(4), key.for_view(7).uniform(4))


def test_several_views_refuse_what_is_beyond_their_limits():
    with pytest.raises(ValueError, match=r"of one view; got the key of \(3, 2\)"):
        T.Key().for_views([3, 2], samples=4).generator()
    with pytest.raises(ValueError, match="view must be from 0 to 255; got 256"):
        T.Key().for_views([3, 256], samples=4)
    last = T.Key(place=2**40 - 2).for_views([3, 2], samples=3)
    with pytest.raises(ValueError, match="below 2\\*\\*40; got 1099511627776"):
        last.for_rows(torch.tensor([2, 3])).uniform(2)
    with pytest.raises(ValueError, match="below 2\\*\\*40; got 1099511627776"):
        T.Key(place=2**40 - 2).for_rows(torch.tensor([2, 0])).uniform(2)


def test_numbers_drawn_ahead_are_those_drawn_one_by_one():
    key = T.Key(seed=5, epoch=2, place=640, draw=1, stride=8, step=8, view=3)
    ahead = key.drawn(100, {1: 22, 4: 1, 5: 7})
    for draw, numbers in ((1, 22), (4, 1), (5, 7), (5, 3), (5, 40), (6, 2)):
        assert torch.equal(ahead.for_draw(draw).uniform(100, numbers), key.for_draw(draw).uniform(100, numbers))
    rows = torch.tensor([3, 50])
    for change in (lambda key: key.for_rows(rows), lambda key: key.for_view(1), lambda key: key.advanced(2)):
        assert torch.equal(change(ahead).for_draw(5).uniform(2), change(key).for_draw(5).uniform(2))
    assert torch.equal(ahead.for_draw(5).uniform(60), key.for_draw(5).uniform(60))


def test_ranks_cost_nothing():
    """Drawing all places between those of a rank would take a terabyte here."""
    assert T.Key(stride=2**30).uniform(256, 22).shape == (256, 22)


def test_the_largest_of_each_part_is_taken():
    key = T.Key(seed=2**63 - 1, epoch=2**32 - 1, place=2**40 - 4, draw=2**16 - 1, view=2**8 - 1)
    assert len(key.uniform(4).unique()) == 4
    assert key.generator().random() < 1


@pytest.mark.parametrize(
    ("part", "limit"),
    [("seed", 2**63), ("epoch", 2**32), ("place", 2**40), ("draw", 2**16), ("view", 2**8)],
)
def test_parts_that_have_no_bits_are_refused(part, limit):
    for wrong in (-1, limit):
        with pytest.raises(ValueError, match=f"{part} must be from 0 to {limit - 1}; got {wrong}"):
            T.Key(**{part: wrong})
    for wrong in (1.0, "a", None):
        with pytest.raises(TypeError, match=f"{part} must be an int; got {wrong!r}"):
            T.Key(**{part: wrong})


def test_places_and_numbers_beyond_the_last_are_refused():
    with pytest.raises(ValueError, match=r"place in the epoch must be below 2\*\*40; got 1099511627776"):
        T.Key(place=2**40 - 3).uniform(4)
    with pytest.raises(ValueError, match="at most"):
        T.Key()._words(1, NUMBERS + 1, UNIFORM)
    with pytest.raises(ValueError, match="the key is that of 2 samples of a batch; got 3 samples"):
        T.Key().for_rows(torch.tensor([0, 2])).uniform(3)


def test_integers_of_numpy_and_torch_are_integers():
    assert T.Key(np.int64(1), np.uint8(2), torch.tensor(3)) == T.Key(1, 2, 3)
    assert {type(value) for value in (T.Key(np.int64(1)).seed, T.Key(place=torch.tensor(3)).place)} == {int}

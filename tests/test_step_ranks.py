"""Two ranks over gloo train as one rank with the same global batch, with one reduction of gradients a window."""

import pytest
import torch

from tests.ranks import train_alone, train_as_two_ranks


def assert_ranks_equal(ranks, alone):
    for rank in ranks:
        assert rank["updates"] == alone["updates"]
        torch.testing.assert_close(rank["weights"], alone["weights"])
        torch.testing.assert_close(rank["ema"], alone["ema"])
    torch.testing.assert_close(ranks[0]["weights"], ranks[1]["weights"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("wrapper", "loop"), [("ddp", "epoch"), ("ddp", "flush"), ("ddp", "items"), ("fsdp", "epoch"), ("fsdp", "items")]
)
def test_two_ranks_train_as_one_with_one_reduction_a_window(wrapper, loop, tmp_path):
    ranks = train_as_two_ranks(tmp_path, wrapper, loop)
    assert_ranks_equal(ranks, train_alone(loop))
    windows = 3  # the last of which flush reduces itself
    reductions = windows - (loop == "flush")
    assert [rank["reductions"] for rank in ranks] == [reductions] * 2


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_a_window_that_one_rank_has_to_skip_all_ranks_skip(wrapper, tmp_path):
    ranks = train_as_two_ranks(tmp_path, wrapper, "epoch", spoilt=5, on_nonfinite="skip")
    assert_ranks_equal(ranks, train_alone("epoch", without=range(4, 8)))
    assert ranks[0]["updates"] == 2


def test_all_ranks_raise_at_the_same_update_and_say_whose_loss_it_was(tmp_path):
    other, spoilt = train_as_two_ranks(tmp_path, "ddp", "epoch", spoilt=5)
    assert other["told"].startswith("the loss of update 2 is not finite: on another rank, and finite on this one.")
    assert spoilt["told"].startswith("the loss of update 2 is not finite: batch 6, 5 of its epoch: loss nan.")
    assert (other["updates"], spoilt["updates"]) == (1, 1)

"""Two ranks train as one with the same global batch, with one reduction of gradients a window: on the CPU over gloo,
on two GPUs over NCCL.
"""

import pytest
import torch

from tests.ranks import TOLERANCE, train_alone, train_as_two_ranks

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(2))])


def assert_ranks_equal(ranks, alone):
    for rank in ranks:
        assert rank["updates"] == alone["updates"]
        torch.testing.assert_close(rank["weights"], alone["weights"], **TOLERANCE)
        torch.testing.assert_close(rank["ema"], alone["ema"], **TOLERANCE)
    torch.testing.assert_close(ranks[0]["weights"], ranks[1]["weights"], rtol=0, atol=0)


@on_devices
@pytest.mark.parametrize(
    ("wrapper", "loop"), [("ddp", "epoch"), ("ddp", "flush"), ("ddp", "items"), ("fsdp", "epoch"), ("fsdp", "items")]
)
def test_two_ranks_train_as_one_with_one_reduction_a_window(wrapper, loop, device, tmp_path):
    ranks = train_as_two_ranks(tmp_path, device, wrapper, loop)
    assert_ranks_equal(ranks, train_alone(loop))
    windows = 3  # the last of which flush reduces itself
    reductions = windows - (loop == "flush")
    assert [rank["reductions"] for rank in ranks] == [reductions] * 2


@on_devices
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_a_window_that_one_rank_has_to_skip_all_ranks_skip(wrapper, device, tmp_path):
    ranks = train_as_two_ranks(tmp_path, device, wrapper, "epoch", spoilt=5, on_nonfinite="skip")
    assert_ranks_equal(ranks, train_alone("epoch", without=range(4, 8)))
    assert ranks[0]["updates"] == 2


@on_devices
def test_all_ranks_raise_at_the_same_update_and_say_whose_loss_it_was(device, tmp_path):
    other, spoilt = train_as_two_ranks(tmp_path, device, "ddp", "epoch", spoilt=5)
    assert other["told"].startswith("the loss of update 2 is not finite: on another rank, and finite on this one.")
    assert spoilt["told"].startswith("the loss of update 2 is not finite: batch 6, 5 of its epoch: loss nan.")
    assert (other["updates"], spoilt["updates"]) == (1, 1)

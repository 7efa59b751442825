"""Two ranks train as one with the same global batch, with one reduction of gradients a window: on the CPU over gloo,
on two GPUs over NCCL.
"""

import pytest
import torch
from torch import distributed, nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

from fastload.training.step import TrainStep
from tests.lives import be_born, run_ranks
from tests.ranks import TOLERANCE, train_alone, train_as_two_ranks

on_devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu(2))])


def assert_ranks_equal(ranks, alone):
    for rank in ranks:
        assert rank["updates"] == alone["updates"]
        torch.testing.assert_close(rank["weights"], alone["weights"], **TOLERANCE)
        torch.testing.assert_close(rank["ema"], alone["ema"], **TOLERANCE)
    torch.testing.assert_close(ranks[0]["weights"], ranks[1]["weights"], rtol=0, atol=0)


@pytest.mark.long
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


@pytest.mark.long
@on_devices
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_a_window_that_one_rank_has_to_skip_all_ranks_skip(wrapper, device, tmp_path):
    ranks = train_as_two_ranks(tmp_path, device, wrapper, "epoch", spoilt=5, on_nonfinite="skip")
    assert_ranks_equal(ranks, train_alone("epoch", without=range(4, 8)))
    assert ranks[0]["updates"] == 2


@pytest.mark.long
@on_devices
def test_all_ranks_raise_at_the_same_update_and_say_whose_loss_it_was(device, tmp_path):
    other, spoilt = train_as_two_ranks(tmp_path, device, "ddp", "epoch", spoilt=5)
    assert other["told"].startswith("the loss of update 2 is not finite: on another rank, and finite on this one.")
    assert spoilt["told"].startswith("the loss of update 2 is not finite: batch 6, 5 of its epoch: loss nan.")
    assert (other["updates"], spoilt["updates"]) == (1, 1)


def sick(output, is_sick):
    """A finite loss, whose gradients are NaN if ``is_sick``."""
    return output.square().mean() + ((output * 0).abs().sum().sqrt() if is_sick else 0)


def train_unevenly(rank, home):
    """Rank 0 has a NaN gradient in its second batch; then, under Join, the ranks have batches of different numbers."""
    be_born()
    distributed.init_process_group("gloo", f"file://{home / 'store'}", rank=rank, world_size=2)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []
    step = TrainStep(model, optimizer, sick)
    try:
        for place in range(3):
            step(torch.ones(2, 4), place == 1 and rank == 0)
    except FloatingPointError as error:
        told.append(str(error))
    with torch.no_grad():  # they have taken the NaN
        for parameter in model.parameters():
            parameter.fill_(1)
    try:
        with Join([model]):
            step(torch.ones(2, 4), False)
    except RuntimeError as error:
        told.append(str(error))
    told.append(str([parameter.grad for parameter in model.parameters()]))
    uneven = TrainStep(model, optimizer, sick, on_nonfinite="ignore")
    with Join([model]):
        for _ in range(2 + 3 * rank):
            uneven(torch.ones(2, 4), False)
    told.append(str(model.module.weight.tolist()))
    torch.save(told, home / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.long
def test_gradients_that_are_nan_and_join_are_told_on_all_ranks(tmp_path):
    run_ranks(train_unevenly, tmp_path)
    for nonfinite, join, gradients, weights in (torch.load(tmp_path / f"{rank}.pt") for rank in range(2)):
        assert nonfinite.startswith("the gradients of update 2 are not finite, though its losses are: batch 2.")
        assert join.startswith("inside Join a step cannot agree with ranks that have no batches left.")
        assert gradients == "[None, None]"
        assert "nan" not in weights
    assert weights == torch.load(tmp_path / "0.pt")[3]


def train_with_statistics(rank, home):
    """Rank by rank other batches, with statistics that rank 0 sends in each step, and with each rank's own."""
    be_born()
    distributed.init_process_group("gloo", f"file://{home / 'store'}", rank=rank, world_size=2)
    batches = torch.randn(4, 16, 4, generator=torch.Generator().manual_seed(rank)).double()
    states = []
    for sends in (True, False):
        torch.manual_seed(0)
        layers = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
        model = DistributedDataParallel(nn.Sequential(*layers).double())
        model.broadcast_buffers = sends
        step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
        for batch in batches:
            step(batch, torch.arange(16) % 2)
        states.append(model.module.state_dict())
    torch.save(states, home / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.long
def test_ranks_that_keep_their_statistics_train_as_those_that_get_rank_0s(tmp_path):
    run_ranks(train_with_statistics, tmp_path)
    (sent, own), (sent_too, own_too) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for name, value in sent.items():
        assert torch.equal(own[name], value)  # all that rank 0 has, and saves
        if "running" not in name:
            assert torch.equal(own_too[name], value)
            assert torch.equal(sent_too[name], value)
    assert not torch.equal(own["1.running_mean"], own_too["1.running_mean"])


@pytest.fixture
def only_rank(tmp_path):
    distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("only_rank")
def test_replicas_do_not_wait_for_the_device_every_hundred_steps():
    model = DistributedDataParallel(nn.Linear(4, 2))
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    for _ in range(102):
        step(torch.ones(2, 4), torch.zeros(2, dtype=torch.long))
    statistics = model._get_ddp_logging_data()  # PyTorch waits for the device when it fills them in
    assert statistics["iteration"] == 10

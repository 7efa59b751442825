"""Accelerate and Hugging Face's ``Trainer`` on two ranks: transforms on the device train as those on the host do."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integrations.two_ranks import RANKS, STEPS

# Both ways compute the same float32 values but for the order of sums, in which a GPU's kernel and the reference differ
# by some 2**-22 of a value. Each step of SGD adds its difference to the weights, which 50 steps keep below 50 of them,
# and a loss sums a few hundred products of them.
TOLERANCE = {"rtol": 50 * 2**-22, "atol": 50 * 2**-22}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu(2))])
def seen(request, tmp_path_factory) -> list[dict]:
    """What each rank saw, by way and by whether the transforms were on the device; one pair of processes trains all."""
    home = tmp_path_factory.mktemp("ranks")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [*launch, "-m", "tests.integrations.two_ranks", request.param, str(home)]
    ended = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    return [torch.load(home / f"{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("way", ["accelerate", "trainer"])
def test_samples_losses_and_weights_are_those_of_transforms_on_the_host(way, seen):
    for rank in seen:
        host, fast = rank[way, False], rank[way, True]
        assert fast["numbers"] == host["numbers"]
        assert len(fast["losses"]) == STEPS
        torch.testing.assert_close(torch.tensor(fast["losses"]), torch.tensor(host["losses"]), **TOLERANCE)
        torch.testing.assert_close(fast["weights"], host["weights"], **TOLERANCE)

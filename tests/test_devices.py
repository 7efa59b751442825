"""G11: one code for all devices. ``make test-gpu`` runs the rest of the tests on the one that is there."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import fastload as fl
from fastload import transforms as T
from fastload.streams import SyncStream
from fastload.structure.tree import tree_flatten
from fastload.transfer.transfer import Transfer
from tests.adversary.program import play
from tests.adversary.soak import drawn
from tests.files import jpeg

STREAMS = re.compile(r"(Stream|Event|stream|synchronize|memory_\w+)$")


def test_g11_the_cpu_runs_all_of_it():
    """Files to weights: what runs on a GPU's streams and kernels, by the references in the same places."""
    files = [(jpeg(30 + number, 40), number % 2) for number in range(8)]
    transform = T.Compose([
        T.DecodeJpeg(), T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ColorJitter(0.3, 0.3, 0.3),
        T.Normalize([0.5] * 3, [0.25] * 3), T.RandomErasing(0.5), T.MixUp(num_classes=2),
    ])  # fmt: skip
    loader = fl.PrefetchLoader(
        DataLoader(files, 4, collate_fn=fl.collate), transform=transform, device="cpu", static=True
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 2))
    before = [weight.clone() for weight in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = fl.TrainStep(model, optimizer, nn.CrossEntropyLoss(), precision="bf16", max_norm=1.0)
    for images, labels in loader:
        assert step(images, labels).loss.isfinite()
    assert loader.device == images.device == torch.device("cpu")
    assert not any(map(torch.equal, model.parameters(), before))


def test_g11_batches_go_to_the_accelerator_if_there_is_one():
    here = torch.accelerator.current_accelerator(check_available=True)
    assert fl.PrefetchLoader([]).device.type == ("cpu" if here is None else here.type)


@pytest.mark.parametrize("seed", range(40))
def test_g11_nothing_but_its_own_module_is_asked_about_a_device(seed, monkeypatch):
    """The simulated device is none of CUDA's, and has what PyTorch's accelerators have in common."""

    def refused(*_, **__):
        raise AssertionError("torch.cuda was asked")

    for name in filter(STREAMS.search, dir(torch.cuda)):
        monkeypatch.setattr(torch.cuda, name, refused)
    play(*drawn(seed))


class OnItsWay(torch.Tensor):
    """Notes how it was asked to move."""

    def to(self, *args, **kwargs):
        moves.append((args, kwargs))
        return self


moves: list = []


@pytest.mark.parametrize("structure", [lambda tensor: tensor, lambda tensor: {"images": [tensor, tensor]}])
def test_g11_copies_to_metal_block(structure):
    """Asynchronous ones may deliver what the host wrote later, from pinned memory too."""
    moves.clear()
    metal = torch.device("mps")
    Transfer(SyncStream(metal)).move(tree_flatten(structure(torch.ones(4).as_subclass(OnItsWay))).leaves)
    assert moves
    assert all(arguments == ((metal,), {}) for arguments in moves)


def test_g11_streams_and_events_are_named_in_one_file():
    """So what holds of one accelerator's holds of another's: all of them are had from the device's module."""
    package = Path(fl.__file__).parent
    named = re.compile(r"(?<!threading\.)\b(Stream|Event)\(|\.(wait_stream|wait_event|record_event|record_stream)\(")
    files = [path for path in package.rglob("*.py") if named.search(path.read_text())]
    assert [path.relative_to(package).as_posix() for path in files if "bench" not in path.parts] == ["streams.py"]

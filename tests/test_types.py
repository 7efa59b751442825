"""What a type checker says to users."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

USER = """
import torch
from torch.utils.data import DataLoader

import fastload as fl

Batch = tuple[torch.Tensor, torch.Tensor]


def train(loader: fl.PrefetchLoader[Batch], step: fl.TrainStep, model: torch.nn.Module) -> None:
    for images, labels in loader:
        reveal_type(images)
        step(images, labels)
    assert step.ema is not None
    with step.ema.applied():
        model(images)


def prefetched(loader: DataLoader[Batch]) -> fl.PrefetchLoader[Batch]:
    with fl.PrefetchLoader[Batch](loader, depth=3) as typed:
        return typed


def whatever(loader: fl.PrefetchLoader) -> None:
    for batch in loader:
        reveal_type(batch)
"""


def test_batches_keep_their_type(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "user.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "error" not in checked.stdout, checked.stdout
    assert 'Revealed type is "torch._tensor.Tensor"' in checked.stdout
    assert 'Revealed type is "Any"' in checked.stdout

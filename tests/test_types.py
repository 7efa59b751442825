"""What a type checker says to users."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]

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
    # With the options and the cache of `make lint`, which then need not look at PyTorch again.
    ours = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
    command = [sys.executable, "-m", "mypy", "--strict", *ours, "user.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "error" not in checked.stdout, checked.stdout
    assert 'Revealed type is "torch._tensor.Tensor"' in checked.stdout
    assert 'Revealed type is "Any"' in checked.stdout

"""docs/ways-over.md: what replaces other loaders runs as it is printed."""

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from tests.files import jpeg

PAGE = Path(__file__).parents[1] / "docs" / "ways-over.md"


@pytest.fixture
def reader(tmp_path):
    """What a reader of the page has already."""
    for number in range(8):
        file = tmp_path / f"class {number % 2}" / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(jpeg(seed=number))
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    return {
        "root": tmp_path,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "uint8_loader": DataLoader(TensorDataset(images, torch.arange(4)), batch_size=2),
        "sampler": SequentialSampler(range(8)),
    }


@pytest.mark.long
def test_what_replaces_other_loaders_runs_as_printed(reader):
    trained = []
    reader["train"] = lambda images, labels: trained.append((images.dtype, len(labels)))
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)):
        reader.pop("loader", None)
        if "timm" in block:
            pytest.importorskip("timm")
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), reader)
        if "loader" in reader:
            ((images, labels),) = reader["loader"]
            assert images.shape == (8, 3, 224, 224)
            assert images.dtype is torch.float32
            assert len(labels) == 8
    assert trained == [(torch.float32, 2)] * 4

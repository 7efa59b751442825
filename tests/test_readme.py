"""README.md's Python blocks run as printed, its commands exist, and the links of all pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from fastload.cli import app
from tests.files import jpeg

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"`((?:benchmarks|docs|examples|fastload|tests)/[\w./-]+)`")
SIZE = 48, 72  # of the photographs
TORCHRUN = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


class Share:
    """A metric: the share of right answers."""

    def reset(self) -> None:
        self.right: list[torch.Tensor] = []

    def update(self, outputs: torch.Tensor, labels: torch.Tensor) -> None:
        self.right.append(outputs.argmax(1) == labels)

    def compute(self) -> torch.Tensor:
        return torch.cat(self.right).float().mean()


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """What a reader of README.md has already: data, a model and the names of both."""
    for number in range(8):
        file = tmp_path / "root" / f"class {number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(*SIZE, seed=number))
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1000)).to(device)
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    data = DataLoader(TensorDataset(images, torch.arange(4)), batch_size=2)
    yield {
        "loader": data,
        "val_loader": [(image.to(device).float(), label.to(device)) for image, label in data],
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "root": tmp_path / "root",
        "annotations": [(file, SIZE, [[10.0, 12, 50, 40]], [1]) for file in sorted(tmp_path.rglob("*.jpg"))],
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": nn.CrossEntropyLoss(),
        "metric": Share(),
        "epochs": 2,
        "path": tmp_path / "checkpoint.pt",
    }
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def test_the_python_blocks_run_in_order_as_printed(reader, capsys):
    for number, block in enumerate(blocks("python"), start=1):
        exec(compile(block, f"README.md, block {number}", "exec"), reader)
    assert "RandomErasing" in capsys.readouterr().out
    assert reader["loader"].epoch == reader["epochs"]


def test_the_commands_exist():
    commands = "\n".join(blocks("bash")) + README
    targets = {line.partition(":")[0] for line in (ROOT / "Makefile").read_text().splitlines()}
    assert set(re.findall(r"\bmake (\w[\w-]*)", commands)) <= targets
    for name in {"--help", *re.findall(r"`fastload ([a-z-]+)", commands)}:
        assert CliRunner().invoke(app, [name, "--help"] if name != "--help" else [name]).exit_code == 0, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_lead_somewhere(page):
    links = [link for link in LINK.findall(CODE.sub("", page.read_text())) if "://" not in link]
    broken = [link for link in links if not leads_somewhere(page, *link.partition("#")[::2])]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_are_named_exist(page):
    assert [name for name in FILE.findall(page.read_text()) if not (ROOT / name).exists()] == []


def leads_somewhere(page: Path, path: str, heading: str) -> bool:
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not heading or heading in anchors(target.read_text()))


def anchors(text: str) -> set[str]:
    """Return the names that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

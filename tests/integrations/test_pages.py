"""docs/integrations/: the program of each page runs as it is printed, with batches of four."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.files import jpeg
from tests.native_threads import RESTING

PAGES = {page.stem: page for page in (Path(__file__).parents[2] / "docs" / "integrations").glob("*.md")}
IMAGES = 8
ON_TWO_RANKS = "torchrun"
AWAKE = {"RAY_worker_niceness": "0"}  # by default the tests beside these leave Ray's workers no processor


@pytest.fixture
def folder(tmp_path):
    """What the pages' reader has: ``photographs/train`` with a folder for each class, and the same in archives."""
    files = [tmp_path / "photographs" / "train" / f"class-{n % 2}" / f"{n}.jpg" for n in range(IMAGES)]
    for number, file in enumerate(files):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(seed=number))
        file.with_suffix(".cls").write_text(str(number % 2))
    (tmp_path / "shards").mkdir()
    for shard in range(4):
        with tarfile.open(tmp_path / "shards" / f"train-{shard:06}.tar", "w") as archive:
            for file in files[shard::4]:
                archive.add(file, file.name)
                archive.add(file.with_suffix(".cls"), file.with_suffix(".cls").name)
    for file in files:
        file.with_suffix(".cls").unlink()
    return tmp_path


@pytest.mark.parametrize("page", sorted(PAGES))
def test_the_program_of_a_page_runs_as_printed_but_for_the_batch_size(folder, page):
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGES[page].read_text(), re.DOTALL | re.MULTILINE)
    (folder / "train.py").write_text(program.replace("batch_size=64", "batch_size=4"))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if page == ON_TWO_RANKS else []
    environment = {**os.environ, **RESTING, "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled", **AWAKE}
    ran = subprocess.run(
        [sys.executable, *launcher, "train.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

"""The demo: that its loops train alike and learn, and which settings it takes."""

import io
import re
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fastload import demo
from fastload.data import sample_data

# One process makes the photographs and trains on them.
pytestmark = [pytest.mark.long, pytest.mark.xdist_group("demo")]

TINY = {"device": "cpu", "epochs": 1, "batch_size": 32, "workers": 1}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return sample_data(tmp_path_factory.mktemp("data") / "photographs", 200)


@pytest.fixture
def own_photographs(photographs, tmp_path):
    return shutil.copytree(photographs, tmp_path / "own")


@pytest.fixture(autouse=True, scope="module")
def same_threads_afterwards():
    """The demo leaves cores to its workers. Every test after it would be slow with more threads than cores."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run(**settings):
    """The loops' results, and what was on the screen."""
    console = Console(file=io.StringIO(), width=120)
    with tempfile.TemporaryDirectory() as folder:
        results = demo.run(demo.prepare(**{**TINY, **settings}), console, Path(folder))
    return results, console.file.getvalue()


@pytest.fixture(scope="module")
def one_step(photographs):
    """The loops' results after one step, without workers, and what was on the screen."""
    return run(data=photographs, images=40, workers=0)


def test_plain_and_prefetched_batches_make_the_same_first_step(one_step):
    results, _ = one_step
    assert results["plain loop"].loss == pytest.approx(results["PrefetchLoader"].loss, rel=1e-4)


def test_all_loops_learn_and_are_judged(photographs):
    results, screen = run(data=photographs, batch_size=8)
    for result in results.values():
        assert result.report.verdict.sentence.split(":")[0] in screen
    assert screen.count("Its last steps:") == 3
    chance = 0.1
    assert min(result.accuracy for result in results.values()) > 3 * chance


def test_the_table_tells_of_each_loop(one_step):
    results, screen = one_step
    for heading in ("images/s", "waiting", "peak memory", "loss", "held-out accuracy"):
        assert heading in screen
    for name, result in results.items():
        row = next(line for line in screen.splitlines() if line.startswith(f"│ {name}"))
        assert demo._rate(result.images_per_second) in row
        assert f"{result.loss:.3f}" in row
        assert f"{result.accuracy:.1%}" in row
        assert 0 <= result.waiting <= 1
    assert "no transfer to hide" in screen
    assert "too few to judge by" in screen
    assert "1 epoch of 32 photographs" in screen


@pytest.mark.parametrize(
    ("rate", "shown"), [(0.042, "0.042"), (0.4, "0.4"), (9.94, "9.9"), (9.96, "10"), (10.4, "10"), (5060.2, "5,060")]
)
def test_a_slow_rate_is_not_shown_as_zero(rate, shown):
    assert demo._rate(rate) == shown


def test_sample_data_is_made_once_and_then_found(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = demo.prepare(**TINY, images=20)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")}
    assert len(written) == 20
    assert demo.prepare(**TINY, images=20) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jpg")} == written


def test_class_folders_alone_are_split_the_same_way_each_time(photographs):
    first, again = (demo.prepare(**TINY, data=photographs / "train") for _ in range(2))
    assert first == again
    assert (len(first.train), len(first.held_out)) == (128, 32)
    assert not set(first.train) & set(first.held_out)


def test_classes_are_the_folders(own_photographs):
    for split in ("train", "val"):
        shutil.rmtree(own_photographs / split / "cat")
    settings = demo.prepare(**TINY, data=own_photographs)
    assert len(settings.classes) == 9
    assert {label for _, label in settings.train} == set(range(9))


def test_at_most_so_many_of_the_users_images_are_used(photographs):
    settings = demo.prepare(**TINY, data=photographs, images=50)
    assert (len(settings.train), len(settings.held_out)) == (40, 10)


def test_a_vision_transformer_gets_images_of_its_size(photographs):
    assert demo.prepare(**TINY, data=photographs, model="vit_b_16").size == 224


def test_a_damaged_image_is_named(own_photographs):
    damaged = own_photographs / "val" / "cat" / "00000.jpg"
    damaged.write_bytes(damaged.read_bytes()[:20_000])
    with pytest.raises(ValueError, match=re.escape(f"{damaged} is not an image")):
        demo.prepare(**TINY, data=own_photographs)


def test_splits_of_different_classes_are_refused(own_photographs):
    shutil.rmtree(own_photographs / "val" / "cat")
    with pytest.raises(ValueError, match="must have the same classes"):
        demo.prepare(**TINY, data=own_photographs)


def test_a_single_class_is_refused(photographs):
    with pytest.raises(ValueError, match="at least 2 classes"):
        demo.prepare(**TINY, data=photographs / "train", images=1)

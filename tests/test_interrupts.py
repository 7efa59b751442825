"""Threads keep off the cores that serve the GPUs' interrupts, and get them back."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import fastload as fl
import fastload.transforms as T
from fastload.environment import cores
from fastload.interrupts import LEAST, cores_of, off_interrupts, serving_cores, without
from tests.files import jpeg

has_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or cores() < 2, reason="needs two cores, and a system that binds threads"
)
sets = st.sets(st.integers(0, 31), min_size=1)


def describe_gpu(folder: Path, address: str, irqs: dict[int, str]) -> None:
    """Write what Linux tells of a GPU: its interrupts by number, each with the list of cores that serve it."""
    for number, served in irqs.items():
        (folder / "devices" / address / "msi_irqs").mkdir(parents=True, exist_ok=True)
        (folder / "devices" / address / "msi_irqs" / str(number)).write_text("msix\n")
        (folder / "irq" / str(number)).mkdir(parents=True)
        (folder / "irq" / str(number) / "effective_affinity_list").write_text(f"{served}\n")


@pytest.fixture
def off_the_last(tmp_path):
    """A context that keeps this process off its last core, of however few."""
    describe_gpu(tmp_path, "0000:00:06.0", {42: str(max(os.sched_getaffinity(0)))})
    return lambda: off_interrupts(tmp_path / "devices", tmp_path / "irq", least=1)


def test_the_first_interrupt_of_each_gpu_is_the_one_that_counts(tmp_path):
    describe_gpu(tmp_path, "0000:00:06.0", {42: "14", 43: "15", 100: "3"})
    describe_gpu(tmp_path, "0000:00:07.0", {9: "2-3", 10: "0"})
    assert serving_cores(tmp_path / "devices", tmp_path / "irq") == {14, 2, 3}


@pytest.mark.parametrize("listed", ["", "nobody knows"])
def test_what_is_hidden_is_not_known(tmp_path, listed):
    assert serving_cores(tmp_path / "nowhere", tmp_path / "irq") == set()
    describe_gpu(tmp_path, "0000:00:06.0", {42: listed})
    assert serving_cores(tmp_path / "devices", tmp_path / "irq") == set()
    (tmp_path / "irq/42/effective_affinity_list").unlink()
    assert serving_cores(tmp_path / "devices", tmp_path / "irq") == set()


@given(sets)
def test_lists_of_cores_are_read(some):
    assert cores_of(",".join(map(str, sorted(some)))) == some
    assert cores_of(f"{min(some)}-{max(some)}\n") == set(range(min(some), max(some) + 1))


@given(sets, sets)
def test_a_thread_keeps_enough_cores_or_all(some, serving):
    kept = without(some, serving)
    assert kept == some or (kept == some - serving and len(kept) >= LEAST and 2 * len(kept) >= len(some))


@has_affinity
def test_threads_are_moved_and_get_their_cores_back(off_the_last):
    before = os.sched_getaffinity(0)
    go_on, thread_has = threading.Event(), []
    thread = threading.Thread(target=lambda: (go_on.wait(), thread_has.append(os.sched_getaffinity(0))))
    thread.start()
    with off_the_last():
        assert os.sched_getaffinity(0) == before - {max(before)}
        assert os.sched_getaffinity(thread.native_id) == before - {max(before)}
        with off_the_last():
            pass
        assert os.sched_getaffinity(0) == before - {max(before)}, "the outer context is still open"
    assert os.sched_getaffinity(0) == before
    go_on.set()
    thread.join()
    assert thread_has == [before]


@has_affinity
def test_a_thread_that_was_bound_meanwhile_stays_there(off_the_last):
    before = os.sched_getaffinity(0)
    try:
        with off_the_last():
            os.sched_setaffinity(0, {max(before)})
        assert os.sched_getaffinity(0) == {max(before)}
    finally:
        os.sched_setaffinity(0, before)


@has_affinity
def test_a_fork_has_no_context(off_the_last):
    before = os.sched_getaffinity(0)
    with off_the_last():
        if (child := os.fork()) == 0:
            os.sched_setaffinity(0, before)
            with off_the_last():
                moved = os.sched_getaffinity(0) == before - {max(before)}
            os._exit(0 if moved and os.sched_getaffinity(0) == before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@has_affinity
def test_the_environment_turns_it_off(tmp_path):
    describe_gpu(tmp_path, "0000:00:06.0", {42: str(max(os.sched_getaffinity(0)))})
    program = (
        "import os, sys; from pathlib import Path; from fastload.interrupts import off_interrupts\n"
        "before, folder = os.sched_getaffinity(0), Path(sys.argv[1])\n"
        "with off_interrupts(folder / 'devices', folder / 'irq', least=1):\n"
        "    print(os.sched_getaffinity(0) == before)"
    )
    for setting, stays in (("off", "True"), ("on", "False")):
        environment = {**os.environ, "FASTLOAD_AFFINITY": setting}
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == stays


@pytest.mark.gpu
def test_a_pass_that_decodes_keeps_the_training_thread_off():
    before = os.sched_getaffinity(0)
    expected = without(before, serving_cores())
    if expected == before:
        pytest.skip("the cores that serve the GPU's interrupts are not known here, or are too many")
    samples = [(jpeg(seed=seed), seed) for seed in range(128)]
    loader = DataLoader(samples, batch_size=4, collate_fn=fl.collate)
    batches = iter(fl.PrefetchLoader(loader, transform=T.DecodeJpeg(), device="cuda"))
    next(batches)  # of 32, most of which are still to be decoded
    assert os.sched_getaffinity(0) == expected
    assert len(list(batches)) == 31
    assert os.sched_getaffinity(0) == before

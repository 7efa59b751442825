"""Threads leave the cores that serve the GPUs' interrupts, and stay free to run on any of their cores."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import fastload as fl
import fastload.transforms as T
from fastload.environment import MOVES, cores
from fastload.interrupts import InterruptCores, _core_while_running, cores_of, sched_getcpu, serving_cores
from tests.files import jpeg

TRIES = 40
moves = pytest.mark.skipif(
    sched_getcpu is None or cores() < 2 or not MOVES, reason="needs two cores, and a system that moves threads"
)
linux = pytest.mark.skipif(sys.platform != "linux", reason="Linux names its devices so")


def describe_gpu(folder: Path, address: str, irqs: dict[int, str]) -> None:
    """Write what Linux tells of a GPU: its interrupts by number, each with the list of cores that serve it."""
    for number, served in irqs.items():
        (folder / "devices" / address / "msi_irqs").mkdir(parents=True, exist_ok=True)
        (folder / "devices" / address / "msi_irqs" / str(number)).write_text("msix\n")
        (folder / "irq" / str(number)).mkdir(parents=True)
        (folder / "irq" / str(number) / "effective_affinity_list").write_text(f"{served}\n")


@pytest.fixture
def last():
    """The last core of this process."""
    return max(os.sched_getaffinity(0))


@pytest.fixture
def cores_off(tmp_path, last):
    """The last core serves a GPU's interrupts, and threads leave it for however few others."""
    describe_gpu(tmp_path, "0000:00:06.0", {42: str(last)})
    found = InterruptCores(tmp_path / "devices", tmp_path / "irq", least=1)
    found.look()
    return found


@pytest.fixture
def moved(last, monkeypatch):
    """The threads that are taken off the last core, each time. Where they run later is for the system to say."""
    threads, binding = [], os.sched_setaffinity

    def noting(thread, to):
        binding(thread, to)
        if last not in to:
            threads.append(thread or threading.get_native_id())
            assert thread or sched_getcpu() in to

    monkeypatch.setattr(os, "sched_setaffinity", noting)
    return threads


def go_to(core: int) -> None:
    """Move this thread to a core, and let it run anywhere from then on."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    os.sched_setaffinity(0, before)


@linux
def test_the_first_interrupt_of_each_gpu_is_the_one_that_counts(tmp_path):
    describe_gpu(tmp_path, "0000:00:06.0", {42: "14", 43: "15", 100: "3"})
    describe_gpu(tmp_path, "0000:00:07.0", {9: "2-3", 10: "0"})
    assert serving_cores(tmp_path / "devices", tmp_path / "irq") == {14, 2, 3}


@linux
@pytest.mark.parametrize("listed", ["", "nobody knows", "0-31:2"])
def test_what_is_hidden_is_not_known(tmp_path, listed):
    assert serving_cores(tmp_path / "nowhere", tmp_path / "irq") == set()
    describe_gpu(tmp_path, "0000:00:06.0", {42: listed})
    assert serving_cores(tmp_path / "devices", tmp_path / "irq") == set()
    (tmp_path / "irq/42/effective_affinity_list").unlink()
    assert serving_cores(tmp_path / "devices", tmp_path / "irq") == set()


@given(st.sets(st.integers(0, 31), min_size=1))
def test_lists_of_cores_are_read(some):
    assert cores_of(",".join(map(str, sorted(some)))) == some
    assert cores_of(f"{min(some)}-{max(some)}\n") == set(range(min(some), max(some) + 1))


@moves
def test_a_thread_leaves_the_core_and_may_run_on_all_of_its_cores(cores_off, last, moved):
    before = os.sched_getaffinity(0)
    for _ in range(TRIES):
        go_to(last)
        cores_off.leave()
        assert os.sched_getaffinity(0) == before
    assert set(moved) == {threading.get_native_id()}


@moves
def test_a_thread_stays_where_too_few_other_cores_are(tmp_path, last, moved):
    describe_gpu(tmp_path, "0000:00:06.0", {42: str(last)})
    few = InterruptCores(tmp_path / "devices", tmp_path / "irq", least=len(os.sched_getaffinity(0)))
    few.look()
    for _ in range(TRIES):
        go_to(last)
        few.leave()
    assert not moved


@moves
def test_a_thread_that_is_bound_to_the_core_stays_there(cores_off, last):
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {last})
        cores_off.leave()
        assert os.sched_getaffinity(0) == {last}
    finally:
        os.sched_setaffinity(0, before)


@moves
@pytest.mark.parametrize(("name", "is_moved"), [("pt_autograd_0", True), ("another", False)])
def test_backwards_threads_are_moved(tmp_path, last, moved, name, is_moved):
    describe_gpu(tmp_path, "0000:00:06.0", {42: str(last)})
    end, begun = threading.Event(), threading.Event()

    def run():
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        while not end.is_set():
            go_to(last)
            begun.set()
            hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)  # some 50 ms, in which it runs without the interpreter

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(10.0)
    try:
        deadline, met = time.monotonic() + 20.0, 0
        while not moved and met < TRIES and time.monotonic() < deadline:
            met += _core_while_running(str(thread.native_id)) == last
            InterruptCores(tmp_path / "devices", tmp_path / "irq", least=1).look()
            time.sleep(0.005)
    finally:
        end.set()
        thread.join()
    assert moved == [thread.native_id] if is_moved else met and not moved


@moves
@pytest.mark.parametrize("name", [b"Pr\xc3", b"pt_autograd_)\xc3 ", b") R 1 2 3"])
def test_any_name_of_a_thread_will_do(tmp_path, last, name):
    describe_gpu(tmp_path, "0000:00:06.0", {42: str(last)})
    end, named = threading.Event(), threading.Event()

    def run():
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(name)
        named.set()
        end.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert named.wait(10.0)
    InterruptCores(tmp_path / "devices", tmp_path / "irq", least=1).look()
    end.set()
    thread.join()


@moves
def test_an_interrupt_within_a_move_gives_all_cores_back(cores_off, monkeypatch):
    before, binding = os.sched_getaffinity(0), os.sched_setaffinity

    def interrupted(thread, to):
        binding(thread, to)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "sched_setaffinity", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cores_off._move(0)
    assert os.sched_getaffinity(0) == before


@moves
@pytest.mark.long
def test_the_environment_turns_it_off(cores_off, last, tmp_path):
    assert cores_off._serving == {last}
    program = (
        "import sys; from pathlib import Path; from fastload.interrupts import InterruptCores\n"
        "folder = Path(sys.argv[1])\n"
        "cores = InterruptCores(folder / 'devices', folder / 'irq')\n"
        "cores.look()\n"
        "print(cores._serving)"
    )
    environment = {**os.environ, "FASTLOAD_AFFINITY": "off"}
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_each_thread_of_a_pass_looks_where_it_is(monkeypatch):
    looked, left = [], set()

    class Noting(InterruptCores):
        def look(self):
            looked.append(threading.current_thread().name)

        def leave(self):
            left.add(threading.current_thread().name)

    monkeypatch.setattr("fastload.prefetch.iterator.interrupt_cores", Noting)
    samples = [(jpeg(seed=seed), seed) for seed in range(8)]
    loader = DataLoader(samples, batch_size=4, num_workers=1, collate_fn=fl.collate)
    assert len(list(fl.PrefetchLoader(loader, transform=T.DecodeJpeg(), device="cpu"))) == 2
    assert left == {"MainThread", "fastload-prefetch", "fastload-pin", "fastload-decode"}
    assert looked == ["fastload-prefetch"] * 3  # as the pass begins, and for each batch


class FilesReadOn:
    """Files that a worker reads while it is on one core, and how often it has been taken off that core."""

    def __init__(self, core: int, moved: list[int]) -> None:
        self.core, self.moved = core, moved

    def __len__(self) -> int:
        return TRIES

    def __getitem__(self, index: int) -> bytes:
        go_to(self.core)
        return jpeg(seed=index)

    def collate(self, files: list[bytes]) -> int:
        fl.collate(files)
        return len(self.moved)


@moves
def test_a_worker_leaves_the_core(cores_off, last, moved, monkeypatch):
    monkeypatch.setattr("fastload.data.packing.interrupt_cores", lambda: cores_off)
    files = FilesReadOn(last, moved)
    *_, times = DataLoader(files, num_workers=1, multiprocessing_context="fork", collate_fn=files.collate)
    assert times > 0


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_that_decodes_leaves_the_core(workers):
    before = os.sched_getaffinity(0)
    if not (serving := serving_cores() & before) or len(before - serving) < 4:
        pytest.skip("the cores that serve the GPU's interrupts are not known here, or there are too few others")
    samples = [(jpeg(seed=seed), seed) for seed in range(256)]
    loader = DataLoader(samples, batch_size=4, num_workers=workers, collate_fn=fl.collate)
    batches, there = iter(fl.PrefetchLoader(loader, transform=T.DecodeJpeg(), device="cuda")), 0
    next(batches)
    for _ in range(TRIES):
        go_to(min(serving))
        next(batches)
        there += sched_getcpu() in serving
    assert there < TRIES * 0.25
    assert os.sched_getaffinity(0) == before

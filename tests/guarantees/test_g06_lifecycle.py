"""G6: A pass that ends, in whatever way, leaves nothing behind."""

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fastload as fl
from fastload import transforms as T
from fastload.data.encoded import EncodedImages
from fastload.prefetch.iterator import _wait_for_threads
from tests.batches import Numbered, numbered_loader
from tests.counts import count, variants
from tests.files import jpeg
from tests.guarantees.shared import MEAN, STD, collect
from tests.untouchable import Untouchable

INTERRUPTED = """
import signal, sys, time, torch, fastload as fl
from torch.utils.data import DataLoader, TensorDataset
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background passes on that it is ignored
class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep({seconds})
        return super().__getitem__(index)
if __name__ == "__main__":
    loader = fl.PrefetchLoader(DataLoader(Slow(torch.arange(100)), 2, num_workers={workers}), device="cpu")
    for (batch,) in loader:
        print(batch.tolist(), flush=True)
        time.sleep({pause})
"""


# In the consumer's step, and waiting for a batch.
@pytest.mark.long
@pytest.mark.parametrize(("workers", "times"), variants([0, 2], [(0.0, 60), (0.2, 0)], ways=1))
def test_g06_an_interrupt_ends_the_process_and_its_workers(tmp_path, workers, times):
    seconds, pause = times
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.format(workers=workers, seconds=seconds, pause=pause))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "[0, 1]\n"
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it too
        _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # nobody is left


def fastload_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("fastload")]


def divide_by_zero(batches):
    for _, labels in batches:
        1 // (0 * int(labels[0]))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["break", "error", "close", "with", "del", "gc"])
def test_g06_nothing_is_left_behind(way, workers):
    loader = fl.PrefetchLoader(numbered_loader(samples=400, num_workers=workers), device="cpu")
    iterator = iter(loader)
    next(iterator)
    assert len(fastload_threads()) == 1
    if way == "break":
        iterator = None
        for _ in loader:
            break
    elif way == "error":
        with pytest.raises(ZeroDivisionError):
            divide_by_zero(iterator)
        iterator = None
    elif way == "close":
        loader.close()
        loader.close()
    elif way == "with":
        with loader:
            next(iterator)
    elif way == "del":
        del iterator
    else:
        cycle = [iterator]
        cycle.append(cycle)
        del iterator, cycle
        gc.collect()
    assert fastload_threads() == []
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("bad", ["sample", "file"])
def test_g06_an_error_that_nobody_comes_to_keeps_nothing_without_the_cycle_collector(bad):
    """It waits behind batches that are not taken, in a stage that works ahead."""
    files = [(jpeg(32, 32), number) for number in range(12)]
    files[9] = (b"\xff\xd8\xff no photograph", 9) if bad == "file" else None
    wrapped = DataLoader(files, 2, num_workers=1, collate_fn=fl.collate)
    transform = T.Compose([T.DecodeJpeg(), T.Resize((16, 16))])
    gc.collect()
    gc.disable()
    try:
        loader = fl.PrefetchLoader(wrapped, transform=transform, device="cpu")
        iterator = iter(loader)
        next(iterator)
        time.sleep(0.5)  # until the error is there
        side = weakref.ref(loader._side)
        del iterator, loader
        assert multiprocessing.active_children() == []
        assert not [each for each in gc.get_objects() if isinstance(each, EncodedImages)]
        assert side() is None
    finally:
        gc.enable()


def test_g06_an_error_that_comes_after_close_keeps_nothing_without_the_cycle_collector():
    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, number):
            if number == 4:
                time.sleep(1.5)  # longer than close() waits
                raise ValueError("late")
            return torch.zeros(2)

    gc.collect()
    gc.disable()
    try:
        data = Slow()
        gone = [weakref.ref(data)]
        loader = fl.PrefetchLoader(DataLoader(data, 4), device="cpu", static=True)
        gone.append(weakref.ref(loader._side))
        iterator = iter(loader)
        next(iterator)
        loader.close()
        del data, iterator, loader
        for thread in fastload_threads():
            thread.join()
        assert [each() for each in gone] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 2])
def test_g06_an_error_that_is_kept_keeps_no_thread_and_no_worker(workers):
    loader = fl.PrefetchLoader(numbered_loader(fail_at=9, num_workers=workers), device="cpu")
    _, kept = collect(loader)
    assert kept is not None
    assert fastload_threads() == []
    assert multiprocessing.active_children() == []


def test_g06_a_pass_can_be_shared_by_threads():
    iterator = iter(fl.PrefetchLoader([torch.tensor(number) for number in range(2000)], device="cpu"))
    seen = []
    consumers = [threading.Thread(target=lambda: seen.extend(int(batch) for batch in iterator)) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join(timeout=60)
    assert sorted(seen) == list(range(2000))


def test_g06_a_closed_pass_has_ended_and_the_loader_has_not():
    loader = fl.PrefetchLoader(numbered_loader(samples=10), device="cpu")
    iterator = iter(loader)
    loader.close()
    assert next(iterator, "end") == "end"
    assert len(list(loader)) == 3


def test_g06_passes_are_independent():
    loader = fl.PrefetchLoader(numbered_loader(samples=10), device="cpu", depth=1)
    pairs = [(one[1].tolist(), other[1].tolist()) for one, other in zip(loader, loader, strict=True)]
    assert pairs == [(labels, labels) for labels in ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9])]


def test_g06_persistent_workers_have_one_pass_at_a_time():
    loader = fl.PrefetchLoader(numbered_loader(samples=40, num_workers=2, persistent_workers=True), device="cpu")
    first = iter(loader)
    next(first)
    workers = set(multiprocessing.active_children())
    assert [labels.tolist()[0] for _, labels in loader] == list(range(0, 40, 4))
    assert next(first, "end") == "end"
    assert set(multiprocessing.active_children()) == workers


class Slow(Numbered):
    def __getitem__(self, index):
        time.sleep(0.1)
        return super().__getitem__(index)


def test_g06_no_batch_of_the_next_pass_goes_to_a_slow_end_of_the_last():
    wrapped = DataLoader(Slow(12), batch_size=4, num_workers=1, persistent_workers=True)
    loader = fl.PrefetchLoader(wrapped, device="cpu")
    for _ in loader:
        break
    assert [labels.tolist() for _, labels in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_g06_an_iterator_has_one_pass_as_itself_has():
    loader = fl.PrefetchLoader(iter([torch.tensor(number) for number in range(6)]), device="cpu")
    assert [(int(one), int(other)) for one, other in zip(loader, loader, strict=True)] == [(0, 1), (2, 3), (4, 5)]


# A worker that is not forked from here imports PyTorch for seconds, so those are started once.
@pytest.mark.parametrize(
    ("context", "persistent"),
    [
        ("fork", False),
        ("fork", True),
        pytest.param("spawn", True, marks=pytest.mark.long),
        pytest.param("forkserver", True, marks=pytest.mark.long),
    ],
)
def test_g06_workers_may_be_started_in_any_way(context, persistent):
    wrapped = DataLoader(
        TensorDataset(torch.arange(6)),
        batch_size=2,
        num_workers=1,
        multiprocessing_context=context,
        persistent_workers=persistent,
    )
    loader = fl.PrefetchLoader(wrapped, device="cpu")
    for _ in range(2):
        assert [batch.tolist() for (batch,) in loader] == [[0, 1], [2, 3], [4, 5]]


def test_g06_an_endless_loader_can_be_left():
    finished = []

    def endless():
        try:
            for number in itertools.count():
                yield torch.tensor(number)
        finally:
            finished.append(True)

    with fl.PrefetchLoader(endless(), device="cpu") as batches:
        assert [int(batch) for batch in itertools.islice(batches, 5)] == [0, 1, 2, 3, 4]
    del batches
    gc.collect()
    assert finished == [True]


def test_g06_passes_may_be_nested():
    loader = fl.PrefetchLoader(numbered_loader(samples=8), device="cpu")
    assert [[inner[1].tolist()[0] for inner in loader] for _ in loader] == [[0, 4], [0, 4]]


def test_g06_a_pass_that_cannot_begin_leaves_no_worker(monkeypatch):
    loader = fl.PrefetchLoader(numbered_loader(num_workers=2), device="cpu")

    start = threading.Thread.start

    def refuse(thread):
        if thread.name.startswith("fastload"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            iter(loader)
    assert multiprocessing.active_children() == []
    assert collect(loader)[1] is None


def test_g06_a_loader_whose_iter_has_failed_can_be_used_again():
    class Unlucky:
        tries = 0

        def __iter__(self):
            self.tries += 1
            if self.tries == 1:
                raise OSError("the disk was busy")
            return iter([torch.tensor(7)])

    loader = fl.PrefetchLoader(Unlucky(), device="cpu")
    with pytest.raises(OSError, match="the disk was busy"):
        iter(loader)
    assert [int(batch) for batch in loader] == [7]


def test_g06_a_thread_waiting_for_a_batch_is_woken_by_close():
    release = threading.Event()

    class Stuck:
        def __iter__(self):
            release.wait()
            yield from ()

    loader = fl.PrefetchLoader(Stuck(), device="cpu")
    iterator = iter(loader)
    result = []
    consumer = threading.Thread(target=lambda: result.append(next(iterator, "end")))
    consumer.start()
    loader.close()
    consumer.join(timeout=30)
    release.set()
    assert result == ["end"]


@pytest.mark.long
@pytest.mark.parametrize("workers", count(full=[0, 2], here=[2]))
def test_g06_the_interpreter_ends_in_the_middle_of_a_pass(workers):
    code = (
        "import fastload as fl; from tests.batches import numbered_loader\n"
        f"iterator = iter(fl.PrefetchLoader(numbered_loader(samples=4000, num_workers={workers})))\n"
        "next(iterator)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.long
def test_g06_the_interpreter_waits_for_a_batch_that_takes_long():
    code = (
        "import time, torch, fastload as fl\n"
        "def batches():\n"
        "    while True:\n"
        "        end, x = time.time() + 1.5, torch.ones(64, 64)\n"
        "        while time.time() < end: x = torch.tanh(x @ x)\n"
        "        yield x\n"
        "next(iter(fl.PrefetchLoader(batches(), device='cpu')))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.gpu
def test_g06_no_pinned_block_is_left_behind():
    loader = fl.PrefetchLoader(numbered_loader(samples=400), MEAN, STD)
    pinned = []
    for _ in range(5):
        list(loader)
        for _ in loader:
            break
        torch.cuda.synchronize()
        pinned.append(torch.cuda.host_memory_stats()["allocated_bytes.current"])
    assert pinned == pinned[:1] * 5


@pytest.mark.gpu
def test_g06_an_error_that_is_kept_keeps_no_pinned_block():
    def broken(images):
        if images.flatten()[0] == 3:
            raise ValueError("three")
        return images

    def pinned_after_an_error():
        batches = [torch.full((64, 3, 64, 64), number, dtype=torch.uint8) for number in range(5)]
        with pytest.raises(ValueError, match="three") as caught:
            list(fl.PrefetchLoader(batches, transform=broken))
        torch.cuda.synchronize()
        return torch.cuda.host_memory_stats()["allocated_bytes.current"], caught.value

    kept = [pinned_after_an_error() for _ in range(6)]
    assert len({pinned for pinned, _ in kept[1:]}) == 1


class Collecting(Numbered):
    def __getitem__(self, index):
        gc.collect()
        return super().__getitem__(index)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_g06_workers_leave_the_garbage_that_they_inherit_alone(device):
    for _ in range(2):
        wrapped = DataLoader(Collecting(8), batch_size=4, num_workers=2)
        for batch in fl.PrefetchLoader(wrapped, device=device):
            cycle = [batch, Untouchable()]
            cycle.append(cycle)
        del batch, cycle


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_g06_workers_may_be_started_beside_an_open_pass(device):
    """As validation does within an epoch: a worker inherits all that the threads of the open pass have."""
    crops = T.Compose([T.RandomResizedCrop(8), T.RandomHorizontalFlip(), T.ColorJitter(0.4)])
    images = torch.zeros(64, 3, 16, 16, dtype=torch.uint8)
    training = fl.PrefetchLoader(DataLoader(images, batch_size=4), transform=crops, device=device)
    validation = fl.PrefetchLoader(DataLoader(images, batch_size=32, num_workers=2), device=device)
    for number, _ in enumerate(training):
        if number % 8 == 4:
            assert len(list(validation)) == 2


def test_g06_what_the_user_has_frozen_stays_frozen():
    mine = [[number] for number in range(100)]
    gc.freeze()
    try:
        list(fl.PrefetchLoader(numbered_loader(), device="cpu"))
        collected = set(map(id, gc.get_objects()))  # those that the collector looks at: no frozen ones
        assert collected.isdisjoint(map(id, mine))
    finally:
        gc.unfreeze()


# A process forked beside a pass


def in_a_fork(action):
    """What ``action`` returns, or its error, in a forked process."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sender.send(outcome_of(action)))
    process.start()
    assert receiver.poll(30)
    process.join(30)
    assert process.exitcode == 0
    return receiver.recv()


def outcome_of(action):
    try:
        return action()
    except Exception as error:  # noqa: BLE001  (it is what the test looks at)
        return error


@pytest.mark.parametrize("workers", [0, 2])
def test_g06_a_pass_is_no_forked_childs(workers):
    loader = fl.PrefetchLoader(numbered_loader(samples=40, num_workers=workers), device="cpu")
    iterator = iter(loader)
    next(iterator)
    error = in_a_fork(lambda: next(iterator))
    assert isinstance(error, RuntimeError)
    assert f"this pass runs in process {os.getpid()}, from which this one was forked" in str(error)
    assert in_a_fork(loader.close) is None
    assert [labels.tolist()[0] for _, labels in iterator] == list(range(4, 40, 4))  # here it goes on


def test_g06_a_forked_child_may_begin_a_pass_of_its_own():
    loader = fl.PrefetchLoader(numbered_loader(samples=8), device="cpu")
    iterator = iter(loader)
    assert in_a_fork(lambda: [labels.tolist() for _, labels in loader]) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(list(iterator)) == 2


def test_g06_a_forked_child_takes_no_batch_of_its_parents_iterator_or_workers():
    persistent = numbered_loader(samples=40, num_workers=1, persistent_workers=True)
    for wrapped in (persistent, iter([torch.ones(1)] * 9)):
        loader = fl.PrefetchLoader(wrapped, device="cpu")
        iterator = iter(loader)
        next(iterator)
        error = in_a_fork(lambda: next(iter(loader)))  # noqa: B023
        assert isinstance(error, RuntimeError)
        assert "make a new loader here" in str(error)
        assert len(list(iterator)) in (8, 9)


def test_g06_a_forked_child_waits_for_no_thread_at_its_end():
    loader = fl.PrefetchLoader(numbered_loader(samples=40), device="cpu")
    iterator = iter(loader)
    next(iterator)
    assert in_a_fork(_wait_for_threads) is None
    assert len(list(iterator)) == 9


# Copies


def shallow(loader):
    return copy.copy(loader)


def deep(loader):
    return copy.deepcopy(loader)


def pickled(loader):
    return pickle.loads(pickle.dumps(loader))


@pytest.mark.parametrize("copied", [shallow, deep, pickled])
def test_g06_a_copy_has_the_settings_and_no_pass(copied):
    loader = fl.PrefetchLoader(numbered_loader(samples=12), MEAN, STD, device="cpu", depth=3, seed=5)
    iterator = iter(loader)
    next(iterator)
    other = copied(loader)
    assert (other.depth, other.seed, other.epoch, other.device) == (3, 5, loader.epoch, loader.device)
    assert [labels.tolist()[0] for _, labels in other] == [0, 4, 8]
    other.close()
    assert [labels.tolist()[0] for _, labels in iterator] == [4, 8]
    assert (other.loader is loader.loader) == (copied is shallow)


@pytest.mark.parametrize("copied", [shallow, deep, pickled])
def test_g10_a_copy_goes_on_from_a_loaded_state(copied):
    loader = fl.PrefetchLoader(numbered_loader(samples=12), device="cpu")
    next(iter(loader))
    resumed = fl.PrefetchLoader(numbered_loader(samples=12), device="cpu")
    resumed.load_state_dict(loader.state_dict())
    assert [labels.tolist()[0] for _, labels in copied(resumed)] == [4, 8]


@pytest.mark.parametrize("name", ["depth", "device", "static"])
def test_g06_what_a_pass_is_built_from_cannot_be_set_without_effect(name):
    loader = fl.PrefetchLoader([torch.ones(1)], device="cpu")
    with pytest.raises(AttributeError, match=name):
        setattr(loader, name, getattr(loader, name))

"""Blocks of memory that a process hands to another."""

import ctypes
import gc
import mmap
import os
import pickle
import random
import sys
import threading
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import pytest
import torch
from torch.utils.data import DataLoader

import fastload.data.shared_memory
from fastload.data.collate import collate
from fastload.data.encoded import EncodedImages
from fastload.data.shared_memory import Shared, received
from tests.files import jpeg

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared so on Linux only")


@pytest.fixture(autouse=True)
def no_memory_of_earlier_tests():
    fastload.data.shared_memory._segments.clear()
    gc.collect()


FILES = [jpeg(20 + number, 30) for number in range(12)]


def files_in_shared_memory(files=FILES):
    packed = collate(files)
    shared = Shared(len(packed.block))
    shared.block.copy_(packed.block)
    return EncodedImages(shared, packed.table, packed.names, packed.problems)


def hand_over(files, queue, done):
    queue.put(files_in_shared_memory(files))
    done.wait()


def same(one, other):
    files = all(torch.equal(one.file(row), other.file(row)) for row in range(len(one)))
    return files and torch.equal(one.table, other.table) and one.names == other.names


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_process_receives_what_the_other_sent(method):
    context = get_context(method)
    queue, done = context.Queue(), context.Event()
    process = context.Process(target=hand_over, args=(FILES, queue, done))
    process.start()
    received = queue.get(timeout=60)
    done.set()
    process.join()
    assert same(received, collate(FILES))  # though the process that made it is gone


def test_it_is_the_same_memory_while_both_have_it():
    queue = get_context("fork").Queue()
    sent = files_in_shared_memory()
    queue.put(sent)
    received = queue.get(timeout=60)
    received.block[0] = 1
    sent.block[0] += 1
    assert received.block[0] == 2


def test_elsewhere_it_is_pickled_by_value():
    files = files_in_shared_memory()
    copy = pickle.loads(pickle.dumps(files))
    assert same(copy, files)
    copy.block.zero_()
    assert files.block.any()


def open_descriptors():
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":  # it closes its queue's pipes when the loader that had them is gone
            thread.join(timeout=30)
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_is_left():
    before = open_descriptors()
    for number, files in enumerate(DataLoader(FILES * 4, batch_size=2, num_workers=2, collate_fn=collate)):
        assert not files.problems, number
    del files
    assert open_descriptors() == before


def mapped():
    """The memory of others that this process has in its address space: bytes, mapping by mapping."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if "/memfd:fastload" in line]
    return [int(end, 16) - int(start, 16) for start, end in ranges]


def test_memory_is_mapped_once_and_given_back_when_its_worker_has_ended():
    loader = DataLoader([jpeg(1000, 1000)] * 40, num_workers=1, collate_fn=partial(collate, decode=True))
    before, faults = mapped(), []
    for files in loader:
        assert files.block[:: mmap.PAGESIZE].any()
        faults.append(getrusage(RUSAGE_SELF).ru_minflt)
    gc.collect()
    assert faults[-1] - faults[10] < len(files.block) / mmap.PAGESIZE  # for thirty batches
    assert len(mapped()) == len(before) + 1  # of the batch that is kept
    assert files.block[:: mmap.PAGESIZE].any()
    del files
    assert mapped() == before


def test_memory_that_a_worker_has_grown_out_of_is_given_back():
    growing = [jpeg(100 * number, 100) for number in range(1, 25)]
    for files in DataLoader(growing, num_workers=1, collate_fn=partial(collate, decode=True)):
        assert len(files.block) >= 30_000
        assert len(mapped()) < 8


def test_a_process_that_has_ended_is_named():
    context = get_context("fork")
    handles = context.SimpleQueue()
    process = context.Process(target=lambda: handles.put(Shared(100).handle()))
    process.start()
    process.join()
    with pytest.raises(ConnectionResetError, match=f"process {process.pid} has ended"):
        received(*handles.get())


PR_SET_DUMPABLE = 4
CAPABILITIES_VERSION = 0x20080522


def closed_to_others(_worker):
    """A worker whose /proc/PID/fd nobody may read, as one that holds a password."""
    assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0


def test_a_process_that_others_cannot_look_into_sends_too():
    loader = DataLoader(FILES, batch_size=4, num_workers=1, collate_fn=collate, worker_init_fn=closed_to_others)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            no_rights = (ctypes.c_uint32 * 6)()  # those of root would let it look into any process
            assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0), no_rights) == 0
            code = [files.file(0).numpy().tobytes() for files in loader] != FILES[::4]
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def send_handles(pipe):
    while pipe.recv():
        shared = Shared(10_000)
        shared.block.fill_(7)
        pipe.send(shared.handle())
        del shared


def test_a_descriptor_is_sent_until_the_receiver_keeps_the_memory():
    context = get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=send_handles, args=(there,))
    process.start()
    with_descriptor = []
    for _ in range(3):
        here.send(True)
        handle = here.recv()
        with_descriptor.append(handle[1] is not None)
        assert received(*handle)[0] == 7
    here.send(False)
    process.join()
    assert with_descriptor == [True, False, False]


def test_memory_is_used_again_when_nobody_has_any_of_it():
    first = Shared(10_000)
    address, part = first.block.data_ptr(), first.block[9_000:]
    del first
    second = Shared(10_000)
    assert second.block.data_ptr() != address  # there is a part of the first still
    there, again = received(*second.handle()), received(*second.handle())
    taken = {address, second.block.data_ptr()}
    del part, second
    third = Shared(9_000)
    assert third.block.data_ptr() == address
    del there
    assert Shared(10_000).block.data_ptr() not in taken  # the second has a holder still
    del again, third
    assert taken <= {shared.block.data_ptr() for shared in [Shared(10_000) for _ in range(3)]}


def test_what_was_inherited_by_a_fork_is_not_used_again():
    mine = Shared(10_000)
    mine.block.fill_(1)
    pid = os.fork()
    if pid == 0:
        del mine
        Shared(10_000).block.fill_(2)
        os._exit(0)
    os.waitpid(pid, 0)
    assert (mine.block == 1).all()


def test_g01_a_forked_child_that_lets_go_of_a_batch_does_not_give_it_back():
    loader = iter(DataLoader(FILES * 20, batch_size=4, num_workers=1, collate_fn=collate))
    held = [next(loader) for _ in range(3)]
    expected = [files.block.clone() for files in held]
    pid = os.fork()
    if pid == 0:
        held.clear()
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in loader:  # the worker fills whatever is free
        assert all(torch.equal(files.block, block) for files, block in zip(held, expected, strict=True))


def test_memory_that_is_too_small_is_not_used_again():
    small = Shared(10_000)
    address = small.block.data_ptr()
    del small
    large = Shared(1_000_000)
    assert len(large.block.fill_(1)) == 1_000_000
    assert large.block.data_ptr() != address


def test_no_batch_changes_while_it_is_kept():
    """Batches are kept for as long as chance has it, while the workers fill the memory of others again."""
    dataset = [(FILES[number * 5 % len(FILES)], number) for number in range(300)]
    chance, kept = random.Random(0), []
    for files, numbers in DataLoader(dataset, batch_size=3, num_workers=2, collate_fn=collate):
        kept.append((files, numbers))
        while kept and chance.random() < 0.5:
            old, old_numbers = kept.pop(chance.randrange(len(kept)))
            for row, number in enumerate(old_numbers.tolist()):
                assert old.file(row).numpy().tobytes() == dataset[number][0]
    assert len(kept) > 1


def test_others_run_while_memory_is_given_back():
    """If they are let run, they do soon, whatever else the machine has to do."""
    assert any(others_have_run_while_memory_was_given_back() for _ in range(50))


def others_have_run_while_memory_was_given_back():
    """Nothing is switched by time here: a thread can only have gone on if it was let go on."""
    count, stop = 0, threading.Event()

    def work():
        nonlocal count
        while not stop.wait(1e-5):
            count += 1

    block = received(*Shared(256 * 2**20).handle())
    block.fill_(1)
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        sys.setswitchinterval(60)
        before = count
        del block
        after = count
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    return after > before

"""Blocks of memory that a process hands to another."""

import os
import pickle
import sys
import threading
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from fastload.collate import collate
from fastload.encoded import EncodedImages
from fastload.shared import Shared
from tests.files import jpeg

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory is shared so on Linux only")

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


@pytest.mark.parametrize("method", ["fork", "spawn"])
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


def test_no_descriptor_is_left():
    descriptors = Path("/proc/self/fd")
    before = len(list(descriptors.iterdir()))
    for number, files in enumerate(DataLoader(FILES * 4, batch_size=2, num_workers=2, collate_fn=collate)):
        assert not files.problems, number
    del files
    assert len(list(descriptors.iterdir())) == before


def test_others_run_while_memory_is_given_back():
    """Nothing is switched by time here: a thread can only have gone on if it was let go on."""
    count, stop = 0, threading.Event()

    def work():
        nonlocal count
        while not stop.wait(1e-5):
            count += 1

    block = Shared(256 * 2**20).block
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
    assert after > before

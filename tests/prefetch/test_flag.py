"""``Flag`` can be waited for by several threads, and where a signal handler raises."""

import sys
import threading
import time
from contextlib import contextmanager

import pytest

from fastload.prefetch.flag import Flag


def test_all_who_wait_are_woken():
    flag, woken = Flag(), []
    threads = [threading.Thread(target=lambda: woken.append(flag.wait())) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.01)
    assert not woken
    flag.set()
    for thread in threads:
        thread.join(10)
    assert woken == [True] * 3


def test_a_wait_ends_in_time():
    begin = time.monotonic()
    assert not Flag().wait(0.05)
    assert time.monotonic() - begin >= 0.05


class HandlerError(Exception):
    """What a signal handler raises."""


@contextmanager
def raised_at_instruction(number):
    """Raise before the instruction with this number, as a signal handler may; yield how many there have been."""
    executed = []

    def trace(frame, event, _):
        frame.f_trace_opcodes = True
        if event == "opcode":
            executed.append(frame)
            if len(executed) == number:
                raise HandlerError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield executed
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("is_set", [False, True])
def test_g05_a_handlers_exception_is_raised_wherever_it_comes(is_set):
    number = 0
    while True:
        number += 1
        flag = Flag()
        setting = threading.Timer(0.0 if is_set else 0.002, flag.set)
        setting.start()
        if is_set:
            setting.join()
        try:
            with raised_at_instruction(number) as executed:
                assert flag.wait(10)
        except HandlerError:
            assert flag.wait(10)  # the next wait is as if there had been no other
        else:
            break
    assert len(executed) < number
    assert number > 10

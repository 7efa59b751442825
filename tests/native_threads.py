"""Gloo's threads beside forks (``let_gloo_rest``) and as a process ends (``end_beside_gloo``).

After a collective one of gloo's threads lets go of a tensor, and for that makes itself known to Python.

It does so under a lock which it takes without holding the interpreter's. Until Python 3.11.10, a child forked meanwhile
inherits the lock as taken and waits for it for ever (python/cpython#112275). A ``DataLoader`` that forks workers right
after ``all_reduce`` so waits for them.

Where Python ends meanwhile, it ends the thread as well, and C++ aborts the process: "terminate called without an active
exception". ``destroy_process_group`` ends these threads only if no ``DistributedDataParallel`` has used the group.
"""

import os
import sys
import time
from pathlib import Path
from typing import NoReturn

FORKS_SAFELY = sys.version_info >= (3, 11, 10) or (3, 10, 15) <= sys.version_info < (3, 11)
THREADS = Path("/proc/self/task")
TESTS = Path(__file__).parent
RESTING = {"PYTHONPATH": f"{TESTS / 'resting'}{os.pathsep}{TESTS.parent}"}  # so that a process does it as it starts
LONGEST = 5.0  # seconds to wait


def let_gloo_rest() -> None:
    """Before each fork of this process from now on, wait until its gloo threads wait for work."""
    if not FORKS_SAFELY and THREADS.exists():
        os.register_at_fork(before=_wait)


def end_beside_gloo() -> NoReturn:
    """End this process, which went well, without ending Python."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _wait() -> None:
    until = time.monotonic() + LONGEST
    while _any_works() and time.monotonic() < until:
        time.sleep(0.001)


def _any_works() -> bool:
    return any(name.startswith("pt_gloo") and state != "S" for name, state in map(_name_and_state, THREADS.iterdir()))


def _name_and_state(thread: Path) -> tuple[str, str]:
    try:
        _, _, rest = (thread / "stat").read_text().partition(" (")
    except OSError:  # it has ended
        return "", ""
    name, _, fields = rest.rpartition(") ")
    return name, fields[:1]

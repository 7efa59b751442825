"""Examples run as programs of their own, on the CPU, without the seconds of imports in each.

A process is forked from a server that has imported what the examples import. It runs the file as ``python file`` does;
as a rank, with the variables that ``torchrun`` sets. On GPUs the tests type the commands of the examples' headers.
"""

import contextlib
import os
import runpy
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.lives import be_born, forked

EXAMPLES = Path(__file__).parents[2] / "examples"


class Program:
    """A running example: the lines that it prints, and its end.

    >>> program = Program(home, "vit.py", "--tiny")  # doctest: +SKIP
    >>> list(program.lines), program.exit_code  # doctest: +SKIP
    """

    def __init__(self, home: Path, name: str, *options: str, **environment: str) -> None:
        pipe = home / f"{name}-{os.urandom(4).hex()}.pipe"
        os.mkfifo(pipe)
        command = [str(EXAMPLES / name), *options]
        self._process = forked.Process(target=_run, args=(home, pipe, command, environment))
        self._process.start()
        self._output = pipe.open()
        pipe.unlink()

    @property
    def lines(self) -> Iterator[str]:
        """What it prints, errors too, line by line until it ends."""
        return (line.rstrip("\n") for line in self._output)

    def kill(self) -> None:
        """Kill it and its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join()

    def end(self) -> tuple[int, list[str]]:
        """Its exit code, and the rest of its lines."""
        lines = list(self.lines)
        self._process.join(60)
        with contextlib.suppress(ProcessLookupError):
            self.kill()  # if it hangs
        return self._process.exitcode, lines


def printed(home: Path, name: str, *options: str, **environment: str) -> list[str]:
    """The lines that an example prints, which must succeed."""
    exit_code, lines = Program(home, name, *options, **environment).end()
    assert exit_code == 0, "\n".join(lines)
    return lines


def printed_by_ranks(number: int, home: Path, name: str, *options: str) -> list[str]:
    """The lines that so many ranks of an example print, which must all succeed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": str(number), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [Program(home, name, *options, **shared, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(number)]
    ends = [rank.end() for rank in ranks]
    lines = [line for _, its_lines in ends for line in its_lines]
    assert [exit_code for exit_code, _ in ends] == [0] * number, "\n".join(lines)
    return lines


def _run(home: Path, pipe: Path, command: list[str], environment: dict[str, str]) -> None:
    os.setsid()  # so that it and its workers can be killed together
    be_born()
    with pipe.open("w") as output:
        os.dup2(output.fileno(), sys.stdout.fileno())
        os.dup2(output.fileno(), sys.stderr.fileno())
    os.chdir(home)
    os.environ.update(environment)
    sys.argv = command
    sys.path.insert(0, str(EXAMPLES))
    runpy.run_path(command[0], run_name="__main__")

"""The examples run as they are, on the CPU in their smallest size."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, *arguments):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](list(arguments))


@pytest.mark.long
def test_memory_efficient_swish_keeps_less_than_the_naive_one(capsys):
    memory = run("memory_efficient_swish", "--tiny")
    assert "input alone" in capsys.readouterr().out
    kept = {name: memory[4, name].second["forward"].allocated for name in ("naive", "input alone", "F.silu")}
    assert max(kept["input alone"], kept["F.silu"]) < kept["naive"]

"""The soak itself: it runs at a tiny size on the CPU, and it finds what is wrong."""

import sys

import pytest
import torch

from fastload.prefetch.iterator import PrefetchIterator
from tests import soak
from tests.adversary import soak as adversary_soak

pytestmark = pytest.mark.long


def test_it_checks_every_batch_and_finds_nothing_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["soak", "--seconds", "4", "--device", "cpu", "--json", str(tmp_path / "counts.json")]
    )
    assert soak.main() == 0
    assert '"wrong_batches": 0' in (tmp_path / "counts.json").read_text()


def test_it_finds_a_batch_that_comes_twice(monkeypatch):
    handed_out, last = PrefetchIterator._handed_out, []

    def repeated(one_pass, *asked):
        last.append(handed_out(one_pass, *asked))
        return last[-2] if len(last) == 3 else last[-1]

    monkeypatch.setattr(PrefetchIterator, "_handed_out", repeated)
    device = soak.Device(torch.device("cpu"))
    trial = soak.Soak(device, seconds=60, seed=0)
    trial.play(soak.probe("add"))
    assert "wrong batches [2]" in trial.problems[0]


def test_it_finds_memory_of_the_host_that_is_kept(monkeypatch):
    play, kept = soak.Soak.play, []

    def leaking(trial, episode, deadline=None):
        kept.append(torch.empty(soak.host_bytes()["allocated"] // 8, dtype=torch.uint8))
        play(trial, episode, deadline)

    monkeypatch.setattr(soak.Soak, "play", leaking)
    monkeypatch.setattr(soak, "SAMPLES", 1)
    trial = soak.Soak(soak.Device(torch.device("cpu")), seconds=0, seed=0)  # no more than warms up, and the probes
    trial.run()
    assert len(trial.host_bytes) == 4
    assert "the host's memory has grown" in trial.problems[-1]


def test_the_adversarys_soak_plays_and_replays(monkeypatch, capsys):
    for options in (["--seconds", "1"], ["--seed", "7"]):
        monkeypatch.setattr(sys, "argv", ["soak", *options])
        assert adversary_soak.main() == 0
    assert "0 findings" in capsys.readouterr().out

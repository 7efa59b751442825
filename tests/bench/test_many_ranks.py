"""The simulation of many ranks does what the loader does, and costs what it must."""

import json
import os
import runpy
import subprocess
import sys
from collections import deque
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.native_threads import RESTING

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
ranks = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "many_ranks.py")))
RECORD_BATCHES = ROOT / "benchmarks" / "record_batches.py"
STEP = 0.04
STALLS = ranks.Scenario("stalls", stall=0.5)


def even(read=0.01, decode=0.012, prepare=0.005, step=STEP):
    """A record whose batches and steps are all alike."""
    return ranks.Record(np.tile([[read], [decode], [prepare]], 10), np.full(10, step), np.full(10, step))


def uneven():
    """A record of whole seconds, in which each stage and the step is sometimes the slowest."""
    loader, steps = np.random.default_rng(0).integers(1, 9, (3, 30)), np.random.default_rng(1).integers(4, 8, (2, 30))
    return ranks.Record(loader.astype(float), *steps.astype(float))


def share(record, ranks_, depth, scenario=ranks.ALIKE):
    return ranks.simulate(record, ranks.World.of(ranks_, depth), scenario).share


def test_a_loader_that_is_faster_than_the_step_costs_nothing():
    for depth in ranks.DEPTHS:
        found = ranks.simulate(even(), ranks.World.of(64, depth))
        assert found.share == pytest.approx(1)
        assert found.of_limit == pytest.approx(1)
        assert found.late == 0


@pytest.mark.parametrize("stage", ["read", "decode", "prepare"])
@pytest.mark.parametrize("depth", [1, 8])
def test_a_slower_loader_makes_the_step_its_own_time(stage, depth):
    assert share(even(**{stage: 2 * STEP}), 8, depth) == pytest.approx(0.5)


def test_one_slow_host_slows_all_ranks():
    slow = ranks.Scenario("slow", slow=4.0)  # decoding takes 48 ms
    for count in (1, 8, 512):
        assert share(even(), count, 8, slow) == pytest.approx(STEP / (4 * 0.012))


def test_rare_stalls_cost_more_the_more_ranks_there_are():
    shares = [share(even(), count, 2, STALLS) for count in ranks.RANKS]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.98
    assert shares[-1] < 0.5


def test_a_deeper_queue_hides_longer_stalls():
    shares = [share(even(), 64, depth, STALLS) for depth in (1, 2, 4, 8, 16)]
    assert shares == sorted(shares)
    assert shares[-1] > 0.99


def test_the_same_seed_gives_the_same_result():
    world = ranks.World(ranks=8, depth=1)
    first, again, other = (ranks.simulate(uneven(), world, STALLS, seed=seed) for seed in (3, 3, 4))
    assert first == again != other


@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("scenario", [ranks.ALIKE, ranks.Scenario("stalls", stall=40.0, every=10)])
def test_it_agrees_with_threads_that_are_played_second_by_second(depth, scenario):
    world = ranks.World(ranks=3, depth=depth, steps=60, warm_up=0)
    drawn = list(ranks.draws(uneven(), world, scenario, seed=0))
    found = ranks.simulate(uneven(), world, scenario, seed=0)
    assert found.step / found.share * world.steps == pytest.approx(played(drawn, world))


def played(drawn, world):
    """Play each thread of each rank, second by second, and return when the last step ends."""
    players = [Rank(rank, drawn, world.depth) for rank in range(world.ranks)]
    now, ended = 0, -1
    while ended < world.steps - 1:
        for player in players:
            player.move(now, ended)
        if all(player.trained == ended + 1 and player.trains_until <= now for player in players):
            ended += 1
            for player in players:
                player.step_ended(ended)
        else:
            now += 1
    return now


class Rank:
    """The threads of a loader and of training; each stage holds the number of its batch, and when it is done."""

    def __init__(self, rank, drawn, depth):
        self.times = [[int(each.loader[stage, 0, rank]) for each in drawn] for stage in range(3)]
        self.steps = [int(each.step[0, rank]) for each in drawn]
        self.held = [None, None, None]
        self.free_slots = depth + 2
        self.unread = deque(range(len(drawn)))
        self.waiting = deque()
        self.trained, self.trains_until = -1, 0

    def move(self, now, ended):
        while self._moves(now, ended):
            pass

    def step_ended(self, step):
        """Asked for the next batch, the loader frees the slot of the one before last."""
        self.free_slots += step > 0

    def _moves(self, now, ended):
        is_done = [held is not None and held[1] <= now for held in self.held]
        if is_done[2]:
            self.waiting.append(self.held[2][0])
            self.held[2] = None
        elif is_done[1] and self.held[2] is None and self.free_slots:
            self.free_slots -= 1
            self._take(2, self.held[1][0], now)
            self.held[1] = None
        elif is_done[0] and self.held[1] is None:
            self._take(1, self.held[0][0], now)
            self.held[0] = None
        elif self.held[0] is None and self.unread:
            self._take(0, self.unread.popleft(), now)
        elif self.waiting and self.trained == ended:
            self.trained = self.waiting.popleft()
            self.trains_until = now + self.steps[self.trained]
        else:
            return False
        return True

    def _take(self, stage, batch, now):
        self.held[stage] = batch, now + self.times[stage][batch]


@pytest.mark.parametrize("count", [1, 8, 64, 512])
@pytest.mark.parametrize("depth", [1, 4])
def test_the_formula_holds_where_a_rank_rarely_stalls_twice(count, depth):
    formula = ranks.Formula.of(even(), count, depth, STEP)
    for stall in (0.1, 0.2, 0.3):
        scenario = ranks.Scenario("stalls", stall=stall)
        assert formula.pairs(stall) < 0.02
        assert formula.share(stall) == pytest.approx(share(even(), count, depth, scenario), abs=0.01)
    assert formula.share(formula.longest()) == pytest.approx(1 - ranks.LOSS)


def test_a_batch_is_charged_to_the_stage_that_it_kept_busy():
    host = {"load": [0, 1], "pin": [1, 3], "decode": [3, 4], "prepare": [5, 6]}
    device = {"decode": [3, 8], "transform": [8, 10]}
    assert ranks.stages_of(host, device) == (3, 5, 2)


@pytest.fixture
def record(tmp_path):
    """A file as record_batches.py writes it, of a loader that needs a second of each step of four."""
    host = {"load": [0, 0.4], "pin": [0.4, 0.5], "decode": [0.5, 1.5], "slot": [1.5, 1.5], "prepare": [1.5, 2]}
    row = {"step": 4.0, "host": host, "device": {"decode": [0.5, 1], "transform": [1.5, 2], "stall": [0, 0]}}
    settings = {"model": "resnet50", "batch": 256}
    meta = {"device": "card", "cpu_count": 2, "torch": "2", "git_commit": "abc", "git_dirty": False}
    meta |= {"timestamp_utc": "2026-11-24T09:00:00Z", "settings": settings}
    content = {"meta": meta, "ranks": 1, "depth": 2, "graph": False, "share": 0.75, "limit_steps": [3.0, 3.0]}
    path = tmp_path / "record.json"
    path.write_text(json.dumps(content | {"batches": [row] * 4}))
    return path


@pytest.fixture
def few(monkeypatch):
    """Simulate no more ranks than are asked for, which takes less time."""
    monkeypatch.setitem(ranks.simulate.__globals__, "FEWEST_RANKS", 1)


def command(*arguments):
    return CliRunner().invoke(ranks.app, [*map(str, arguments), "--ranks", "1", "--ranks", "8", "--depths", "2"])


@pytest.mark.usefixtures("few")
def test_the_tables_go_into_a_page(record, tmp_path):
    page, plot = tmp_path / "page.md", tmp_path / "shares.png"
    page.write_text("before\n<!-- many_ranks -->\nan old table\n<!-- end -->\nafter\n")
    done = command(record, "--page", page, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "1 rank, depth 2: 0.750 of the limit simulated, 0.750 measured" in done.output
    text = page.read_text()
    assert text.startswith("before\n<!-- many_ranks -->\n**Share")
    assert text.endswith("\n<!-- end -->\nafter\n")
    assert "| slow host, x4 | 2 | 1.000 | 1.000 |" in text
    assert "an old table" not in text
    assert plot.exists()


@pytest.mark.usefixtures("few")
def test_another_file_is_refused(record, tmp_path):
    other = tmp_path / "other.json"
    other.write_text("{}")
    refused = command(other)
    assert refused.exit_code == 2
    assert "'batches'" in refused.output
    page = tmp_path / "page.md"
    page.write_text("no marks")
    assert "many_ranks" in command(record, "--page", page).output


def in_this_process(script, options):
    done = CliRunner().invoke(runpy.run_path(str(script))["app"], options)
    assert done.exit_code == 0, done.output


def in_two_processes(script, options):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | RESTING | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*launcher, script, *options], check=True, cwd=ROOT, env=environment, timeout=240)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(torch.cuda.is_available(), reason="records at full size where there is a GPU")
@pytest.mark.parametrize(("run", "processes"), [(in_this_process, 1), (in_two_processes, 2)], ids=["1", "2"])
def test_batches_are_recorded(run, processes, tmp_path):
    path = tmp_path / "record.json"
    run(RECORD_BATCHES, [f"--out={path}", "--steps=8", "--warm-up=2", "--depth=3"])
    record = ranks.Record.read(path)
    assert record.loader.shape == (3, 8)
    assert (record.loader > 0).all()
    assert (record.ranks, record.depth, len(record.limit)) == (processes, 3, 4)
    assert record.share > 0


REFUSED = [("--model=vgg", "resnet50"), ("--graph", "GPU"), ("--steps=1001", "1000")]


@pytest.mark.parametrize(("option", "told"), REFUSED)
def test_what_cannot_be_recorded_is_refused(option, told, tmp_path):
    if option == "--graph" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    script = runpy.run_path(str(RECORD_BATCHES))
    refused = CliRunner().invoke(script["app"], [f"--out={tmp_path / 'record.json'}", option])
    assert refused.exit_code == 2
    assert told in refused.output

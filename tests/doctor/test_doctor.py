"""``fastload doctor``: scripts, factories and folders as users have them, examined as they are."""

import io
import json
import subprocess
import sys
import textwrap
import time
import types

import pytest
import torch
from rich.console import Console
from torch.utils.data import DataLoader, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from typer.testing import CliRunner

import fastload as fl
from fastload import doctor
from fastload.cli import app
from fastload.doctor import rates, sample_times, target
from fastload.report.report import Report
from fastload.report.setup import Setup
from fastload.report.verdict import Bound, Cause
from fastload.stats.stats import Period, Stats, Timing
from tests.files import jpeg

pytestmark = pytest.mark.long

SCRIPT = """
import sys, time, torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

def main(folder, epochs):
    transform = v2.Compose([v2.RandomResizedCrop(32), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = DataLoader(ImageFolder(folder, transform), batch_size=4)
    held_out = DataLoader(ImageFolder(folder, transform), batch_size=4)
    for epoch in range(int(epochs)):
        for images, labels in loader:
            time.sleep(STEP)
        for images, labels in held_out:
            break
    print("finished")

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch):
    monkeypatch.setattr(rates, "SECONDS", 0.2)
    monkeypatch.setattr(sample_times, "SECONDS", 0.2)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    root = tmp_path_factory.mktemp("photographs")
    for number in range(24):
        file = root / "ab"[number % 2] / f"{number}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(jpeg(160, 120, seed=number))
    return root


@pytest.fixture
def script(tmp_path):
    def write(text=SCRIPT, step=0.0):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text).replace("STEP", str(step)))
        return path

    return write


def run(*arguments):
    return CliRunner().invoke(app, ["doctor", *map(str, arguments)])


def found_by(*arguments):
    return json.loads(run(*arguments, "--json").stdout)  # what the script prints goes to stderr


def test_a_script_that_loads_in_its_own_process_is_to_use_workers(script, photographs):
    result = run(script(), photographs, 100, "--steps", 20)
    assert result.exit_code == 1, result.output
    assert "Input-bound: the training thread waits for its input" in result.stdout
    assert "the script used 1 more" in result.stdout
    for part in (
        "read",
        "decode",
        "transform",
        "collate",
        "samples/s on one core",
        "no workers",
        "2 workers",
        "training takes",
    ):
        assert part in result.stdout
    assert "fl.offload(loader) would move this" in result.stdout
    assert "finished" not in result.stdout


def test_a_script_bound_by_its_model_is_healthy(script, photographs):
    result = run(script(step=1.0), photographs, 100, "--steps", 6)
    assert result.exit_code == 0, result.output
    assert "Compute-bound" in result.stdout
    assert "Nothing to change in the input." in result.stdout


def test_the_last_steps_are_drawn(script, photographs, tmp_path):
    pytest.importorskip("matplotlib")
    run(script(), photographs, 100, "--steps", 10, "--plot", tmp_path / "steps.svg")
    assert (tmp_path / "steps.svg").stat().st_size > 1000


def test_where_no_loop_ran_there_is_none_to_draw(photographs, tmp_path):
    result = run(photographs, "--plot", tmp_path / "steps.svg")
    assert "there is no training loop to plot: --plot takes a script" in result.stderr
    assert not (tmp_path / "steps.svg").exists()


def test_a_short_script_runs_to_its_end(script, photographs):
    report = found_by(script(), photographs, 2, "--steps", 1000)["report"]
    assert report["stats"]["total"]["batches"] == 2 * 5


SLOW_TO_WATCH = [
    ("script", 0.1, 1, True),
    ("script", 0.1, 60, False),
    ("factory", 0.1, 1, True),
    ("factory", 0.1, 60, False),
]


@pytest.mark.parametrize(("kind", "step", "seconds", "is_told"), SLOW_TO_WATCH)
def test_a_loop_that_has_no_time_for_all_steps_is_told_of(
    kind, step, seconds, is_told, script, photographs, monkeypatch
):
    if kind == "script":
        watched = script(step=step), photographs, 100
    else:
        made = types.ModuleType("slow_steps")
        made.factory = lambda: (DataLoader(torch.zeros(99, 3, 8, 8), batch_size=4), lambda _: time.sleep(step))
        monkeypatch.setitem(sys.modules, "slow_steps", made)
        watched = ("slow_steps:factory",)
    told = f"(ended after {seconds} s, before all steps: --seconds watches longer)"
    assert (told in run(*watched, "--steps", 15, "--seconds", seconds).stdout) == is_told


def test_the_findings_as_json(script, photographs):
    found = found_by(script(), photographs, 100, "--steps", 10)
    assert found["sample"]["samples"] == 4
    assert set(found["rates"]) == {str(number) for number in rates.numbers_of_workers(0)}
    assert found["moved"]["plan"].startswith("dataset.transform")
    assert found["report"]["verdict"]["bound"] == "input-bound"


def test_a_script_that_fails_is_told_of_with_its_traceback(script, capfd):
    result = run(script("import torch\nprint(1 / 0)\n"))
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.stderr + capfd.readouterr().err
    assert result.stderr.splitlines()[-1].endswith("train.py failed")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "iterated over no DataLoader"),
        ("import sys\nsys.exit(3)\n", "ended with exit code 3"),
        ("import sys\nsys.exit('no data')\n", "ended by sys.exit('no data')"),
    ],
)
def test_a_script_without_a_loader_is_refused(script, text, message):
    result = run(script(text))
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("target", ["nothing.py", "neither", "no_such_module:loader", ":loader"])
def test_what_is_no_target_is_refused(target):
    result = run(target)
    assert result.exit_code == 2
    assert target in result.stderr


def test_a_loop_through_fastload_is_examined_as_it_is(script, photographs):
    text = SCRIPT.replace(
        "batch_size=4)\n    held", "batch_size=4)\n    loader = fastload.PrefetchLoader(loader)\n    held"
    )
    found = found_by(script("import fastload\n" + textwrap.dedent(text), step=0.2), photographs, 100, "--steps", 6)
    assert found["setup"]["depth"] == 3
    assert found["report"]["verdict"]["bound"] == "compute-bound"


def test_a_folder_of_images_is_examined_without_training(photographs, monkeypatch):
    for module in ("target", "rates"):
        monkeypatch.setattr(f"fastload.doctor.{module}.cores", lambda: 1)
    found = doctor.examine(doctor.find(str(photographs), [], 5, 5))
    assert found.report is None
    assert found.sample is not None
    assert found.sample.read is not None
    assert found.rates[1] > 0
    assert found.is_healthy
    with (console := Console(width=200)).capture() as printed:
        console.print(found)
    assert "Whether its samples a second are enough, your training tells." in printed.get()


def test_a_folder_without_classes_or_without_images(tmp_path):
    with pytest.raises(ValueError, match="no image in"):
        doctor.find(str(tmp_path), [], 5, 5)
    for number in range(8):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(40, 30, seed=number))
    assert len(doctor.find(str(tmp_path), [], 5, 5).loader.dataset) == 8


def test_a_factory_returns_a_loader_and_may_return_a_step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_loaders.py").write_text(
        textwrap.dedent(
            """
            import time
            import torch
            from torch.utils.data import DataLoader

            def loader():
                return DataLoader(torch.zeros(64, 3, 8, 8), batch_size=4)

            def loader_and_step():
                return loader(), lambda batch: time.sleep(0.1)
            """
        )
    )
    assert doctor.find("my_loaders:loader", [], 10, 5).measured is None
    found = doctor.find("my_loaders:loader_and_step", [], 10, 20)
    report = found.measured.report(show=False)
    assert report.verdict.bound is Bound.COMPUTE
    assert report.stats.total.batches >= 9
    with pytest.raises(ValueError, match="my_loaders:nothing"):
        doctor.find("my_loaders:nothing", [], 5, 5)


@pytest.mark.parametrize(
    ("factory", "failed"),
    [("broken", "failing:broken"), ("step", "failing:step"), ("data", "the loader of failing:data")],
)
def test_a_factory_that_fails_is_told_of_with_its_traceback(tmp_path, monkeypatch, capfd, factory, failed):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing.py").write_text(
        textwrap.dedent(
            """
            import torch
            from torch.utils.data import DataLoader

            def broken(*_):
                raise ValueError("all wrong")

            def step():
                return DataLoader(torch.zeros(64, 3, 8, 8), batch_size=4), broken

            def data():
                return DataLoader([0] * 64, batch_size=4, collate_fn=broken)
            """
        )
    )
    result = run(f"failing:{factory}")
    assert result.exit_code == 2
    error = result.stderr + capfd.readouterr().err
    assert 'raise ValueError("all wrong")' in error
    assert result.stderr.splitlines()[-1] == f"fastload: {failed} failed"


@pytest.mark.parametrize("made", [([0], print, None), ([0], [1])], ids=["three", "no function"])
def test_what_a_factory_must_return_is_said(monkeypatch, made):
    module = types.ModuleType("of_a_user")
    module.factory = lambda: made
    monkeypatch.setitem(sys.modules, "of_a_user", module)
    with pytest.raises(doctor.ScriptError) as raised:
        doctor.find("of_a_user:factory", [], 5, 5)
    held = ", ".join(type(each).__name__ for each in made)
    assert str(raised.value.__cause__).endswith(f"a loader and a function of a batch; got a tuple of {held}")


def test_a_rate_counts_the_batches_after_the_first():
    batches = [torch.zeros(4)] * 3
    assert 0 < rates.rate_of(batches) < float("inf")
    assert rates.rate_of([]) == rates.rate_of(batches[:1]) == 0


def test_a_loader_of_one_batch_has_a_rate_too(photographs):
    loader = doctor.find(str(photographs), [], 5, 5).loader
    assert len(loader) == 1
    assert rates.rate_of(rates.with_workers(loader, 1)) > 0
    assert rates.offloaded(loader, measure=True).samples_per_second > 0


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(torch.zeros(self.samples, 3, 8, 8))


@pytest.mark.parametrize(
    "loader",
    [
        torch.utils.data.DataLoader(Stream(64), batch_size=4),
        torch.utils.data.DataLoader(Stream(64), batch_size=None),
        torch.utils.data.DataLoader(torch.zeros(64, 4, 3, 8, 8), batch_size=None),
    ],
    ids=["a stream", "a stream of batches", "a data set of batches"],
)
def test_loaders_without_a_batch_sampler_have_rates_too(loader):
    found = doctor.examine(target.ExaminedLoader("loader", loader))
    assert found.rates[1] > 0
    assert (found.sample is None) == (loader.batch_size is None)


def test_where_nothing_could_be_measured_it_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_batches.py").write_text("import torch\ndef batches(): return [torch.zeros(4, 3, 8, 8)]\n")
    result = run("my_batches:batches")
    assert result.exit_code == 2
    assert "Nothing could be measured" in result.stdout


def test_what_offload_refuses_is_told_with_its_reason():
    loader = torch.utils.data.DataLoader(torch.zeros(8, 3), batch_size=2)
    assert (
        rates.offloaded(loader, measure=False).refused
        == "dataset, of type Tensor, has no attribute transform or transforms"
    )


def test_where_no_step_can_move_each_is_named_with_its_reason(photographs):
    dataset = ImageFolder(photographs, v2.Compose([v2.JPEG(50), v2.ToImage()]))
    refused = rates.offloaded(torch.utils.data.DataLoader(dataset), measure=False).refused
    assert refused.splitlines() == [
        "nothing of dataset.transform can move:",
        "  JPEG     worker  fastload has none like it",
        "  ToImage  device  nothing is left to do",
    ]


def test_what_offload_has_moved_is_not_to_be_moved_again(photographs):
    transform = v2.Compose([v2.RandomResizedCrop(32), v2.JPEG(50), v2.ToImage(), v2.RandomHorizontalFlip()])
    loader = torch.utils.data.DataLoader(ImageFolder(photographs, transform), batch_size=4)
    inner = fl.offload(loader, device="cpu").loader
    assert rates.offloaded(inner, measure=False).refused == "what can move has moved already"


def test_the_change_that_wins_most_comes_first():
    moved = rates.Offloaded("dataset.transform", samples_per_second=100.0)
    found = examined({1: 10.0, 4: 30.0}, trained=10, waits=0.95, workers=1, device="cuda", moved=moved)
    assert found.changes == ["loader = fl.offload(loader)  # 10.00x", "DataLoader(..., num_workers=4)  # 3.00x"]
    assert not found.is_healthy


def examined(alone, trained=0.0, waits=0.0, workers=0, dataset=(), device="cpu", host=(), **measured):
    """What the doctor finds of a loader that gives so many samples a second alone, by number of workers.

    Training takes ``trained`` samples a second, and waits for its input for so much of the time; 0 if no loop ran.
    ``host`` has seconds a batch of stages besides loading.
    """
    setup = Setup.of(DataLoader(dataset, batch_size=8, num_workers=workers), device)
    report = None
    if trained:
        step = 8 / trained
        wait = Timing(step * waits)
        window = Period(
            100,
            800,
            seconds=100 * step,
            step=Timing(step),
            stall=wait,
            host={"load": wait, **{name: Timing(seconds) for name, seconds in dict(host).items()}},
            cpu={"load": wait.mean},
        )
        report = Report.of(Stats(recent=window, total=window), setup)
    return doctor.Examination("train.py", device, setup, report, rates=alone, **measured)


def test_a_loader_is_compared_with_what_it_gives_without_workers():
    assert not examined({0: 100, 1: 50, 2: 103}).changes
    assert not examined({0: 100, 1: 50, 2: 103}, trained=99, waits=0.9).changes


def test_workers_win_nothing_where_another_stage_sets_the_pace():
    loader = {"alone": {1: 250, 2: 500}, "trained": 250, "waits": 0.9, "workers": 1}
    assert "num_workers=2" in examined(**loader).changes[0]
    assert not examined(**loader, host={"decode": 8 / 250}).changes


def test_a_change_wins_no_more_than_not_to_wait():
    found = examined({0: 200, 1: 190, 2: 390}, trained=300, waits=0.13)
    assert found.report.verdict.most == pytest.approx(1.15, abs=0.01)
    assert found.changes == ["DataLoader(..., num_workers=2)  # at most 1.15x"]
    moved = rates.Offloaded("dataset.transform", samples_per_second=1000.0)
    assert examined({1: 100, 2: 100}, 300, 0.13, 1, moved=moved).changes == [
        "loader = fl.offload(loader)  # at most 1.15x"
    ]


def test_no_more_workers_than_it_takes():
    assert examined({0: 100, 1: 250, 2: 400, 4: 800}, trained=75, waits=0.75).changes == [
        "DataLoader(..., num_workers=2)  # at most 4.00x"
    ]


def test_loading_by_turns_with_training_is_advised_only_where_training_was_measured():
    alone = {0: 170_000, 1: 7_000, 2: 9_000}
    assert examined(alone, trained=5_000, waits=0.78, workers=2).changes == [
        "DataLoader(..., num_workers=0)  # at most 2.23x"
    ]
    assert not examined(alone, workers=2).changes


@pytest.mark.parametrize(("workers", "advice"), [(0, []), (2, ["DataLoader(..., num_workers=0)"])])
def test_batches_that_are_made_faster_than_handed_over_are_best_made_without_workers(workers, advice, monkeypatch):
    made = types.ModuleType("tiny_batches")
    made.factory = lambda: (DataLoader(TensorDataset(torch.zeros(4000, 64)), 8, num_workers=workers), lambda _: None)
    monkeypatch.setitem(sys.modules, "tiny_batches", made)
    found = doctor.examine(doctor.find("tiny_batches:factory", [], 200, 10))
    assert found.rates[0] > 2 * found.rates[2]
    assert [line.split("  # ")[0] for line in found.changes] == advice


def test_several_workers_of_a_stream_are_advised_with_what_they_ask_of_it():
    (advice,) = examined({0: 100, 1: 100, 2: 200}, dataset=Stream(64)).changes
    assert advice.startswith(
        "DataLoader(..., num_workers=2)  # at most 2.00x. The data set must give each worker a part"
    )
    assert "torch.utils.data.get_worker_info()" in advice
    assert examined({0: 100, 1: 200}, dataset=Stream(64)).changes == ["DataLoader(..., num_workers=1)  # at most 2.00x"]


SPAWNING = """
import dataclasses
import torch
from beside import Beside
from torch.utils.data import DataLoader, Dataset

@dataclasses.dataclass
class Numbers(Beside):
    samples: int = 64

    def __len__(self):
        return self.samples

if __name__ == "__main__":
    (samples,) = dataclasses.fields(Numbers)  # whose type is no text: the script imports no annotations from the future
    data = Numbers(samples.type(64))
    for batch in DataLoader(data, 4, num_workers=1, multiprocessing_context="spawn"):
        pass
"""
BESIDE = """
import torch
from torch.utils.data import Dataset

class Beside(Dataset):
    def __getitem__(self, index):
        return torch.tensor(index)
"""


def test_workers_that_are_spawned_find_the_data_set_of_the_script_and_what_lies_beside_it(script, tmp_path):
    (tmp_path / "beside.py").write_text(BESIDE)
    result = run(script(SPAWNING), "--steps", 8)
    assert result.exit_code in (0, 1), result.output
    assert "1 worker" in result.stdout


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bars_are_of_what_the_terminal_can_show(encoding):
    text = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=text).print(examined({0: 100, 1: 200}))
    text.flush()
    assert {"utf-8": "█", "ascii": "#"}[encoding] in text.buffer.getvalue().decode(encoding)


EPOCHS = """
import time, torch
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.zeros(80, 3)), {batch_size})
for _ in range(8):
    for batch in loader:
        time.sleep(0.002)
"""


def test_the_last_steps_are_drawn_though_the_script_ends_as_an_epoch_begins(script, tmp_path):
    result = run(script(EPOCHS.format(batch_size=4)), "--steps", 40, "--plot", tmp_path / "steps.svg")
    assert result.exit_code in (0, 1), result.output
    assert "</svg>" in (tmp_path / "steps.svg").read_text()


TAKING = """
import torch
from torch.utils.data import DataLoader

def take(samples):
    labels = torch.tensor([sample.pop("label") for sample in samples])
    return torch.stack([sample["image"] for sample in samples]), labels

class Labelled(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"image": torch.zeros(3), "label": index}

for batch in DataLoader(Labelled(), 4, collate_fn=take):
    pass
"""


def test_a_collate_function_may_take_entries_out_of_its_samples(script):
    result = run(script(TAKING), "--steps", 5)
    assert result.exit_code in (0, 1), result.output
    assert "collate" in result.stdout


def test_what_was_found_is_printed_where_nothing_can_be_drawn(script, tmp_path):
    result = run(script(EPOCHS.format(batch_size=80)), "--steps", 6, "--plot", tmp_path / "steps.svg")
    assert "the loader alone" in result.stdout
    assert "there is nothing to plot: 1 batches" in result.stderr


TALKATIVE = """
import os, time
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        time.sleep(0.002)
        return index

print("imported")
if __name__ == "__main__":
    os.system("echo a program")
    for batch in DataLoader(Slow(), 4, num_workers=2, multiprocessing_context="spawn"):
        pass
"""


def test_a_script_of_too_few_batches_is_not_called_healthy(script):
    result = run(script(EPOCHS.format(batch_size=40).replace("range(8)", "range(1)")), "--steps", 5)
    assert "too few to judge by" in result.stdout
    assert "Nothing to change" not in result.stdout
    assert result.exit_code in (1, 2)


def test_what_workers_and_programs_of_a_script_print_stays_out_of_the_json(script):
    command = [sys.executable, "-m", "fastload", "doctor", str(script(TALKATIVE)), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(result.stdout)["setup"]["workers"] == 2
    assert "a program" in result.stderr
    assert result.stderr.count("imported") > 1


@pytest.mark.parametrize("picture", ["steps.jpg", "nowhere/steps.png"])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_measured(script, picture):
    result = run(script("raise RuntimeError"), "--plot", picture)
    assert result.exit_code == 2
    assert picture in result.stderr
    assert "RuntimeError" not in result.stderr


def test_it_runs_as_a_program_with_workers(script, photographs):
    text = SCRIPT.replace("batch_size=4)\n    held", "batch_size=4, num_workers=1)\n    held")
    command = [sys.executable, "-m", "fastload", "doctor", script(text), photographs, "1000", "--steps", "30"]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert result.returncode in (0, 1), result.stderr
    assert Cause.TOO_SHORT.value not in result.stdout
    assert "1 worker" in result.stdout

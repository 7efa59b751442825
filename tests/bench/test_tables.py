"""The tables in README.md and docs/ are drawn from the result files, and held to them."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
META = {
    "timestamp_utc": "2030-01-02T03:04:05Z",
    "git_commit": "0123456789abcdef",
    "git_dirty": False,
    "device": "NVIDIA H200",
    "driver": "580",
    "cpu_count": 16,
    "python": "3.12",
    "torch": "2.11.0",
    "torchvision": "0.26.0",
    "fastload": "0.1.0",
    "peers": {"timm": "1.0.29"},
    "missing": ["fabric"],
    "settings": {},
    "wall_s": {},
}
ROWS = [
    {"case": "resnet18_b512", "subject": "limit", "metric": "img_per_s", "median": 18551.4, "iqr": 20.0, "runs": 5,
     "ratio_to_limit": 1.0, "ratio_iqr": 0.0, "peak_gib": 9.5},
    {"case": "resnet18_b512", "subject": "fastload", "metric": "img_per_s", "median": 18366.1, "iqr": 0.0, "runs": 5,
     "ratio_to_limit": 0.99, "ratio_iqr": 0.004, "peak_gib": 10.25},
]  # fmt: skip
PAGE = "# Speed\n\n<!-- table: resident -->\nold\n<!-- end -->\n\nMore text.\n"


def tables(*arguments):
    script = runpy.run_path(str(ROOT / "benchmarks" / "tables.py"))
    return CliRunner().invoke(script["app"], [str(argument) for argument in arguments])


@pytest.fixture
def project(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("No table here.\n")
    (tmp_path / "docs" / "speed.md").write_text(PAGE)
    results = tmp_path / "benchmarks" / "results"
    results.mkdir(parents=True)
    for device in ("nvidia-h200", "cpu"):
        content = {"suite": "resident", "meta": META, "rows": ROWS}
        (results / f"resident--{device}.json").write_text(json.dumps(content))
    return tmp_path


def test_the_tables_of_this_repository_are_those_of_its_result_files():
    outcome = tables("--check")
    assert outcome.exit_code == 0, outcome.output


def test_a_table_is_drawn_from_the_file(project):
    assert tables("--root", project).exit_code == 0
    assert (project / "docs" / "speed.md").read_text() == (
        "# Speed\n\n<!-- table: resident -->\n"
        "| case | subject | img/s | share of the limit | peak GiB |\n"
        "| :--- | :--- | ---: | ---: | ---: |\n"
        "| resnet18_b512 | limit | 18,551 ± 10 | 1.000 | 9.500 |\n"
        "| resnet18_b512 | fastload | 18,366 | 0.990 ± 0.002 | 10.2 |\n"
        "\n"
        "NVIDIA H200, 16 cores, 2030-01-02; fastload 0.1.0 (0123456789), torch 2.11.0, torchvision 0.26.0, "
        "timm 1.0.29. Median of 5 runs ± half the interquartile range. Not installed: fabric.\n"
        "<!-- end -->\n\nMore text.\n"
    )
    assert tables("--root", project, "--check").exit_code == 0


def test_seeds_are_drawn_as_mean_and_deviation(project):
    row = {"case": "resnet18", "subject": "pil", "metric": "eval_accuracy", "median": 0.5, "iqr": 0.1, "runs": 5}
    content = {"suite": "accuracy", "meta": META, "rows": [{**row, "mean": 0.85, "std": 0.02}]}
    (project / "benchmarks" / "results" / "accuracy--nvidia-h200.json").write_text(json.dumps(content))
    (project / "README.md").write_text("<!-- table: accuracy -->\n<!-- end -->\n")
    tables("--root", project)
    drawn = (project / "README.md").read_text()
    assert "| resnet18 | pil | 0.850 ± 0.020 |" in drawn
    assert "Mean of 5 seeds ± standard deviation." in drawn


def test_check_names_the_page_and_leaves_it(project):
    outcome = tables("--root", project, "--check")
    assert outcome.exit_code == 1
    assert "speed.md: its tables differ from the result files" in outcome.stdout
    assert (project / "docs" / "speed.md").read_text() == PAGE


def test_a_suite_without_figures_says_so(project):
    (project / "benchmarks" / "results" / "resident--nvidia-h200.json").unlink()
    tables("--root", project)
    assert "No figures yet: run `fastload bench resident` on a GPU." in (project / "docs" / "speed.md").read_text()


def test_an_unknown_suite_is_refused(project):
    (project / "README.md").write_text("<!-- table: reticent -->\n<!-- end -->\n")
    outcome = tables("--root", project)
    assert outcome.exit_code == 2
    assert "there is no suite 'reticent'; choose from kernels, resident, jpeg, ladder, accuracy" in outcome.stderr

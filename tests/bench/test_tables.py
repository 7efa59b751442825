"""The tables and figures of README.md and docs/ come from the result files, and are held to them."""

from __future__ import annotations

import json
import re
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
     "ratio_to_limit": 0.99, "ratio_iqr": 0.004, "first_share": 0.985, "first_iqr": 0.002, "peak_gib": 10.25},
]  # fmt: skip
# In a sentence a speed has a mark, by which tables.py holds it to its file. Three decimals are a share of the limit or
# times the floor. A figure that has no file, such as one measured by others, has two decimals and its source.
SPEED = re.compile(r"\b\d+\.\d{3}\b|\d[\d,.]* (?:img/s|µs|times the floor)")
HELD = re.compile(
    r"^<!-- (?:table|hosts): .*?^<!-- end -->$|<!-- figure: .*?<!-- end -->|^```.*?^```$|`[^`\n]+`",
    re.DOTALL | re.MULTILINE,
)
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


def test_the_tables_and_figures_of_this_repository_are_those_of_its_result_files():
    outcome = tables("--check")
    assert outcome.exit_code == 0, outcome.output


@pytest.mark.parametrize("page", ["README.md", "docs/benchmarks.md"])
def test_a_speed_in_a_sentence_has_a_mark(page):
    assert SPEED.findall(HELD.sub("", (ROOT / page).read_text())) == []


@pytest.mark.parametrize("sentence", ["at 0.979 of it", "it takes 6,497 img/s", "32.5 µs", "2.2 times the floor"])
def test_a_speed_without_a_mark_is_found(sentence):
    assert SPEED.search(HELD.sub("", sentence))
    assert not SPEED.search(HELD.sub("", f"It is <!-- figure: a b c d -->{sentence}<!-- end -->, or `{sentence}`."))


def test_a_table_is_drawn_from_the_file(project):
    assert tables("--root", project).exit_code == 0
    assert (project / "docs" / "speed.md").read_text() == (
        "# Speed\n\n<!-- table: resident -->\n"
        "| case | subject | img/s | share of the limit | peak GiB | share in the first steps |\n"
        "| :--- | :--- | ---: | ---: | ---: | ---: |\n"
        "| resnet18_b512 | limit | 18,551 ± 10 | 1.000 | 9.500 |  |\n"
        "| resnet18_b512 | fastload | 18,366 | 0.990 ± 0.002 | 10.2 | 0.985 ± 0.001 |\n"
        "\n"
        "NVIDIA H200, 16 cores, 2030-01-02; fastload 0.1.0 (0123456789), torch 2.11.0, torchvision 0.26.0, "
        "timm 1.0.29. Median of 5 runs ± half the interquartile range. Not installed: fabric.\n"
        "<!-- end -->\n\nMore text.\n"
    )
    assert tables("--root", project, "--check").exit_code == 0


def test_a_mark_selects_rows_and_their_order(project):
    (project / "README.md").write_text(
        "<!-- table: resident subject=fastload,limit metric=img_per_s -->\n<!-- end -->\n"
    )
    assert tables("--root", project).exit_code == 0
    drawn = (project / "README.md").read_text()
    assert [line.split(" | ")[1] for line in drawn.splitlines() if "18_b512" in line] == ["fastload", "limit"]
    (project / "README.md").write_text("<!-- table: resident subject=fastload -->\n<!-- end -->\n")
    tables("--root", project)
    assert "| limit" not in (project / "README.md").read_text()


def test_a_figure_in_a_sentence_is_the_tables(project):
    sentence = "It reaches <!-- figure: resident resnet18_b512 fastload {} -->{}<!-- end -->, they say.\n"
    page = project / "README.md"
    page.write_text(sentence.format("ratio_to_limit", "1.2") + sentence.format("img_per_s", ""))
    assert tables("--root", project, "--check").exit_code == 1
    assert tables("--root", project).exit_code == 0
    assert page.read_text() == sentence.format("ratio_to_limit", "0.990") + sentence.format("img_per_s", "18,366")
    assert tables("--root", project, "--check").exit_code == 0


def test_further_machines_stand_in_the_order_of_their_numbers(project):
    hosts = project / "benchmarks" / "results" / "hosts"
    hosts.mkdir()
    for number in (10, 1, 2):
        content = {"suite": "resident", "meta": {**META, "cpu_count": number}, "rows": ROWS}
        (hosts / f"resident--nvidia-h200-{number}.json").write_text(json.dumps(content))
    page = project / "docs" / "hosts.md"
    page.write_text("<!-- table: hosts/resident -->\n<!-- end -->\n")
    assert tables("--root", project).exit_code == 0
    assert re.findall(r"(\d+) cores", page.read_text()) == ["1", "2", "10"]


def test_a_figure_of_a_variant_and_of_seeds(project):
    row = {"case": "a", "variant": "b", "subject": "c", "metric": "us", "median": 5.0, "iqr": 0.1, "runs": 5}
    content = {
        "suite": "kernels",
        "meta": META,
        "rows": [{**row, "variant": "other"}, {**row, "mean": 7.0, "std": 1.0}],
    }
    (project / "benchmarks" / "results" / "kernels--nvidia-h200.json").write_text(json.dumps(content))
    (project / "README.md").write_text("<!-- figure: kernels a/b c us --><!-- end -->")
    tables("--root", project)
    assert (project / "README.md").read_text() == "<!-- figure: kernels a/b c us -->7.000<!-- end -->"


def test_a_figure_of_further_machines_is_the_lowest_and_the_highest(project):
    row = {"case": "a", "subject": "c", "metric": "us", "iqr": 0.1, "runs": 5}
    hosts = project / "benchmarks" / "results" / "hosts"
    hosts.mkdir()
    rows = {"1": {**row, "median": 1100.0}, "2": {**row, "median": 990.0}, "3": {**row, "case": "other", "median": 1.0}}
    for host, found in rows.items():
        content = {"suite": "kernels", "meta": META, "rows": [found]}
        (hosts / f"kernels--nvidia-h200-{host}.json").write_text(json.dumps(content))
    mark = "<!-- figure: hosts/kernels {} c us -->{}<!-- end -->"
    (project / "README.md").write_text(mark.format("a", "") + mark.format("other", ""))
    assert tables("--root", project).exit_code == 0
    assert (project / "README.md").read_text() == mark.format("a", "990 to 1,100") + mark.format("other", "1.000")


def test_hosts_share_a_table_in_the_order_in_which_they_were_measured(project):
    row = {"case": "a", "variant": "x", "subject": "c", "metric": "us", "median": 990.0, "iqr": 4.0, "runs": 3}
    other = {**row, "subject": "d", "median": 1100.0, "runs": 5}
    alone = {**row, "case": "b", "metric": "loader_img_per_s", "median": 7.0, "iqr": 0.0}
    hosts = project / "benchmarks" / "results" / "hosts"
    hosts.mkdir()
    for host, day, found in ("1", "03", [row]), ("2", "01", [row, other]), ("10", "02", [other, alone]):
        meta = {**META, "timestamp_utc": f"2030-01-{day}T03:04:05Z", "git_dirty": host == "1"}
        content = {"suite": "kernels", "meta": meta, "rows": found}
        (hosts / f"kernels--nvidia-h200-{host}.json").write_text(json.dumps(content))
    figures = "<!-- hosts: kernels subject=c,d a/x:us b:loader_img_per_s -->\n"
    some, listed = "<!-- hosts: kernels subject=c a/x:us -->\n", "<!-- hosts: kernels -->\n"
    (project / "README.md").write_text(f"{figures}<!-- end -->\n{some}<!-- end -->\n{listed}<!-- end -->\n")
    assert tables("--root", project).exit_code == 0
    assert (project / "README.md").read_text() == (
        f"{figures}| host | subject | a, x: µs | b: img/s, loader alone |\n"
        "| :--- | :--- | ---: | ---: |\n"
        "| 1 | c | 990 ± 2 |  |\n"
        "|  | d | 1,100 ± 2 |  |\n"
        "| 2 | c |  | 7.000 |\n"
        "|  | d | 1,100 ± 2 |  |\n"
        "| 3 | c | 990 ± 2 |  |\n"
        "<!-- end -->\n"
        f"{some}| host | subject | a, x: µs |\n"
        "| :--- | :--- | ---: |\n"
        "| 1 | c | 990 ± 2 |\n"
        "| 3 | c | 990 ± 2 |\n"
        "<!-- end -->\n"
        f"{listed}| host | GPU | cores | measured | fastload | runs |\n"
        "| :--- | :--- | :--- | :--- | :--- | :--- |\n"
        "| 1 | NVIDIA H200 | 16 | 2030-01-01 | 0123456789 | 3 to 5 |\n"
        "| 2 | NVIDIA H200 | 16 | 2030-01-02 | 0123456789 | 3 to 5 |\n"
        "| 3 | NVIDIA H200 | 16 | 2030-01-03 | 0123456789 with uncommitted changes | 3 |\n\n"
        "torch 2.11.0, torchvision 0.26.0, timm 1.0.29. "
        "Figures are medians of so many runs ± half the interquartile range.\n"
        "<!-- end -->\n"
    )
    assert tables("--root", project, "--check").exit_code == 0

    (project / "README.md").write_text("<!-- hosts: kernels subject=c a/x:us a/x:ms b/x:us -->\n<!-- end -->\n")
    refused = tables("--root", project)
    assert refused.exit_code == 2
    assert "no host has a, x: ms a step, b, x: µs of" in refused.stderr


@pytest.mark.parametrize(
    ("mark", "error"),
    [
        ("hosts: resident resnet18_b512:img_per_s", "a mark of hosts has suite, subject=..., and case:column"),
        ("hosts: resident subject=fastload", "a mark of hosts has suite, subject=..., and case:column"),
        ("hosts: resident subject=fastload a:us b:us", "no host has a result of"),
        ("hosts: resident", "no host has a result of"),
        ("figure: hosts/resident resnet18_b512 fastload img_per_s", "must name one figure of one result file; found 0"),
        ("figure: resident resnet18_b512 fastload speed", "must name one figure of one result file; found 0"),
        ("figure: resident resnet18_b512 nobody img_per_s", "no row of resident is"),
        ("figure: resident resnet18_b512 img_per_s", "a figure's mark has suite, case, subject and column"),
        ("figure: reticent a b c", "there is no suite 'reticent'"),
        ("table: resident case=resnet50", "no row of resident is"),
    ],
)
def test_a_mark_that_the_files_cannot_serve_is_refused(project, mark, error):
    (project / "README.md").write_text(
        f"<!-- {mark} --><!-- end -->" if mark.startswith("figure") else f"<!-- {mark} -->\n<!-- end -->\n"
    )
    outcome = tables("--root", project)
    assert outcome.exit_code == 2
    assert error in outcome.stderr


def test_uncommitted_changes_are_said(project):
    content = {"suite": "resident", "meta": {**META, "git_dirty": True}, "rows": ROWS}
    (project / "benchmarks" / "results" / "resident--nvidia-h200.json").write_text(json.dumps(content))
    tables("--root", project)
    assert "(0123456789 with uncommitted changes)" in (project / "docs" / "speed.md").read_text()


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
    assert "speed.md: its figures differ from the result files" in outcome.stdout
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

"""README's chart shows the figures of the result file."""

import json
import runpy
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).parents[2]
RESULT = Path("benchmarks/results/jpeg--nvidia-h200.json")


def chart(*arguments):
    script = runpy.run_path(str(ROOT / "benchmarks" / "chart.py"))
    return CliRunner().invoke(script["app"], [str(argument) for argument in arguments])


def test_the_chart_is_that_of_the_result_file():
    assert chart("--check").exit_code == 0


@pytest.fixture
def project(tmp_path):
    (tmp_path / RESULT).parent.mkdir(parents=True)
    shutil.copy(ROOT / RESULT, tmp_path / RESULT)
    shutil.copytree(ROOT / "docs" / "pictures", tmp_path / "docs" / "pictures")
    return tmp_path


def test_another_figure_is_another_chart(project):
    assert chart("--check", "--root", project).exit_code == 0
    result = json.loads((project / RESULT).read_text())
    next(row for row in result["rows"] if row["subject"] == "dali" and "ratio_to_limit" in row)["ratio_to_limit"] = 0.5
    (project / RESULT).write_text(json.dumps(result))
    refused = chart("--check", "--root", project)
    assert refused.exit_code == 1
    assert "python benchmarks/chart.py" in refused.stderr
    assert chart("--root", project).exit_code == 0
    assert "DALI 50%" in (project / "docs" / "pictures" / "jpeg-dark.svg").read_text()


def test_pages_show_the_charts_that_are_there():
    readme = (ROOT / "README.md").read_text()
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        assert f'"docs/pictures/{picture.name}"' in readme

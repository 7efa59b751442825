# make demo       watch a model train on photographs through fastload
# make test       run the tests
# make test-gpu   run the tests that need a GPU, with the current interpreter, installing nothing
# make lint       run the linter, the formatter's check and the type checker

PYTHON ?= python3

.PHONY: demo test test-gpu lint clean

demo: .venv/demo
	.venv/bin/fastload demo

test: .venv/dev
	.venv/bin/python -m pytest

test-gpu:
	$(PYTHON) -m pytest -m gpu

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

.venv/%: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --upgrade pip
	.venv/bin/python -m pip install --quiet --editable ".[$*]"
	touch $@

clean:
	rm -rf .venv

# make demo       watch a model train on photographs through fastload
# make test       run the tests in PROCESSES=2 processes, without those marked long
# make test-long  run those: the examples, the demo, every benchmark at tiny size, killed runs, the adversary
# make test-gpu   run the tests that need a GPU, with the current interpreter, installing nothing
# make test-integrations   run a contract of twelve checks inside each framework and over each source, with the real libraries
# make soak       use fastload in random ways for SECONDS=60 on the simulated device, and as long on the GPU if there is one,
#                 without the cycle collector; decode mutated files; then run the tests with all examples
# make docs       build the site into build/site; a link that leads nowhere is an error
# make lint       run the linter, the formatter's check and the type checker; check which package imports which

PYTHON ?= python3
SECONDS ?= 60
PROCESSES ?= 2

# Tests start hundreds of processes, and each would compile anew what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-long test-integrations test-gpu soak docs lint clean

demo: .venv/demo
	.venv/bin/fastload demo

test: .venv/dev
	.venv/bin/python -m pytest -n $(PROCESSES) --dist loadgroup -m "not long"

test-long: .venv/dev
	.venv/bin/python -m pytest -n $(PROCESSES) --dist loadgroup -m long

test-integrations: .venv/integrations
	.venv/bin/python -m pytest -n $(PROCESSES) --dist loadfile fastload/integrations tests/integrations

test-gpu:
	$(PYTHON) -m pytest -m gpu

soak:
	$(PYTHON) -m tests.adversary.soak --seconds $(SECONDS)
	$(PYTHON) -m tests.soak --seconds $(SECONDS) --no-gc
	$(PYTHON) -m tests.fuzz_files 2>/dev/null  # decoders write there what they think of each file
	FASTLOAD_EXAMPLES=full $(PYTHON) -m pytest -n $(PROCESSES) --dist loadgroup

docs: .venv/docs
	.venv/bin/python docs/site.py
	.venv/bin/zensical build --clean --strict --config-file .mkdocs.yml

lint: .venv/dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --num-workers $(PROCESSES)
	.venv/bin/lint-imports

.venv/%: pyproject.toml .venv/bin/uv
	.venv/bin/uv pip install --quiet --python .venv --editable ".[$*]"
	touch $@

.venv/bin/uv:
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet uv

clean:
	rm -rf .venv

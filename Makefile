# make demo    a real 4-rank training run with one slow rank, and its verdict
# make test    everything the tests need, and the tests
# make lint    ruff, mypy --strict, the import rules, clang-format
# make wheel   the built wheel in an environment of its own: 3 minutes
# make bench   what stepscope costs in the trainer

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BUILD := pyproject.toml setup.py constraints.txt $(wildcard native/*/*)

.PHONY: demo test lint wheel bench clean

demo: .venv/.demo
	PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 stepscope run --html stepscope-runs/demo.html -- \
		torchrun --standalone --nproc-per-node 4 demo/train.py --slow-rank 2

# Compiled modules are kept, whatever the environment says: a hundred processes import the same ones.
test: export PYTHONDONTWRITEBYTECODE =
# What real jobs load is compiled beside the first tests, which need none of it (tests/conftest.py).
test: .venv/.test
	@$(BIN)/stepscope prepare > /dev/null 2>&1 &
	$(BIN)/python -m pytest -m "not alone" --numprocesses auto --maxprocesses 4 \
		--dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m alone tests/real

lint: .venv/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(wildcard native/*/*.?pp tests/native/*.cpp benchmarks/*.cpp) \
		src/stepscope/collect/native/*.cpp

wheel:
	.ci/wheel

bench: .venv/.demo
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf .venv stepscope-runs build src/*.egg-info src/stepscope/*.so src/stepscope/lib

.venv/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "stepscope needs Python 3.10 or newer: make PYTHON=python3.x")'
	$(PYTHON) -m venv .venv
	touch $@

.venv/.demo: .venv/.python $(BUILD)
	@echo "installing stepscope and torch into .venv (a minute or two)"
	$(PIP) torch -e .
	touch $@

.venv/.test: .venv/.demo
	@echo "installing what the tests need into .venv"
	$(PIP) -e ".[test,torch]"
	touch $@

.venv/.lint: .venv/.test
	$(PIP) -e ".[lint]"
	touch $@

# make demo    run real training on 4 ranks, one of them slow, and print the verdict
# make test    install everything the tests need, and run them
# make lint    ruff, mypy --strict, the import rules, clang-format
# make wheel   test the built wheel in its own environment: 3 minutes
# make lab     run jobs with faults on hosts made of namespaces, as root: 80 minutes; see docs/lab.md
# make fuzz    feed mutated inputs to every parser of foreign bytes: a minute
# make bench   measure the overhead in the trainer

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
BUILD := pyproject.toml setup.py constraints.txt $(wildcard native/*/*)

# What these extras of pyproject.toml ask for, without building stepscope again: that compiles all
# native parts, each time.
INSTALL = $(BIN)/python -c 'from importlib.metadata import requires; \
	wanted = tuple(f"extra == \"{one}\"" for one in "$(1)".split()); \
	print(*(line.split(";")[0] for line in requires("stepscope") if line.endswith(wanted)), sep="\n")' \
	> .venv/requirements.txt && $(PIP) -r .venv/requirements.txt

# Tests of real processes share the processors with everything else on the machine. What failed has
# to pass in a second run, one test at a time; a defect fails there, too.
AGAIN = { echo "once more, one at a time: what failed" >&2; \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none -m $(1); }

.PHONY: demo test lint wheel lab fuzz bench clean

demo: .venv/.demo
	PATH="$(CURDIR)/$(BIN):$$PATH" OMP_NUM_THREADS=1 stepscope run --html stepscope-runs/demo.html -- \
		torchrun --standalone --nproc-per-node 4 demo/train.py --slow-rank 2

# Keep compiled modules, even if the environment says otherwise: a hundred processes import them.
test: export PYTHONDONTWRITEBYTECODE =
# Compile the library of the real jobs in parallel to the first tests, which do not need it
# (tests/conftest.py).
test: .venv/.test
	@$(BIN)/stepscope prepare > /dev/null 2>&1 &
	$(BIN)/python -m pytest -m "not alone" --numprocesses auto --maxprocesses 4 \
		--dist loadfile --no-loadscope-reorder || $(call AGAIN,"not alone")
	$(BIN)/python -m pytest -m alone tests/real tests/lab || $(call AGAIN,alone tests/real tests/lab)

lint: .venv/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run -Werror $(wildcard native/*/*.?pp tests/native/*.cpp tests/fuzz/*.?pp benchmarks/*.cpp) \
		src/stepscope/collect/native/*.?pp

wheel:
	.ci/wheel

lab: .venv/.test
	$(BIN)/python -m lab run --out stepscope-runs/lab

# limits are those of a hung or leaking parser, not of a busy machine
fuzz: .venv/.fuzz
	$(BIN)/python -m tests.fuzz | xargs -P "$$(getconf _NPROCESSORS_ONLN)" -I TARGET \
		$(BIN)/python -m tests.fuzz TARGET -max_total_time=4 -timeout=60 -rss_limit_mb=4096 \
			-verbosity=0 -print_final_stats=0

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
	$(call INSTALL,test torch forest)
	touch $@

.venv/.fuzz: .venv/.test
	$(call INSTALL,fuzz)
	touch $@

.venv/.lint: .venv/.test
	$(call INSTALL,lint)
	touch $@

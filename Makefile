# `make help` lists the targets. Everything runs from one virtual environment, made by `make setup`.
# Override on the command line: PYTHON (which interpreter makes it), VENV (where it is), JOBS (test processes),
# PIP_ARGS (for instance PIP_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu' for torch without CUDA).

PYTHON   ?= python3
VENV     ?= .venv
JOBS     ?= 2
PIP_ARGS ?=

BIN   := $(VENV)/bin
STAMP := $(VENV)/.slob-installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the virtual environment and install everything into it (again only if a version changed)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "slob needs Python 3.11 or newer; name one: make setup PYTHON=python3.12" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) \
		-c constraints.txt torch -e '.[exact,experiments,runtime,dev]'
	touch $@

demo: setup ## compare SLoB with the exact optimum on three bundled clusters, then serve a real model from two devices
	$(BIN)/slob compare --suite demo --out runs/demo
	$(BIN)/slob demo --out runs/demo-served

# One numeric thread per process: the workers share the cores already, and results must not depend on their number.
test: setup ## run the test suite
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 \
		$(BIN)/pytest -n $(JOBS) --dist loadfile --benchmark-disable $(PYTEST_ARGS)

lint: setup ## style, format, types and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: setup ## measure speed (tests/benchmarks)
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/benchmarks -m benchmark --benchmark-only $(PYTEST_ARGS)

docs: setup ## write the generated pages under docs/ anew
	$(BIN)/python -m experiments.docs

clean: ## remove caches and build products (keeps the virtual environment and runs/)
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find slob_opt solvers experiments runtime tests -name __pycache__ -type d -prune -exec rm -rf {} +

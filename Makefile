# The commands of this repository. All make .venv themselves and need only Python 3.11 or later with pip.
#
#   make run PYTHON=python3.12          another interpreter
#   make run PIP_ARGS="--index-url …"   anything else pip should know, e.g. where builds of torch for CPUs lie
#   make run ARGS="--steps 4"           arguments of `trimtab demo`
#   make test ARGS="-k partition"       arguments of pytest
#   make test WORKERS=0                 all tests in one process, one after the other

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for python in python3.11 python3 python3.12 python3.13 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$python && break; done)
PIP_ARGS ?=
WORKERS ?= 2
ARGS ?=

EXTRAS_run := train,report
EXTRAS_test := train,report,dev,docs
EXTRAS_slow := train,report,dev,ray,hosts

# Bytecode is made on first use, for what is used: compiling all of torch and its kin would double the installation.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-slow check docs clean
.DELETE_ON_ERROR:

help:
	@echo "make run        train the demo's model on generated images and videos, balanced and not; compare"
	@echo "make test       make check, then the tests"
	@echo "make test-slow  tests that kill nodes, use many ranks or take long"
	@echo "make check      linter, formatter, types, import contracts, the documentation's links"
	@echo "make docs       the documentation as a site: build/docs/index.html"
	@echo "make clean      remove .venv, caches and build products; runs/ stays"

run: $(VENV)/.ready-run
	$(BIN)/trimtab demo $(ARGS)

test: check
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(ARGS)

test-slow: $(VENV)/.ready-slow
	$(BIN)/python -m pytest -m slow $(ARGS) || [ $$? -eq 5 ]  # 5: no test is slow

check: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=2 $(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs

docs: $(VENV)/.ready-test
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet docs build/docs
	@echo "build/docs/index.html"

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests benchmarks examples tools -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment that was never finished, or whose scripts do not start (the checkout moved), is made anew.
$(VENV)/.ready-%: pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then echo "no Python 3.11 or later found; install one, or name it: make PYTHON=…" >&2; exit 1; fi
	@if [ -e $(VENV)/.unfinished ] || ! $(BIN)/pip --version >/dev/null 2>&1; then \
		echo "==> making $(VENV) with $(PYTHON)" && \
		rm -rf $(VENV) && mkdir $(VENV) && touch $(VENV)/.unfinished && $(PYTHON) -m venv $(VENV); fi
	@echo "==> installing trimtab[$(EXTRAS_$*)]; the first time takes a minute or more"
	$(BIN)/python -m pip install --no-compile --constraint constraints.txt $(PIP_ARGS) --editable ".[$(EXTRAS_$*)]"
	@rm -f $(VENV)/.unfinished && touch $@ $(VENV)/.ready-run  # whatever is installed contains what `make run` needs

# The two commands: `make demo` and `make test`. Each makes its own environment once and may be run again at any time.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
INTENT ?= 1F1B over 2 stages, 8 microbatches
PIP := python -m pip --disable-pip-version-check install --progress-bar on
PYTEST_ARGS ?=
ALONE := tests/cli tests/failures tests/gpu tests/runtime
TOGETHER := $(filter-out $(ALONE) tests/support tests/conftest.py tests/__pycache__,$(wildcard tests/*))
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test lint clean

help:
	@echo 'make demo [INTENT="1F1B over 2 stages, 8 microbatches"]   from a sentence to a measured training run'
	@echo 'make test [PYTEST_ARGS="-k verify"]                       lint, types, import rules and tests'
	@echo 'make lint                                                 the first three alone'
	@echo 'make clean                                                remove environments, caches and runs'

demo: .venv-demo/stamp
	@.venv-demo/bin/python -m pibroch demo "$(INTENT)" --out runs/demo

test: lint
	@echo '== tests, two at a time'
	@.venv-test/bin/python -m pytest -n 2 --dist loadfile $(TOGETHER) --durations=10 $(PYTEST_ARGS) || [ $$? -eq 5 ]
	@echo '== tests that start clusters, or are about processes, one at a time'
	@.venv-test/bin/python -m pytest $(ALONE) --durations=10 $(PYTEST_ARGS) || [ $$? -eq 5 ]

lint: .venv-test/stamp
	@echo '== ruff'
	@.venv-test/bin/ruff check .
	@echo '== mypy'
	@.venv-test/bin/mypy pibroch tests
	@echo '== import-linter'
	@.venv-test/bin/lint-imports

.venv-demo/stamp: pyproject.toml constraints.txt
	@echo '== making .venv-demo with $(PYTHON) (once; about two minutes)'
	@$(PYTHON) -m venv .venv-demo
	@.venv-demo/bin/$(PIP) -c constraints.txt -e .
	@touch $@

.venv-test/stamp: pyproject.toml constraints.txt
	@echo '== making .venv-test with $(PYTHON) (once; about two minutes)'
	@$(PYTHON) -m venv .venv-test
	@.venv-test/bin/$(PIP) -c constraints.txt -e '.[test]'
	@touch $@

clean:
	rm -rf .venv-demo .venv-test .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache runs build dist
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
	rm -rf *.egg-info

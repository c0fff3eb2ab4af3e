# demo   trace, build, draw and train on the embedded data (first call installs)
# test   everything that CI checks: style, types, layers, tests, doctests
# zoo    examines every model of the zoo and writes docs/zoo.md (an hour on two cores)
# bench  timings as ratios against baselines measured in the same run

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input -q
JOBS   ?= 2

.PHONY: demo test lint zoo bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python -m archgraph demo

test: lint
	$(BIN)/python -m pytest -q -n $(JOBS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

zoo: $(VENV)/.installed-dev
	$(BIN)/python -m tests.zoo --level full --jobs $(JOBS) --write docs/zoo.md

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: install once, and again when the project's requirements change.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	touch $@

# torchvision is a zoo of foreign models for tests, never a dependency: its wheel
# asks for a CUDA torch, hence --no-deps (tests/conftest.py makes it importable).
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[dev]'
	$(PIP) install --no-deps torchvision==0.28.0
	$(PIP) check
	touch $@ $(VENV)/.installed

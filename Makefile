# demo   trace, build, draw and train on the embedded data (first call installs)
# quick  a minute of tests while writing: graphs, layouts, modules, states, rewrites, few examples of laws
# test   everything that CI checks: style, types, layers, documentation, tests, doctests
# full   all tests: every model, every malformed file, every way in which a client can misbehave
# docs   builds the pages into docs/_build/html; a warning is an error
# gallery  writes pages and small pictures of twelve models for the documentation, then builds it (minutes)
# zoo    examines every model of the zoo and writes docs/measured/zoo.csv (an hour on two cores), grows the
#        foreign ones (growth.csv), generates them all (hypernet.csv) and exports the foreign ones
#        (onnx-zoo.csv): another each
# small  runs specs/experiments/small with seeds 0, 1, 2 and compares them (an hour on two cores;
#        needs data, see README); with SET=recipfl those of specs/experiments/recipfl
# studies  runs what is missing of the benchmark and of the papers' tables in size small, writes
#        runs/studies (two days on two cores in all; resumes; prints the time left; needs data)
# bench  timings as ratios against baselines measured in the same run
# trust  runs that are killed, malformed files and updates, faults planted in the code (about two hours
#        of one core); writes docs/measured/kills.csv, fuzz.csv and mutants.csv

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input -q
JOBS   ?= 2
SEEDS  ?= 0 1 2
SET    ?= small
SMALL  := $(wildcard specs/experiments/$(SET)/*.yaml)

# Tests start hundreds of commands, which else compile the package anew each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test full lint docs gallery zoo small studies bench trust clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python -m archgraph demo

QUICK := $(addprefix tests/,graph layout module states rewrites laws \
	 'docs/test_snippets.py::test_snippets[README.md]')

quick: $(VENV)/.installed-dev
	HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -q -n $(JOBS) -m "not full and not slow" $(QUICK)

# A process that has nothing left takes tests over: the last one would else run its share alone.
test: lint docs
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations 15

full: lint docs
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --durations 15 -m ""

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/picture.py
	$(BIN)/sphinx-build -q -W --keep-going -b html -d docs/_build/doctrees docs docs/_build/html

gallery: $(VENV)/.installed-dev
	$(BIN)/python -m tests.zoo.gallery docs/_build/html/gallery --list docs/gallery.csv \
	  --pictures docs/_static/gallery --jobs $(JOBS)
	$(MAKE) docs

zoo: $(VENV)/.installed-dev
	$(BIN)/python -m tests.zoo --level full --jobs $(JOBS) --write docs/measured/zoo.csv
	$(BIN)/python -m tests.zoo --exam growth --group torchvision --group transformers \
	  --jobs $(JOBS) --write docs/measured/growth.csv
	$(BIN)/python -m tests.zoo --exam hypernet --jobs $(JOBS) --write docs/measured/hypernet.csv
	$(BIN)/python -m tests.zoo --exam onnx --group torchvision --group transformers \
	  --jobs $(JOBS) --write docs/measured/onnx-zoo.csv

# One process per run, one thread each: runs do not disturb one another, nor depend on the cores.
small: $(VENV)/.installed-dev
	for seed in $(SEEDS); do for file in $(SMALL); do echo $$file $$seed; done; done \
	| OMP_NUM_THREADS=1 xargs -P $(JOBS) -n 2 sh -c 'name=runs/$(SET)/$$(basename $$0 .yaml)-$$1; \
	$(BIN)/archgraph run --python $$0 --set seed=$$1 --out $$name $$(test -e $$name && echo --resume)'
	$(BIN)/archgraph compare runs/$(SET)/* $(if $(filter recipfl,$(SET)),--tiers --last 0.2)

studies: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/archgraph study --python specs/benchmark specs/studies specs/ablations --workers $(JOBS)

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

trust: $(VENV)/.installed-dev
	for script in kills fuzz mutants; do \
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.trust.$$script --write docs/measured/$$script.csv || exit 1; done

clean:
	rm -rf $(VENV) build dist docs/_build docs/_generated .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Stamps: install once, and again when the project's requirements change.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e .
	touch $@

# For tests only, never dependencies: torchvision is a zoo of foreign models, the others are tools
# that people use on models. Some of them ask for a CUDA torch, hence --no-deps
# (tests/conftest.py makes torchvision importable).
FOREIGN := torchvision==0.28.0 accelerate==1.15.0 captum==0.9.0 opacus==1.6.0 opt-einsum==3.4.0 \
           peft==0.21.2 torchao==0.18.0
$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -c constraints.txt -e '.[dev]'
	$(PIP) install --no-deps $(FOREIGN)
	$(PIP) check
	touch $@ $(VENV)/.installed

# A clean clone needs python3, pip and make; everything else is installed into .venv.
# Stamps in .venv record what was installed; they fall out of date when pyproject.toml changes.

PYTHON ?= python3
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/demo.stamp
DEV := $(VENV)/dev.stamp
PEERS := $(VENV)/peers.stamp
DOCS := $(VENV)/docs.stamp

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)
STAGE = @printf '\n=== %s\n'

.PHONY: help demo test quick bench docs peers clean

help:
	@echo 'make demo    install weft into .venv and train a language model in out/'
	@echo 'make test    everything that must be green: lint, format, types, layers, tests'
	@echo 'make quick   lint and the tests that are not slow, with the .venv as it is'
	@echo 'make bench   one table of weft beside NumPy, JAX and torch: out/bench.json and .png'
	@echo 'make docs    run the code of every page, then build the site into build/docs'
	@echo 'make peers   install the peers that some tests and the benchmarks compare with'
	@echo 'make clean   remove .venv, caches and build outputs'

$(BIN)/python:
	$(STAGE) 'create $(VENV)'
	$(PYTHON) -m venv $(VENV)

$(DEMO): pyproject.toml | $(BIN)/python
	$(STAGE) 'install weft[nn]'
	$(PIP) --editable '.[nn]'
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(STAGE) 'install weft[dev]'
	$(PIP) --editable '.[dev]'
	@touch $(DEMO) $@

$(PEERS): pyproject.toml | $(BIN)/python
	$(STAGE) 'install weft[dev,peers]'
	$(PIP) --editable '.[dev,peers]'
	@touch $(DEMO) $(DEV) $@

$(DOCS): pyproject.toml | $(BIN)/python
	$(STAGE) 'install weft[docs]'
	$(PIP) --editable '.[docs]'
	@touch $@

# Only an absent pytest makes `quick` install: it never waits for pip on a working .venv.
$(BIN)/pytest:
	@$(MAKE) --no-print-directory $(DEV)

demo: $(DEMO)
	$(BIN)/python -m weft demo

peers: $(PEERS)

test: $(DEV)
	$(STAGE) 'ruff check'
	$(BIN)/ruff check .
	$(STAGE) 'ruff format --check'
	$(BIN)/ruff format --check .
	$(STAGE) 'mypy'
	$(BIN)/mypy weft
	$(STAGE) 'lint-imports'
	$(BIN)/lint-imports --no-logo
	$(STAGE) 'pytest'
	$(PYTEST)

quick: $(BIN)/pytest
	$(STAGE) 'ruff'
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(STAGE) 'pytest, without the slow tests'
	$(PYTEST) -m 'not slow'

docs: $(DOCS)
	$(STAGE) 'python tools/pages.py'
	$(BIN)/python tools/pages.py
	$(STAGE) 'sphinx-build'
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs build/docs

bench: $(PEERS)
	$(BIN)/python benchmarks/table.py --out out

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

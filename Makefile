# Two commands are enough on a machine with Python (3.11 to 3.13) and make:
#   make demo    set up, then train four models on digits and compare them (a minute or two)
#   make test    set up if needed, then run everything that must pass

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
WORKERS ?= 2

.PHONY: help demo test lint types pytest test-gpu bench bench-gpu figures docs clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -4

# Installs only when the lists of what to install have changed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

demo: $(STAMP)
	$(BIN)/python -m nanode.demo

test: lint types pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

pytest: $(STAMP)
	$(BIN)/pytest -n $(WORKERS) -m "not gpu" --ignore=tests/kernels
	TRITON_INTERPRET=1 $(BIN)/pytest -n $(WORKERS) -m "not gpu" tests/kernels

# On a machine with a GPU, with whatever torch is installed there. Only files with such tests are
# opened: others may want extras that such a machine lacks. Much of the time is compilation's, so
# that several processes share one GPU well: WORKERS=4 on a large one.
test-gpu:
	grep -rl --include='*.py' 'mark\.gpu' tests | xargs -P $(WORKERS) -n 1 $(PYTHON) -m pytest -m gpu -p no:cacheprovider

bench: $(STAMP)
	$(BIN)/python benchmarks/weight_table.py
	$(BIN)/python benchmarks/mlp.py
	$(BIN)/python benchmarks/compare.py --preset cpu

bench-gpu:
	$(PYTHON) benchmarks/weight_table.py --device cuda
	$(PYTHON) benchmarks/compare.py --preset gpu --device cuda --norm batch --steps 10 100 --repeats 20

figures: $(STAMP)
	$(BIN)/python docs/figures.py
	$(BIN)/python docs/stability_figures.py

# The site, in site/. Pages link to results/ beside docs/; in the copy that it is built from, results
# lie inside. Broken links and names that aren't found are errors.
docs: $(DOCS_STAMP)
	rm -rf build/docs
	mkdir -p build/docs/results
	cp -r docs/images docs/reference docs/site.css build/docs
	cp results/*.md results/*.png results/*.gif build/docs/results
	for page in docs/*.md; do sed 's#](\.\./#](#g' $$page > build/$$page; done
	$(BIN)/python -m doctest docs/docstrings.py
	$(BIN)/zensical build --clean --strict

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache out build site

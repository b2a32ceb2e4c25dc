# Everything runs in .venv, which the first command makes. Nothing is installed into the system's Python.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TESTED := $(VENV)/.ready-to-test

.PHONY: demo docs release test test-slow test-gpu attack lint check bench map options notebooks clean

demo: $(READY)  ## tune and compare seven methods on digits; writes runs/demo/report.html
	$(BIN)/fedkeel compare benchmarks/demo.toml --out runs/demo

test: $(TESTED)  ## the fast tests
	$(BIN)/python -m pytest -m "not slow" -n 2

test-slow: $(TESTED)  ## the slow tests: kills at random moments, large splits
	$(BIN)/python -m pytest -m slow

test-gpu: $(TESTED)  ## every method and engine on your GPU, against the CPU (docs/gpu.md); skipped without a GPU
	$(BIN)/python -m pytest -m gpu -rs tests/gpu

attack: $(TESTED)  ## 1,040 corruptions of runs, every single write failing, 10,000 inputs, 3,000 data files, hostile replies
	FEDKEEL_ATTACKS=130 FEDKEEL_INPUTS=10000 FEDKEEL_MUTATIONS=375 $(BIN)/python -m pytest tests/hostile

lint: $(TESTED)  ## check format, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test  ## lint and fast tests; run it before every commit

bench: $(READY)  ## speed and scale beside other simulators, as ratios: results/bench.md (about 40 minutes)
	$(BIN)/fedkeel bench

docs: $(TESTED)  ## the documentation site, into site/; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

release: $(TESTED)  ## build wheel and sdist into dist/, and check both
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/check_release.py dist

map: $(READY)  ## draw the imports between layers: docs/map.svg; fails if an import points up
	$(BIN)/python benchmarks/map.py

options: $(READY)  ## write docs/python-and-cli.md: every option of the command line and what it is in Python
	$(BIN)/python benchmarks/python_and_cli.py

notebooks: $(TESTED)  ## run the notebooks and write their outputs into them (about two minutes)
	$(BIN)/python benchmarks/notebooks.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[tune]'
	touch $(READY)

$(TESTED): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,flower,hub,onnx,privacy,ray,slurm,text,tune]'
	touch $(TESTED)

clean:
	rm -rf $(VENV) runs site .pytest_cache .ruff_cache .mypy_cache .hypothesis

# Each target makes its own environment in .venv at the first use; `gpu` alone runs in the Python that it is given.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
# Three workers per two cores, each with one thread, because tests wait for ranks; what a worker has not begun goes to one
# that is idle.
WORKERS := $(shell expr $$(nproc) \* 3 / 2)
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal
INSTALL := $(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-all quick test-without-dgl lint docs wheel gpu clean

demo: $(READY)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash examples/demo.sh

test: $(READY)
	$(PYTEST)

# Those marked slow, too: before a release.
test-all: $(READY)
	$(PYTEST) --slow

# Two tests of each file, and one of those that take long; some minutes.
quick: $(READY)
	$(PYTEST) --quick

test-without-dgl: $(READY)
	DGL_GT_WITHOUT_DGL=1 $(PYTEST) -rs

lint: $(READY)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

docs: $(DOCS_READY)
	$(VENV)/bin/sphinx-build --fail-on-warning --keep-going --quiet -b html docs site

# One wheel for every version of Python, in dist/, tested outside of the checkout with torch and what it requires.
wheel:
	timeout 1200 bash tests/wheel.sh $(PYTHON)

# With CUDA torch, Triton, numpy and pytest, without network and DGL; within 20 minutes.
gpu:
	@$(PYTHON) -c 'import sys, torch; torch.cuda.is_available() or sys.exit("torch finds no GPU: make gpu needs one, and a torch for CUDA; choose a Python that has it, as in make PYTHON=python3.11 gpu")'
	$(PYTHON) setup.py -q build_ext --inplace
	timeout 840 $(PYTHON) -m pytest -p no:cacheprovider -rs $$($(PYTHON) -c 'import xdist; print("-n 8")' 2>/dev/null) $(wildcard tests/ops/test_gpu_*.py) tests/ops/test_removed_edges.py tests/gpu
	timeout 240 $(PYTHON) benchmarks/attention_gpu.py --size 8x16 --size 8x64

$(READY): setup.cfg setup.py constraints.txt $(wildcard dgl_gt/ops/cpu/*.cpp dgl_gt/ops/cpu/*.h partition/cuts/native/*.cpp partition/cuts/native/*.h)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("dgl-gt needs Python 3.10 or newer, and $(PYTHON) is %d.%d: choose another one, as in make PYTHON=python3.11 demo" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) torch
	@echo 'compiling the C++ loops and kernels, which takes half a minute on two cores'
	$(INSTALL) --editable '.[dev]'
	touch $@

$(DOCS_READY): $(READY)
	$(INSTALL) --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .demo dgl_gt/ops/cpu/*.so partition/cuts/native/*.so

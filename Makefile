# `make demo` and `make test` make their own environment in .venv; the second time they only use it.
PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

.PHONY: demo test clean

demo: $(READY)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" bash examples/demo.sh

test: $(READY)
	$(VENV)/bin/python -m pytest

$(READY): setup.cfg setup.py constraints.txt $(wildcard dgl_gt/ops/cpu/*.cpp dgl_gt/ops/cpu/*.h partition/cuts/native/*.cpp partition/cuts/native/*.h)
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("dgl-gt needs Python 3.10 or newer, and $(PYTHON) is %d.%d: choose another one, as in make PYTHON=python3.11 demo" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build *.egg-info .demo dgl_gt/ops/cpu/*.so partition/cuts/native/*.so

# Two commands do all the set-up: `make demo` and `make test`. The rest is for those who change the code.
# Needs Python 3.11 or newer with venv, and make:  apt-get install make python3-venv
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
V := .venv
PIP := $(V)/bin/python -m pip --disable-pip-version-check -q
ARGS ?=
WORKERS ?= 3

.PHONY: demo test lint bench proof golden lock clean components

demo: $(V)/.demo
	@$(V)/bin/gpuwatch demo $(ARGS)

test: $(V)/.dev components lint
	$(V)/bin/python -m pytest tests -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(V)/.dev
	$(V)/bin/ruff check .
	$(V)/bin/ruff format --check .
	$(V)/bin/mypy
	$(V)/bin/lint-imports --no-cache > .build/imports.txt 2>&1 || { cat .build/imports.txt; exit 1; }

bench: $(V)/.bench components
	$(V)/bin/python -m tests.benchmarks $(ARGS)

proof: $(V)/.dev
	$(V)/bin/python -m pytest tests/proof -m proof -s $(ARGS)

# Real programs that some tests run against. As root they are installed; else the tests that miss one say so.
components:
	@bash tests/components.sh

$(V)/bin/python:
	@test -n "$(PYTHON)" || { echo "gpuwatch needs Python 3.11 or newer with venv: apt-get install python3 python3-venv"; exit 1; }
	$(PYTHON) -m venv $(V)

$(V)/.demo: requirements.lock requirements-build.lock pyproject.toml | $(V)/bin/python
	$(PIP) install --require-hashes -r requirements-build.lock
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

$(V)/.dev: $(V)/.demo requirements-dev.lock
	$(PIP) install --require-hashes -r requirements-dev.lock
	@mkdir -p .build
	@touch $@

$(V)/.bench: $(V)/.dev requirements-bench.lock
	$(PIP) install --require-hashes -r requirements-bench.lock
	@touch $@

# New locks from pyproject.toml; hash-pinned, without addresses.
lock:
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header pyproject.toml -o requirements.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header pyproject.toml --group dev -o requirements-dev.lock
	uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header pyproject.toml --group dev --group bench -o requirements-bench.lock
	@! grep -nE 'https?://' requirements*.lock

clean:
	rm -rf $(V) .build .mypy_cache .ruff_cache .pytest_cache .hypothesis

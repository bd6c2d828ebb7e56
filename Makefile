# Everything a person or a CI machine runs. On Debian 12 only git and this checkout are assumed:
# what is missing is installed, as root from Debian's packages, the rest into ./.venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# pip and dpkg know no two callers at a time.
.NOTPARALLEL:

VENV := .venv
BIN := $(VENV)/bin
TORCH_VENV := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/.tried
# CPU-only. Plain "torch" would bring several GB of CUDA libraries.
TORCH := torch==2.13.0
CHECKED := slurm_dl benchmarks demo examples tests

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore

# Three tries, as mirrors are away for a moment now and then.
define retry
try() { for pause in 5 20 0; do "$$@" && return 0; \
	if [[ $$pause != 0 ]]; then echo "failed, again in $$pause s: $$*" >&2; sleep $$pause; fi; \
	done; return 1; }; try
endef

.PHONY: help
help: ## Say what there is
	@grep -E '^[a-z-]+:.* ## ' $(MAKEFILE_LIST) | sed -E 's/:.* ## /\t/' | \
	while IFS=$$'\t' read -r name what; do printf '  make %-10s %s\n' "$$name" "$$what"; done

.PHONY: demo
demo: system venv ## A private Slurm, one workload with and without slurm_dl, a comparison
	@$(BIN)/python -m demo $(DEMO)

.PHONY: test
test: system venv torch lint ## Everything: linters, types, layers, all tests, on real Slurm too
	@if [[ -n "$${CI:-}" || -e $(TORCH_VENV)/.works ]]; then \
	export SLURM_DL_TORCH_PYTHON=$${SLURM_DL_TORCH_PYTHON:-$(CURDIR)/$(TORCH_VENV)/bin/python}; fi; \
	exec $(BIN)/python -m pytest --durations=15 $(PYTEST)

.PHONY: unit
unit: venv ## The fast tests: no Slurm, no wheel
	@$(BIN)/python -m pytest -q tests/unit tests/contract -m "not slurm and not wheel" $(PYTEST)

.PHONY: lint
lint: venv ## ruff, mypy, import-linter
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: venv ## Put the code into its form
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: bench
bench: system venv ## Speed and memory, at 10,000 GPUs; 10 minutes
	$(BIN)/python benchmarks/bench_plan.py
	$(BIN)/python benchmarks/bench_poll.py

.PHONY: wheel
wheel: venv ## dist/*.whl and dist/*.tar.gz
	$(retry) $(BIN)/python -m build --outdir dist

.PHONY: clean
clean: ## Remove what was built; the virtual environments too
	rm -rf $(VENV) $(TORCH_VENV) build dist *.egg-info benchmarks/results demo-result.json \
	.coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: system
system: ## Install Slurm, munge and python3-venv, if they are missing (root, Debian)
	@tools/system

.PHONY: venv
venv: $(VENV)/.ready ## The package and its tools in ./.venv

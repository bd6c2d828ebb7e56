# What a person or a CI machine runs. On Debian 12 only git and this checkout are assumed: Slurm is
# installed from Debian's packages if it is missing (as root), everything else goes into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
# apt allows one caller at a time, and the tests share two cores.
.NOTPARALLEL:
.DEFAULT_GOAL := help

BIN := .venv/bin
TORCH_PYTHON := .venv-torch/bin/python
# Plain "torch" would bring gigabytes of CUDA libraries. A build of another name can be given on
# the command line, or a Python that has one in SLURM_DL_TORCH_PYTHON.
TORCH := torch==2.13.0+cpu
# What the examples of examples/frameworks need beside it.
FRAMEWORKS := lightning==2.6.6 transformers==5.23.0 accelerate==1.15.0 submitit==1.5.4 \
	hydra-core==1.3.8 hydra-submitit-launcher==1.2.0 jax==0.10.2 optax==0.2.8 \
	orbax-checkpoint==0.12.8
# Slurm of the containers.
RELEASE := 24.11
PACKAGES := slurmctld slurmd slurm-client munge python3-venv ca-certificates
# Accounting of sandboxes. The server's core alone: it brings no service that would start.
DATABASE_PACKAGES := slurmdbd mariadb-server-core mariadb-client-core
# Whom the pages, figures and JSON that we write are shown to, in tests.
READER_PACKAGES := chromium fonts-dejavu-core prometheus jq

FAST := tests/unit tests/contract

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
export PIP_ROOT_USER_ACTION := ignore
# Without bytecode every command that a test starts compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Slurm's daemons are not on every user's path.
export PATH := $(PATH):/usr/local/sbin:/usr/sbin:/sbin

# Mirrors are away for a moment now and then.
define RETRY
retry() {
	local pause
	for pause in 5 20; do
		"$$@" && return
		echo "make: failed, once more in $$pause s: $$*" >&2
		sleep $$pause
	done
	"$$@"
}
endef

# install PACKAGE...: what the programs in the array missing come with.
define INSTALL
install() {
	local list
	list=$$(printf ', %s' "$${missing[@]}")
	echo "make: not installed: $${list:2}"
	if ((EUID)) || ! command -v apt-get >/dev/null; then
		echo "make: as root on Debian 12 or later run: apt-get install $$*" >&2
		exit 1
	fi
	export DEBIAN_FRONTEND=noninteractive
	local quiet=(-qq -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0)
	retry apt-get "$${quiet[@]}" update
	retry apt-get "$${quiet[@]}" install -y --no-install-recommends "$$@" </dev/null
}
endef

# pip_install PYTHON ARGUMENT...: by uv, which takes a sixth of pip's CPU time; by pip without it.
define PIP_INSTALL
pip_install() {
	local python=$$1 uv=$(CURDIR)/$(BIN)/uv links=()
	shift
	[[ -x "$$uv" ]] || $(BIN)/python -m pip install --quiet uv || true
	# uv reads no configuration of pip.
	[[ -z "$${PIP_FIND_LINKS:-}" ]] || links=(--find-links "$$PIP_FIND_LINKS")
	[[ -z "$${PIP_INDEX_URL:-}" ]] || links+=(--default-index "$$PIP_INDEX_URL")
	if [[ -x "$$uv" ]] && retry "$$uv" pip install --quiet --python "$$python" "$${links[@]}" "$$@"; then
		return
	fi
	# Debian's pip does not know dependency groups yet.
	retry "$$python" -m pip install --quiet "pip>=25.1"
	retry "$$python" -m pip install --quiet "$$@"
}
endef

# The tests of real trainings look for torch there; on CI they fail without it.
define TORCH_FOR_TESTS
if [[ -z "$${SLURM_DL_TORCH_PYTHON:-}" ]] &&
	{ [[ -n "$${CI:-}" ]] || $(TORCH_PYTHON) -c 'import torch' 2>/dev/null; }; then
	export SLURM_DL_TORCH_PYTHON=$(CURDIR)/$(TORCH_PYTHON)
fi
endef

# A Python that is new enough and can make virtual environments; nothing if there is none.
define FIND_PYTHON
find_python() {
	local name
	for name in $${PYTHON:-python3 python3.13 python3.12 python3.11}; do
		if "$$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' \
			2>/dev/null; then
			command -v "$$name"
			return
		fi
	done
}
endef

.PHONY: help
help: ## Say what there is
	@echo "On Debian 12, in this directory:"
	sed -nE 's/^([a-z-]+):.* ## (.*)/\1\t\2/p' Makefile |
	while IFS=$$'\t' read -r name what; do printf '  make %-11s %s\n' "$$name" "$$what"; done

.PHONY: demo
demo: system venv ## A private Slurm, one workload without and with slurm_dl, a comparison
	@exec $(BIN)/python -m demo $(DEMO)

.PHONY: demo-docker
demo-docker: ## The same in a container: needs Docker, and no Slurm on this host
	@docker/build $(RELEASE)
	exec docker run --rm $$([[ -t 0 && -t 1 ]] && echo --interactive --tty) \
		"$${SLURM_DL_IMAGE:-slurm_dl}:$(RELEASE)" demo $(DEMO)

.PHONY: docker-up docker-down
docker-up: ## A whole cluster in containers; RELEASE=22.05, 24.11 or 26.05
	@exec docker/up $(RELEASE)
docker-down: ## Remove that cluster
	@exec docker/down $(RELEASE)

.PHONY: test test-part test-all
# The shell of make lets what it starts ignore signals that some tests are about.
GATE := exec env --default-signal=HUP,INT,QUIT $(BIN)/python tests/gate.py
test: system venv ## Linters, types, layers, all that computes and the main job on a real Slurm (root)
	@$(GATE) test
test-part: system database readers venv-all frameworks ## A twelfth of the other tests; PART=2/12, default: by the commit
	@$(TORCH_FOR_TESTS)
	$(GATE) part $(if $(PART),--part $(PART))
test-all: system database readers venv-all frameworks ## Every test, in containers too, and make quality; an hour (root)
	@$(TORCH_FOR_TESTS)
	$(GATE) all --durations
	@$(MAKE) --no-print-directory quality

.PHONY: chaos
chaos: system database venv ## A thousand jobs and a hundred faults on a sandbox; 40 minutes (root)
	@exec $(BIN)/python -m tools.chaos $(CHAOS)

.PHONY: images test-docker
images: venv ## The images of all Slurm releases; they are built anew only if their content differs
	@exec $(BIN)/python tests/engine.py docker/images
test-docker: venv ## The tests in containers alone, three Slurm releases; part of test-all
	@# 77: there can be no Docker Engine; the tests say so themselves.
	$(BIN)/python tests/engine.py docker/images || [[ $$? == 77 ]]
	exec $(BIN)/python -m pytest --durations=15 tests/docker $(PYTEST)

.PHONY: unit thorough
unit: venv ## The fast tests, with few examples of each property, without Slurm; any user
	@exec $(BIN)/python -m pytest -q -n auto --dist loadfile --examples 0.2 $(FAST) \
		-m "not slurm and not wheel and not long and not full" $(PYTEST)
thorough: venv ## Ten times the examples of each property that make test-all tries; hours
	@exec $(BIN)/python -m pytest -q -n auto --dist loadfile --examples 10 $(FAST) tests/sim \
		-m "not slurm and not wheel" $(PYTEST)

.PHONY: decisions
BASE := HEAD~1
decisions: venv ## Whether plans are those of the commit BASE (HEAD~1), to the byte; 5 minutes
	@exec env --default-signal=HUP,INT,QUIT $(BIN)/python tests/decisions/record.py --base $(BASE)

.PHONY: quality
quality: venv ## Mean JCT and more of fixed workloads against their ranges; BASE=COMMIT compares; 25 minutes
	@exec $(BIN)/python tools/benchmarks/quality.py $(if $(filter command,$(origin BASE)),--base $(BASE)) $(QUALITY)

.PHONY: lint
lint: venv ## ruff, mypy, import-linter and the budget of lines
	@$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	layers=$$($(BIN)/lint-imports --no-cache 2>&1) || { echo "$$layers" >&2; exit 1; }
	tail -n 1 <<<"$$layers"
	$(BIN)/python -m tools.line_budget

.PHONY: format
format: venv ## Bring the code into its form
	@$(BIN)/ruff check --fix
	$(BIN)/ruff format

.PHONY: fuzz
fuzz: venv ## Look for input that breaks a parser; FUZZ="squeue comment --seconds 600" for some
	@$(RETRY)
	$(PIP_INSTALL)
	pip_install $(BIN)/python --group fuzz
	exec $(BIN)/python -m tools.fuzz $(FUZZ)

.PHONY: bench
bench: system venv ## Speed and memory: plans, placement, polls, simulations; 20 minutes (root)
	@$(BIN)/python tools/benchmarks/bench_plan.py
	$(BIN)/python tools/benchmarks/bench_place.py
	$(BIN)/python tools/benchmarks/bench_policies.py
	$(BIN)/python tools/benchmarks/bench_sizes.py
	$(BIN)/python tools/benchmarks/bench_when.py
	$(BIN)/python tools/benchmarks/bench_ledger.py
	$(BIN)/python tools/benchmarks/bench_sim.py
	$(BIN)/python tools/benchmarks/bench_poll.py

.PHONY: figures
figures: venv ## The pictures of the architecture and of the benefit in docs/img; two minutes
	@$(BIN)/python docs/img/architecture.py
	$(BIN)/python docs/img/benefit.py

.PHONY: docs
docs: venv-all ## The site with all documents in site/; a dead link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	echo "read it: site/index.html"

.PHONY: wheel
wheel: venv ## dist/*.whl and dist/*.tar.gz; slurm_dl_job-*.whl is for the environments of jobs
	@$(RETRY)
	retry $(BIN)/python tools/packaging/dist.py

.PHONY: deb lintian man
deb: venv ## dist/slurm-dl_*.deb for this host's Debian; DEB="--revision 1site1" for a site's own
	@$(RETRY)
	retry $(BIN)/python tools/packaging/deb.py $(DEB)
lintian: venv ## Build that package, and have lintian look at all that is in it; 10 minutes
	@$(RETRY)
	$(INSTALL)
	missing=()
	command -v lintian >/dev/null || missing+=(lintian)
	if (($${#missing[@]})); then install lintian; fi
	package=$$(retry $(BIN)/python tools/packaging/deb.py $(DEB))
	exec $(BIN)/python tools/packaging/lintian.py "$$package"
man: venv ## Manual pages of all commands in build/man
	@$(BIN)/python tools/packaging/man.py build/man

.PHONY: clean
clean: ## Remove all that was made, the virtual environments too
	@rm -rf .venv .venv-torch build dist site ./*.egg-info tools/benchmarks/results demo-result.json .coverage \
		.hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: system
system: ## Slurm and what else is missing, from Debian's packages (root)
	@$(RETRY)
	$(INSTALL)
	$(FIND_PYTHON)
	missing=()
	for program in slurmctld slurmd squeue munged; do
		command -v "$$program" >/dev/null || missing+=("$$program")
	done
	[[ -n "$$(find_python)" ]] || missing+=("python3 (3.11 or newer, with venv)")
	[[ -e /etc/ssl/certs/ca-certificates.crt ]] || missing+=("CA certificates")
	if ((! $${#missing[@]})); then exit 0; fi
	install $(PACKAGES)

.PHONY: database
database: system ## slurmdbd and MariaDB for sandboxes with accounting, as for system (root)
	@$(RETRY)
	$(INSTALL)
	missing=()
	for program in slurmdbd mariadbd mariadb-install-db my_print_defaults; do
		command -v "$$program" >/dev/null || missing+=("$$program")
	done
	if ((! $${#missing[@]})); then exit 0; fi
	install $(DATABASE_PACKAGES)

.PHONY: readers
readers: system ## Chromium, Prometheus and jq, which tests show our pages and figures to (root)
	@$(RETRY)
	$(INSTALL)
	missing=()
	for program in chromium prometheus promtool jq; do
		command -v "$$program" >/dev/null || missing+=("$$program")
	done
	if ((! $${#missing[@]})); then exit 0; fi
	install $(READER_PACKAGES)

.PHONY: venv venv-all
venv: .venv/ready ## The package and the tools in .venv
venv-all: .venv/ready-all ## What only test-all and the site need as well

.venv/ready: pyproject.toml bin/command
	@$(RETRY)
	$(PIP_INSTALL)
	$(FIND_PYTHON)
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then
		python=$$(find_python)
		if [[ -z "$$python" ]]; then
			echo "make: needs Python 3.11 or newer with venv; as root run: apt-get install python3-venv" >&2
			exit 1
		fi
		"$$python" -m venv --clear .venv
	fi
	pip_install $(BIN)/python --editable '.[interior,learn,metrics,watch]' --group dev
	touch $@
.venv/ready-all: .venv/ready
	@$(RETRY)
	$(PIP_INSTALL)
	pip_install $(BIN)/python --group docs --group browser
	touch $@

.PHONY: torch
torch: venv ## PyTorch for CPUs in .venv-torch, if it can be had
	@$(RETRY)
	$(PIP_INSTALL)
	$(FIND_PYTHON)
	if [[ -n "$${SLURM_DL_TORCH_PYTHON:-}" ]] ||
		$(TORCH_PYTHON) -c 'import torch' 2>/dev/null; then
		exit 0
	fi
	"$$(find_python)" -m venv --clear .venv-torch
	echo '*' >.venv-torch/.gitignore
	if ! pip_install $(TORCH_PYTHON) numpy '$(TORCH)'; then
		echo "make: no $(TORCH): the training test is left out, and fails where CI is set;" \
			"name a Python that has torch in SLURM_DL_TORCH_PYTHON" >&2
	fi

.PHONY: frameworks
frameworks: torch ## Lightning, Transformers, submitit, Hydra, JAX and Orbax beside it, for their tests
	@$(RETRY)
	$(PIP_INSTALL)
	python="$${SLURM_DL_TORCH_PYTHON:-$(TORCH_PYTHON)}"
	probe="import sys; from importlib.util import find_spec as find"
	probe+="; sys.exit(any(find(m) is None for m in sys.argv[1:]))"
	if [[ -n "$${SLURM_DL_TORCH_PYTHON:-}" ]] ||
		! "$$python" -c 'import torch' 2>/dev/null ||
		"$$python" -c "$$probe" \
			accelerate hydra hydra_plugins jax lightning optax orbax submitit transformers; then
		exit 0
	fi
	if ! pip_install "$$python" '$(TORCH)' $(FRAMEWORKS); then
		echo "make: some of $(FRAMEWORKS) cannot be had: their tests are left out," \
			"and fail where CI is set" >&2
	fi

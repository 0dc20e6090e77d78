# SPDX-License-Identifier: Apache-2.0
# One command each: `make help`. Everything happens in a virtual environment made here, .venv, and in build/.

PYTHON ?= python3
# What pip installs when $(PYTHON) has no PyTorch of its own; options of pip may follow the name.
TORCH ?= torch
# Passed on to pytest, e.g. make test ARGS='-k jaeger'; tests/__main__.py runs it several times side by side
ARGS ?=

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check --quiet
TYPECHECK := build/typecheck

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test parts lint bench clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 14

demo: $(VENV)/.torch ## train a small CNN with a slow loader, traced, and say why it is slow
	@echo 'demo: opentelemetry-instrument python examples/train_cnn.py (about half a minute)'
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" \
	GRADEML_EXPORTER="$${GRADEML_EXPORTER-$${OTEL_EXPORTER_OTLP_ENDPOINT:+file,otlp}}" \
	  opentelemetry-instrument python examples/train_cnn.py
	@echo
	@$(VENV)/bin/grademl report
	@[ -n "$$OTEL_EXPORTER_OTLP_ENDPOINT" ] || echo '(No Jaeger yet? docker run --rm -d -p 16686:16686 -p 4318:4318 jaegertracing/jaeger;' \
	  'then the line above, then http://localhost:16686)'

test: $(VENV)/.dev $(VENV)/.frameworks parts ## run the whole test suite, against a real Jaeger, Collector and Prometheus
	$(RUN) -m tests $(ARGS)

parts: ## have the real servers of the tests at hand; the first time they are built with Go
	@# Here, and not in a fixture, because a build takes longer than a test may. Without them tests skip, or
	@# fail where CI=true; either says why.
	@for part in jaeger collector prometheus; do $(PYTHON) tools/real_parts.py $$part >/dev/null || true; done

lint: $(VENV)/.dev ## lint, check the format, check the types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	@# mypy does not follow setuptools' package-dir: it sees the import root as a tree of links.
	@rm -rf $(TYPECHECK) && mkdir -p $(TYPECHECK)/grademl_otel
	@ln -s "$(CURDIR)"/grademl_otel/* "$(CURDIR)/instrumentations" "$(CURDIR)/resource_detectors" \
	  "$(CURDIR)/analyzers" $(TYPECHECK)/grademl_otel/
	cd $(TYPECHECK) && "$(CURDIR)/$(RUN)" -m mypy --config-file "$(CURDIR)/pyproject.toml" -p grademl_otel
	cd $(TYPECHECK) && "$(CURDIR)/$(RUN)" -m mypy --config-file "$(CURDIR)/pyproject.toml" \
	  "$(CURDIR)/tools" "$(CURDIR)/benchmarks" "$(CURDIR)/examples/analyze_run.py"

bench: $(VENV)/.dev $(VENV)/.torch ## measure what recording costs, beside the alternatives; writes docs/costs.md
	$(RUN) -m benchmarks $(ARGS)

clean: ## remove what was made here, but no recorded runs
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# --- The virtual environment: stamps in it say what it has, so that a second call needs neither pip nor network ---

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo 'make: no $(PYTHON) here; give one with PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' || { \
	  echo "make: needs Python 3.10 to 3.13, $(PYTHON) is $$($(PYTHON) -V 2>&1); give one with PYTHON=..." >&2; \
	  exit 1; }
	@echo 'making $(VENV) with $(PYTHON)'
	@rm -rf $(VENV) && $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.core: $(VENV)/.made pyproject.toml setup.py grademl_otel/ring/_core.c
	@echo 'installing grademl-otel with the analyzer into $(VENV)'
	@$(PIP) install --editable '.[analyzer]'
	@touch $@

$(VENV)/.dev: $(VENV)/.core pyproject.toml
	@echo 'installing the tools for tests and lint into $(VENV)'
	@$(PIP) install --editable '.[analyzer,test]'
	@touch $@

# After .core: what $(PYTHON) has must not count as installed while pip puts commands into $(VENV)/bin.
$(VENV)/.torch: $(VENV)/.core
	@$(PYTHON) tools/borrow_torch.py $(RUN) || { \
	  echo 'installing $(firstword $(TORCH)) into $(VENV) (large; TORCH=... to choose another build)'; \
	  $(PIP) install $(TORCH); }
	@touch $@

# After .torch: they require PyTorch, and pip would choose one.
$(VENV)/.frameworks: $(VENV)/.torch pyproject.toml
	@echo 'installing the libraries on PyTorch that the tests train with into $(VENV)'
	@$(PIP) install --editable '.[frameworks]'
	@touch $@

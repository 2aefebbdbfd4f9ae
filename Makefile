# One entry for everything a developer or CI does. `make help` lists it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RESULTS := runs/bench.json
FITS := $(basename $(RESULTS))-fits.json
PLOTS := runs/plots
GPU_RESULTS := runs/gpu.jsonl
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
BENCH_STAMP := $(VENV)/.installed-bench
DOCS_STAMP := $(VENV)/.installed-docs
RELEASE_STAMP := $(VENV)/.installed-release
PEERS_VENV := .venv-peers
PEERS_STAMP := $(PEERS_VENV)/.installed
PARITY_VENV := .venv-parity
PARITY_STAMP := $(PARITY_VENV)/.installed
S3_VENV := .venv-s3
S3_STAMP := $(S3_VENV)/.installed
BRIDGES_VENV := .venv-bridges
BRIDGES_STAMP := $(BRIDGES_VENV)/.installed
BRIDGES_TF_STAMP := $(BRIDGES_VENV)/.installed-tensorflow

ENGINE ?= docker
TARGET ?= runtime
VARIANT ?= cpu
IMAGE ?= ropewalk$(if $(filter digits,$(TARGET)),-digits):0.1.0$(if $(filter gpu,$(VARIANT)),-gpu)

# A module is compiled when it is imported first: most of those installed never are.
INSTALL = -m pip install --quiet --no-compile

# Tests wait for processes much of the time, so more of them run at once than there are processors.
JOBS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) * 3 )))
XDIST = -n $(JOBS) --dist worksteal
# Since Python 3.12 the interpreter itself tells which lines run, at a fraction of the cost.
COVERAGE_CORE = $(shell $(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')

.PHONY: help setup demo test test-tools fresh bridges-setup test-bridges test-bridges-short gpu soak chaos coverage mutants check docs format parity s3 dist image bench bench-paired bench-peers bench-plots protos clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) --upgrade 'pip>=25.1'
	$(BIN)/python $(INSTALL) --editable '.[examples]'
	touch $@

$(DEV_STAMP): $(STAMP)
	$(BIN)/python $(INSTALL) --editable '.[examples]' --group dev
	touch $@

$(BENCH_STAMP): $(DEV_STAMP)
	$(BIN)/python $(INSTALL) --group bench
	touch $@

$(DOCS_STAMP): $(DEV_STAMP)
	$(BIN)/python $(INSTALL) --group docs
	touch $@

$(RELEASE_STAMP): $(STAMP)
	$(BIN)/python $(INSTALL) --group release
	touch $@

$(PEERS_STAMP): benchmarks/peers/requirements.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python $(INSTALL) --requirement $<
	touch $@

$(S3_STAMP): pyproject.toml
	$(PYTHON) -m venv $(S3_VENV)
	$(S3_VENV)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(S3_VENV)/bin/python $(INSTALL) --editable '.[security]' --group s3
	touch $@

$(PARITY_STAMP): pyproject.toml
	$(PYTHON) -m venv $(PARITY_VENV)
	$(PARITY_VENV)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(PARITY_VENV)/bin/python $(INSTALL) --editable . --group parity
	touch $@

# Where the index has no CPU build of PyTorch or TensorFlow, its tests are skipped, and say so.
$(BRIDGES_STAMP): pyproject.toml
	$(PYTHON) -m venv $(BRIDGES_VENV)
	$(BRIDGES_VENV)/bin/python $(INSTALL) --upgrade 'pip>=25.1'
	$(BRIDGES_VENV)/bin/python $(INSTALL) --editable . --group bridges
	-$(BRIDGES_VENV)/bin/python $(INSTALL) --group bridges-torch
	touch $@

$(BRIDGES_TF_STAMP): $(BRIDGES_STAMP)
	-$(BRIDGES_VENV)/bin/python $(INSTALL) --group bridges-tensorflow
	touch $@

setup: $(DEV_STAMP)  ## create .venv with the package and everything to develop it

demo: $(STAMP)  ## train examples/digits on a local cluster: chief, 2 workers, 2 ps, evaluator
	$(BIN)/ropewalk local --chief --workers 2 --ps 2 --evaluator examples/digits/train.py

test: $(DEV_STAMP)  ## the test suite; ARGS='tests/unit -x' runs a part, JOBS=0 in one process
	$(BIN)/python tools/run_tests.py $(XDIST) $(ARGS)

test-tools: $(DEV_STAMP)  ## the tests that need a tool which the PATH in BARE lacks
	$(BIN)/python tools/run_tests.py $(XDIST) --needing-more-than='$(BARE)' $(ARGS)

fresh:  ## make demo and make test as an ordinary user of a bare Debian, by debootstrap; as root
	$(PYTHON) tools/fresh.py

bridges-setup: $(BRIDGES_STAMP)  ## install the frameworks of the bridges into .venv-bridges

test-bridges-short: $(BRIDGES_STAMP)  ## of test-bridges what takes a minute or two, as CI runs it
	JAX_PLATFORMS=cpu $(BRIDGES_VENV)/bin/python -m pytest -m bridges -n 3 --dist worksteal \
	    tests/annex/jax_bridge/test_bridges_jax.py tests/annex/torch_bridge/test_bridges_torch.py \
	    tests/annex/keras_bridge/test_bridges_keras.py tests/bridges/test_bridges_copies.py $(ARGS)

test-bridges: $(BRIDGES_TF_STAMP)  ## the bridges to JAX, Keras and PyTorch, in .venv-bridges
	JAX_PLATFORMS=cpu $(BRIDGES_VENV)/bin/python -m pytest -m bridges -n 2 \
	    tests/bridges tests/annex/*_bridge tests/annex/estimator tests/annex/tensorboard tests/annex/trackers $(ARGS)
	for backend in torch tensorflow; do \
	    KERAS_BACKEND=$$backend OMP_NUM_THREADS=1 $(BRIDGES_VENV)/bin/python -m pytest -m bridges -n 2 \
	        tests/annex/keras_bridge/test_bridges_keras*.py || exit 1; \
	done

# Frameworks for GPUs are the machine's own: any Python that has them, and what the product needs.
GPU_PYTHON ?= $(PYTHON)
gpu:  ## what is promised on GPUs, looked at on this machine's, in a table; ARGS='--rows nccl', GPU_PYTHON
	PYTHONPATH=src $(GPU_PYTHON) -m tools.gpu_check --json $(GPU_RESULTS) $(ARGS)

soak: $(DEV_STAMP)  ## the long random runs, more examples, every process of a cluster started for real, and the tests without each annex
	SOAK=1 $(BIN)/python -m pytest -m 'soak or hypothesis' $(XDIST) $(ARGS)
	TEST_REAL_START=1 $(BIN)/python -m pytest $(XDIST) tests/scenario tests/fault tests/annex $(ARGS)
	$(BIN)/python tools/without_annex.py -- $(XDIST)

chaos: $(DEV_STAMP)  ## random faults on jobs whose parameter servers have replicas; CHAOS_FAULTS, CHAOS_SEED, CHAOS_LOAD
	CHAOS_FAULTS=$(or $(CHAOS_FAULTS),70) $(BIN)/python -m pytest -m soak tests/annex/replication/test_fault_chaos.py $(ARGS)

coverage: $(DEV_STAMP)  ## the test suite, counting the lines that its own processes run
	COVERAGE_CORE=$(COVERAGE_CORE) $(BIN)/python -m pytest $(XDIST) \
	    --cov --cov-report=term:skip-covered --cov-fail-under=95 $(ARGS)

mutants: $(DEV_STAMP)  ## put defects into copies of the source, one by one; the tests should tell
	$(BIN)/python tools/mutants.py $(ARGS)

# mypy takes two thirds of the time; the others are checked beside it.
CHECKS := check-types check-docs check-format check-lint check-docstrings check-imports check-protos check-access
.PHONY: $(CHECKS)
$(CHECKS): $(DEV_STAMP)

check: $(DEV_STAMP) $(DOCS_STAMP)  ## format, lint, docstrings, types, import contracts, fresh protos, documentation
	$(MAKE) --no-print-directory --keep-going --jobs=2 \
	    $(if $(filter output-sync,$(.FEATURES)),--output-sync) $(CHECKS)

check-types:
	$(BIN)/mypy --num-workers=2 src/ropewalk tests benchmarks
check-docs: docs
check-format:
	$(BIN)/ruff format --check .
check-lint:
	$(BIN)/ruff check .
check-docstrings:
	$(BIN)/python tools/docstrings.py
check-imports:
	PYTHONPATH=src $(BIN)/lint-imports
check-protos:
	$(BIN)/python tools/gen_protos.py --check
check-access:
	$(BIN)/python tools/access_table.py --check

docs: $(DOCS_STAMP)  ## the documentation as a site, in build/site; any warning fails it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(DEV_STAMP)  ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

parity: $(PARITY_STAMP)  ## run the same programs under TensorFlow and here, in .venv-parity
	$(PARITY_VENV)/bin/python -m pytest -m tensorflow tests/parity tests/docs/test_docs_tf_names.py $(ARGS)

s3: $(S3_STAMP)  ## checkpoints at s3:// against a server that speaks S3, in .venv-s3
	$(S3_VENV)/bin/python -m pytest tests/scenario/test_processes_s3.py $(ARGS)

dist: $(RELEASE_STAMP)  ## the sdist and the wheel, built as a release is and checked, in dist
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

image: ## build the image; TARGET=runtime or digits, VARIANT=cpu or gpu, ENGINE=docker, podman or buildah
	$(ENGINE) build --file deploy/docker/Dockerfile --target $(TARGET) --build-arg VARIANT=$(VARIANT) \
	    --tag $(IMAGE) .

bench: $(DEV_STAMP)  ## measure a step, work in sync, gRPC through the one port, followers of a ps, failover, TLS, credentials, closures, bridges, a standing cluster, the start of a cluster and the memory of a ps here
	$(BIN)/python -m benchmarks.step --budget-s 1.5
	$(BIN)/python -m benchmarks.writes --budget-s 1
	$(BIN)/python -m benchmarks.sync --budget-s 1.5
	$(BIN)/python -m benchmarks.one_port --budget-s 2
	$(BIN)/python -m benchmarks.replicas --budget-s 2
	$(BIN)/python -m benchmarks.failover --sizes 4 --times 3
	$(BIN)/python -m benchmarks.tls --budget-s 2
	$(BIN)/python -m benchmarks.admission
	$(BIN)/python -m benchmarks.closures
	$(BIN)/python -m benchmarks.standalone
	$(BIN)/python -m benchmarks.bridges --budget-s 1
	$(BIN)/python -m benchmarks.start --runs 5
	$(BIN)/python -m benchmarks.memory --sizes 0 64

bench-paired: $(DEV_STAMP)  ## this checkout and the one in BASE by turns: what a change makes of every case
	$(BIN)/python -m benchmarks.paired $(BASE) $(ARGS)

# A peer that cannot be installed is shown as such by the comparison.
bench-peers: $(DEV_STAMP)  ## compare with TensorFlow, Ray and gloo, installed into .venv-peers; RESULTS and FITS are written
	-$(MAKE) --no-print-directory $(PEERS_STAMP)
	-$(MAKE) --no-print-directory $(BRIDGES_TF_STAMP)
	mkdir -p $(dir $(FITS))
	$(BIN)/python -m benchmarks.fits --json $(FITS)
	$(BIN)/python -m benchmarks.compare --json $(RESULTS) $(ARGS)

bench-plots: $(BENCH_STAMP)  ## draw the figures in RESULTS as PLOTS/*.svg
	$(BIN)/python -m benchmarks.plots $(RESULTS) --into $(PLOTS)

protos: $(DEV_STAMP)  ## generate proto/v1 anew
	$(BIN)/python tools/gen_protos.py

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(PEERS_VENV) $(PARITY_VENV) $(S3_VENV) $(BRIDGES_VENV) build dist .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis runs

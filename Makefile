# The commands of this repository; `make help` lists them. Steps are quiet while they succeed.

SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

JOBS ?= $(shell nproc)
SECONDS ?= 60
CRASH_ROUNDS ?= 100
ARGS ?=

PYTHON := .venv/bin/python
STEP := tools/run_step.sh
CPP_FILES = $(shell find csrc tests bench -name '*.cc' -o -name '*.h' | sort)
PYTHON_FILES = setup.py $(wildcard kvtier bench tools tests examples)

export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

.PHONY: help
help: ## List the commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what is missing and make .venv (skipped when nothing changed)
	@$(STEP) "set-up" tools/setup.sh

.PHONY: build
build: setup ## Compile the extension into kvtier/
	@$(STEP) "extension" $(PYTHON) setup.py --quiet build_ext --inplace

.PHONY: test
test: build ## C++ tests with sanitizers, fuzz corpora, Python tests (ARGS= for pytest)
	@tools/run_tests.sh $(ARGS)

.PHONY: test-vllm
test-vllm: build ## The tests that need vLLM, with a real engine on the CPU (ARGS= for pytest)
	@$(STEP) "vLLM for CPU" tools/setup_vllm.sh
	@PYTHONPATH=$(CURDIR) .venv-vllm/bin/python -m pytest tests/python/adapters $(ARGS)

.PHONY: tsan
tsan: setup ## C++ tests with the thread sanitizer
	@$(STEP) "C++ build, thread sanitizer" tools/build_cpp.sh build/tsan \
	  -DKVTIER_SANITIZE=thread -DKVTIER_BUILD_TESTS=ON
	@$(STEP) "C++ tests, thread sanitizer" build/tsan/kvtier_cpp_tests

.PHONY: check
check: setup ## Format, lint, types and style rules
	@failed=0; \
	$(STEP) "ruff format" $(PYTHON) -m ruff format --check $(PYTHON_FILES) || failed=1; \
	$(STEP) "ruff" $(PYTHON) -m ruff check $(PYTHON_FILES) || failed=1; \
	$(STEP) "mypy" $(PYTHON) -m mypy || failed=1; \
	$(STEP) "clang-format" .venv/bin/clang-format --dry-run -Werror $(CPP_FILES) || failed=1; \
	$(STEP) "style" $(PYTHON) tools/check_style.py || failed=1; \
	exit $$failed

.PHONY: format
format: setup ## Format the C++ and Python sources in place
	@$(STEP) "ruff format" $(PYTHON) -m ruff format $(PYTHON_FILES)
	@$(STEP) "ruff fixes" $(PYTHON) -m ruff check --fix --exit-zero $(PYTHON_FILES)
	@$(STEP) "clang-format" .venv/bin/clang-format -i $(CPP_FILES)

.PHONY: demo
demo: build ## A real model on a real vLLM: long documents cold, from memory, from disk after a restart
	@$(STEP) "vLLM for CPU" tools/setup_vllm.sh
	@$(PYTHON) bench/vllm_demo.py --python .venv-vllm/bin/python $(ARGS)

.PHONY: demo-trace
demo-trace: build ## A production trace through both tiers, with their figures
	@$(PYTHON) bench/demo.py $(ARGS)

.PHONY: bench
bench: build ## The figures that the store has to reach, each beside its bound
	@$(PYTHON) bench/store_figures.py $(ARGS)

.PHONY: bench-regress
bench-regress: build ## Speed as ratios within one run; results are kept below bench/out
	@$(PYTHON) -m pytest tests/benchmark --benchmark-only --benchmark-autosave \
	  --benchmark-storage bench/out/regress --benchmark-columns=median,rounds --timeout 600 $(ARGS)

.PHONY: fuzz
fuzz: ## Fuzz each target for SECONDS=N with libFuzzer
	@$(STEP) "set-up for fuzzing" tools/setup.sh fuzz
	@tools/run_fuzzers.sh $(SECONDS)

.PHONY: aarch64
aarch64: ## Cross-compile the core for aarch64 and run its C++ tests under an emulator (ARGS= for them)
	@$(STEP) "set-up for aarch64" tools/setup.sh aarch64
	@tools/test_aarch64.sh $(ARGS)

.PHONY: soak
soak: build ## Random load with every byte verified, for SECONDS=N
	@$(PYTHON) bench/soak.py --seconds $(SECONDS) $(ARGS)

.PHONY: kill9
kill9: build ## Kill a writing process CRASH_ROUNDS=100 times and verify what it left
	@KVTIER_CRASH_ROUNDS=$(CRASH_ROUNDS) $(PYTHON) -m pytest -m slow -k "crash or kill" \
	  --timeout 3600 $(ARGS)

.PHONY: wheel
wheel: setup ## Build a wheel into dist/
	@rm -rf build/lib* build/bdist*  # else modules deleted since the last wheel would be packed
	@$(STEP) "wheel" $(PYTHON) -m pip wheel . --quiet --no-deps --no-build-isolation --wheel-dir dist

.PHONY: package
package: ## Build source distribution and wheel into dist/, and try them in a new environment
	@$(STEP) "set-up for packaging" tools/setup.sh package
	@tools/check_package.sh

.PHONY: docs
docs: ## Build the documentation site into build/site; a warning is an error
	@$(STEP) "set-up for documentation" tools/setup.sh docs
	@$(STEP) "documentation site" env NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet

.PHONY: clean
clean: ## Remove what was built, but not .venv
	@rm -rf build dist bench/out kvtier/_core*.so kvtier.egg-info .mypy_cache .ruff_cache \
	  .pytest_cache .hypothesis
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

#!/usr/bin/env bash
# Runs all tests: C++ with address and undefined-behaviour sanitizers, fuzz corpora, then Python.
# Goes on after a failure, ends with pytest's summary, and fails when any part failed.
# Usage: run_tests.sh [PYTEST_ARGUMENT...]

set -uo pipefail
cd "$(dirname "$0")/.."

export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# Usage: cpp_tests LOG [ARGUMENT...]
cpp_tests() {
  local log=$1
  shift
  build/asan/kvtier_cpp_tests --force-colors=false "$@" >"$log" 2>&1
  local status=$?
  cat "$log"
  sed -n 's/^\[doctest\] test cases: */note: cases /p' "$log"
  # A program without test cases succeeds too; with sources there, that means they were not built.
  if grep -q 'test cases: *0 ' "$log" && [ -n "$(find tests/cpp -name '*_test.cc')" ]; then
    echo "no test case ran"
    status=1
  fi
  return "$status"
}
export -f cpp_tests

failed=()
if tools/run_step.sh "C++ build, sanitizers" tools/build_cpp.sh build/asan \
  -DKVTIER_SANITIZE=address -DKVTIER_BUILD_TESTS=ON -DKVTIER_BUILD_FUZZ=ON; then
  tools/run_step.sh "C++ tests" bash -c "cpp_tests build/logs/doctest.log" || failed+=("C++ tests")
  # Those of the real store, with the engine that `io=auto` does not choose here.
  KVTIER_TEST_IO=threads tools/run_step.sh "C++ tests, I/O by threads" \
    bash -c "cpp_tests build/logs/doctest_threads.log -sf='*store_threads_test*,*store_stress_test*,*loader_test*'" ||
    failed+=("C++ tests, I/O by threads")
  tools/run_step.sh "fuzz corpora" tools/replay_corpora.sh build/asan/fuzz || failed+=("fuzz corpora")
else
  failed+=("C++ build")
fi

# The caller's own -m comes later and wins.
.venv/bin/python -m pytest -m "not slow" "$@" || failed+=("Python tests")

if [ "${#failed[@]}" -gt 0 ]; then
  printf 'failed: %s\n' "${failed[*]}" >&2
  exit 1
fi

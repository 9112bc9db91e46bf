#!/usr/bin/env bash
# Builds kvtier on a GPU machine that reaches no registry, runs the tests that need its GPU, then
# measures. Headers that the machine lacks are looked for in carry/ (see pack.sh) and below
# KVTIER_LIBURING_DIR. Results go to OUT (default: bench/out/gpu). Usage: run.sh [STEP...]; steps are
# build, test, sanitize, probe, python, copy and lab; without any: all of them but the last. `python`
# and `copy` need python3 with numpy and pybind11, and rich or pytest.

set -uo pipefail
cd "$(dirname "$0")/../.."

root=$PWD
build=$root/build/gpu
results=${OUT:-$root/bench/out/gpu}
steps=${*:-build test sanitize probe python copy}
mkdir -p "$results"
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
export KVTIER_LIBURING_DIR=${KVTIER_LIBURING_DIR:-$root/carry/liburing}
# A machine without its GPU is a failure here, not a reason to skip.
export KVTIER_GPU_REQUIRED=1
failed=()

# Further settings are kept with the build.
configure() {
  local carried=()
  [ -f carry/xxhash/xxhash.h ] && carried+=("-DKVTIER_XXHASH_INCLUDE_DIR=$root/carry/xxhash")
  [ -f carry/doctest/doctest/doctest.h ] && carried+=("-DKVTIER_DOCTEST_INCLUDE_DIR=$root/carry/doctest")
  local generator=()
  command -v ninja >/dev/null && generator=(-G Ninja)
  # Warnings of a compiler that is not the project's own are no errors.
  cmake -S . -B "$build" "${generator[@]}" "${carried[@]}" -DKVTIER_WERROR=OFF \
    -DKVTIER_BUILD_TESTS=OFF -DKVTIER_BUILD_GPU_TESTS=ON \
    "-DKVTIER_CUDA_ARCHS=${KVTIER_CUDA_ARCHS:-native}" "$@"
}

build() {
  configure && cmake --build "$build" --target kvtier_gpu_tests kvtier_transfer_probe
}

run_tests() {
  (cd "$results" && timeout 150 "$build/kvtier_gpu_tests" --force-colors=false --duration=true)
}

# The kernels' own test, whose shapes reach every path, and one transfer of each method.
sanitize() {
  local status=0 tool
  for tool in memcheck racecheck; do
    timeout 150 compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/kvtier_gpu_tests" \
      --test-case='kernels on the GPU*,a load on the GPU names*' >"$results/$tool.log" 2>&1 || status=1
    tail -n 4 "$results/$tool.log"
  done
  return "$status"
}

commit_name() {
  cat carry/commit 2>/dev/null || git rev-parse --short HEAD 2>/dev/null || echo unknown
}

# The first line says of what the others tell; see bench/results/.
probe() {
  (cd "$results" && timeout 200 "$build/kvtier_transfer_probe" "$results/transfer_probe.jsonl") || return 1
  local commit driver link
  commit=$(commit_name)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
  link=$(nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.max --format=csv,noheader | head -n 1)
  {
    printf '{"what": "run", "commit": "%s", "driver": "%s", "command": "bench/gpu/run.sh", "link": "PCIe %s"}\n' \
      "$commit" "$driver" "${link/, / x}"
    cat "$results/transfer_probe.jsonl"
  } >"$results/transfer.jsonl"
}

# The same engine as users have it.
extension() {
  python=$(command -v python3) || return 1
  configure -DKVTIER_BUILD_PYTHON=ON "-DPython_EXECUTABLE=$python" \
    "-Dpybind11_DIR=$("$python" -c 'import pybind11; print(pybind11.get_cmake_dir())')" &&
    cmake --build "$build" --target _core && cp "$build"/_core*.so kvtier/
}

# Libraries' own warnings on being imported are not ours.
run_python_tests() {
  extension >"$results/extension.log" 2>&1 || { tail -n 40 "$results/extension.log"; return 1; }
  XLA_PYTHON_CLIENT_PREALLOCATE=false timeout 150 "$python" -m pytest -q -p no:cacheprovider \
    -W default -m gpu tests/python/test_*gpu*.py
}

copy() {
  extension >"$results/extension.log" 2>&1 || { tail -n 40 "$results/extension.log"; return 1; }
  local picture=()
  "$python" -c 'import matplotlib' 2>/dev/null && picture=(--plot "$results/copy.png")
  timeout 300 "$python" -m kvtier bench copy --device cuda:0 --commit "$(commit_name)" \
    --output "$results/copy.json" "${picture[@]}"
}

lab() {
  (cd "$results" && timeout 100 "$build/kvtier_transfer_probe" "$results/transfer_lab.jsonl" lab)
}

run_step() {
  local name=$1 begin=$SECONDS
  shift
  "$@" >"$results/$name.log" 2>&1
  local status=$?
  echo "--- $name: status $status, $((SECONDS - begin)) s"
  case "$name" in
    build) [ "$status" -eq 0 ] || grep -E 'error|Error' -A 5 "$results/$name.log" | head -n 60 ;;
    test) [ "$status" -eq 0 ] && tail -n 40 "$results/$name.log" || tail -n 150 "$results/$name.log" ;;
    *) cat "$results/$name.log" ;;
  esac
  [ "$status" -eq 0 ] || failed+=("$name")
  return "$status"
}

for step in $steps; do
  case "$step" in
    build) run_step build build || break ;;
    test) run_step test run_tests ;;
    sanitize) run_step sanitize sanitize ;;
    probe) run_step probe probe ;;
    python) run_step python run_python_tests ;;
    copy) run_step copy copy ;;
    lab) run_step lab lab ;;
    *) echo "unknown step: $step" >&2; exit 2 ;;
  esac
done

if [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]}"
  exit 1
fi
echo "all steps passed"

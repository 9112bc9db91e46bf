#!/usr/bin/env bash
# Fuzzes each target for a number of seconds, with libFuzzer and sanitizers. New inputs stay in
# build/fuzz_corpus; what crashes a target is kept in build/fuzz_findings. Usage: run_fuzzers.sh SECONDS

set -uo pipefail
cd "$(dirname "$0")/.."

tools/run_step.sh "C++ build, libFuzzer" tools/build_cpp.sh build/fuzz \
  -DCMAKE_CXX_COMPILER="${CLANGXX:-clang++}" -DKVTIER_SANITIZE=address \
  -DKVTIER_BUILD_TESTS=OFF -DKVTIER_BUILD_FUZZ=ON || exit 1

failed=0
for source in tests/fuzz/*_fuzz.cc; do
  [ -e "$source" ] || { echo "no fuzz targets"; exit 1; }
  target=$(basename "$source" .cc)
  grown=build/fuzz_corpus/$target
  findings=build/fuzz_findings/$target
  mkdir -p "$grown" "$findings" "tests/fuzz/corpus/$target"
  tools/run_step.sh "fuzz $target" build/fuzz/fuzz/"$target" \
    -max_total_time="$1" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
    -artifact_prefix="$findings/" "$grown" "tests/fuzz/corpus/$target" || failed=1
done
exit "$failed"

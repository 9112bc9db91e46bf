#!/usr/bin/env bash
# Builds the C++ tests for aarch64 and runs them under an emulator: the vector paths and the byte
# order of the formats are another machine's. Without liburing, which the emulator has no calls for.
# Usage: test_aarch64.sh [DOCTEST_OPTION...]; without options the layers below the store, its index,
# its tables and its bytes.

set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/aarch64
# The cross compiler must not see the rest of the host's headers.
mkdir -p $folder/include
ln -sfn /usr/include/xxhash.h $folder/include/xxhash.h
ln -sfn /usr/include/doctest $folder/include/doctest

tools/run_step.sh "C++ build, aarch64" tools/build_cpp.sh $folder \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
  -DKVTIER_XXHASH_INCLUDE_DIR="$PWD/$folder/include" \
  -DKVTIER_DOCTEST_INCLUDE_DIR="$PWD/$folder/include" \
  -DKVTIER_LIBURING=OFF -DKVTIER_BUILD_TESTS=ON

if [ $# -eq 0 ]; then
  # Not those of memory that the kernel is advised about: the emulator takes such calls and does
  # nothing (no huge pages, no populated, released or unforked mappings).
  set -- '--source-file=*/base/*,*/format/*,*/memory/*,*block_index*,*commit_log*,*right_bytes*,*live_*,*latency*' \
    '--source-file-exclude=*thread*,*executor*,*copy_pool*,*arena*,*populate*,*shared_memory*'
fi
exec qemu-aarch64 -L /usr/aarch64-linux-gnu $folder/kvtier_cpp_tests "$@"

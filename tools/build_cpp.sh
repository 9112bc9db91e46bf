#!/usr/bin/env bash
# Configures and builds the C++ targets in one folder. Usage: build_cpp.sh FOLDER [CMAKE_OPTION...]

set -euo pipefail
cd "$(dirname "$0")/.."

folder=$1
shift
cmake -S . -B "$folder" -G Ninja "$@"
cmake --build "$folder" --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}"

#!/usr/bin/env bash
# Copies this tree and the headers and libraries that a GPU machine lacks into FOLDER, ready to be
# brought there; then `FOLDER/bench/gpu/run.sh` does the rest. Usage: pack.sh FOLDER

set -euo pipefail
cd "$(dirname "$0")/../.."

folder=$1
rm -rf "$folder"
mkdir -p "$folder/carry/doctest/doctest" "$folder/carry/xxhash" "$folder/carry/liburing/include" \
  "$folder/carry/liburing/lib"
git ls-files --cached --others --exclude-standard -z | xargs -0 cp --parents -t "$folder"
cp /usr/include/doctest/doctest.h "$folder/carry/doctest/doctest/"
cp /usr/include/xxhash.h "$folder/carry/xxhash/"
cp -r /usr/include/liburing.h /usr/include/liburing "$folder/carry/liburing/include/"
cp "$(g++ -print-file-name=liburing.a)" "$folder/carry/liburing/lib/"
git describe --always --dirty >"$folder/carry/commit"
du -sh "$folder"

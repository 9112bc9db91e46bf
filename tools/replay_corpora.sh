#!/usr/bin/env bash
# Replays each fuzz target's recorded inputs. Usage: replay_corpora.sh FOLDER_OF_EXECUTABLES
# A target without inputs fails: its replay would check nothing.

set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
num_targets=0
for source in tests/fuzz/*_fuzz.cc; do
  [ -e "$source" ] || continue
  target=$(basename "$source" .cc)
  corpus=tests/fuzz/corpus/$target
  num_targets=$((num_targets + 1))
  if [ -z "$(find "$corpus" -type f 2>/dev/null | head -n 1)" ]; then
    echo "no inputs for fuzz target $target: expected files in $corpus"
    failed=1
    continue
  fi
  echo "== $target"
  "$1/${target}_replay" "$corpus" || failed=1
done
echo "note: $num_targets targets"
exit "$failed"

#!/usr/bin/env bash
# Runs one step of a longer command: says one line when it succeeds, shows its whole log when it fails.
# Usage: run_step.sh LABEL COMMAND [ARGUMENT...]; logs stay in build/logs. Steps may run side by side.

set -uo pipefail
cd "$(dirname "$0")/.."

label=$1
shift
mkdir -p build/logs
log="build/logs/$(printf '%s' "$label" | tr -cs 'A-Za-z0-9' '_').log"

# A note is a line that the step itself wants seen on success; it starts with "note: ".
started=$(date +%s)
if "$@" >"$log" 2>&1 </dev/null; then
  notes=$(sed -n 's/^note: //p' "$log" | paste -sd ';' -)
  printf 'ok    %s (%d s)%s\n' "$label" "$(($(date +%s) - started))" "${notes:+: $notes}"
else
  status=$?
  cat "$log"
  printf 'FAIL  %s (status %d, log: %s)\n' "$label" "$status" "$log"
  exit "$status"
fi
